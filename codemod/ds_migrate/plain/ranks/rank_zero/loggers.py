"""Progress bars and experiment trackers: those of rank 0 show and record, the others do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.expressions import choose
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.ranks.rank_zero.wandb_runs import is_given, is_only_recorded_to
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, has_star
from ds_migrate.syntax.source import SourceFile

BARS = frozenset(
    f"tqdm.{module}{name}"
    for module in ("", "auto.", "autonotebook.", "std.", "notebook.")
    for name in ("tqdm", "trange")
) | {"rich.progress.Progress", "rich.progress.track", "alive_progress.alive_bar"}
_TRACKERS = frozenset({
    "torch.utils.tensorboard.SummaryWriter", "torch.utils.tensorboard.writer.SummaryWriter",
    "tensorboardX.SummaryWriter", "visdom.Visdom", "comet_ml.Experiment", "aim.Run",
})  # fmt: skip
_MLFLOW = frozenset({"mlflow.start_run", "mlflow.set_experiment", "mlflow.autolog"})
# What records to a run that another program, or the first such call, starts.
_RECORDS = {
    "MLflow": (
        _MLFLOW,
        frozenset({"mlflow.log_metric", "mlflow.log_metrics", "mlflow.log_param", "mlflow.log_params"}),
    ),
    "wandb": (frozenset({"wandb.init"}), frozenset({"wandb.log"})),
    "NNI": (frozenset(), frozenset({"nni.report_intermediate_result", "nni.report_final_result"})),
    # Each worker of a TorchTrainer reports: it waits for the others.
    "Ray": (
        frozenset({"ray.train.torch.TorchTrainer"}),
        frozenset({"ray.tune.report", "ray.train.report", "ray.air.session.report"}),
    ),
}
_OTHERS = frozenset({
    "neptune.init", "neptune.init_run", "neptune.new.init", "clearml.Task.init", "clearml.Task.create",
    "dvclive.Live", "swanlab.init", "loguru.logger.add", "trackio.init", "comet_ml.start",
    "sacred.observers.FileStorageObserver", "sacred.observers.FileStorageObserver.create",
    "sacred.observers.MongoObserver", "sacred.observers.MongoObserver.create",
})  # fmt: skip
_ALL = BARS | _TRACKERS | _MLFLOW | _OTHERS | {"wandb.init"}
# What a program reads of a bar or a tracker, which one that does nothing does not know.
_BAR_STATE = frozenset({"n", "last_print_n", "format_dict"})
_TRACKER_STATE = frozenset({"log_dir", "logdir", "get_logdir", "file_writer"})


def quiet_loggers(facts: LoopFacts, files: list[SourceFile], runtime: RuntimeNames, converted: Converted) -> list[Note]:
    """Let rank 0 alone show bars and record; return the trackers for which that cannot be written."""
    notes: list[Note] = []
    for file in files:
        for call in file.nodes(cst.Call):
            if has_star(call) or not facts.flow.is_call_of(call, file, _ALL) or is_guarded(call, file):
                continue
            if facts.flow.is_call_of(call, file, BARS):
                if argument(call, None, "disable") is None and not _reads(file, _BAR_STATE):
                    condition = runtime.main_rank(file)
                    _add(file, call, "disable", f"not {condition if condition.endswith(')') else f'({condition})'}")
                    converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 shows this progress bar")
            elif facts.flow.is_call_of(call, file, _TRACKERS):
                _track(facts, file, call, runtime, converted, notes)
            elif facts.flow.is_call_of(call, file, {"wandb.init"}):
                _init_wandb(facts, file, call, runtime, converted, notes)
            elif facts.flow.is_call_of(call, file, _MLFLOW):
                notes.append(_note(file, call, "MLflow"))
            elif facts.flow.is_call_of(call, file, _OTHERS):
                notes.append(_note(file, call, dotted(call.func) or "a tracker"))
    return [*notes, *_records_elsewhere(facts, files)]


def _records_elsewhere(facts: LoopFacts, files: list[SourceFile]) -> Iterator[Note]:
    """Yield a note for the first call that records to a run which no call in the program starts."""
    calls = [(file, call) for file in files for call in file.nodes(cst.Call)]
    for tracker, (starts, records) in _RECORDS.items():
        if not any(facts.flow.is_call_of(call, file, starts) for file, call in calls):
            found = ((f, c) for f, c in calls if facts.flow.is_call_of(c, f, records) and not is_guarded(c, f))
            for file, call in islice(found, 1):
                yield _note(file, call, tracker)


def _note(file: SourceFile, call: cst.Call, tracker: str) -> Note:
    message = f"every rank records to {tracker} here"
    return Note(Code.PLAIN_RANK_ZERO, file, call, message, "record on rank 0 alone: if is_main_rank(): ...")


def _track(
    facts: LoopFacts, file: SourceFile, call: cst.Call, runtime: RuntimeNames, converted: Converted, notes: list[Note]
) -> None:
    if not facts.options.runtime or _is_read(facts.flow, file, call):
        notes.append(_note(file, call, dotted(call.func) or "a tracker"))
        return
    silent = cst.parse_expression(f"{runtime.name(file, 'NoTracker')}()")
    choose(file, call, runtime.main_rank(file), lambda _: silent)
    converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 records")


def _init_wandb(
    facts: LoopFacts, file: SourceFile, call: cst.Call, runtime: RuntimeNames, converted: Converted, notes: list[Note]
) -> None:
    """Disable the runs of other ranks; not where the program takes its settings from wandb, as in a sweep."""
    files = list(facts.flow.files.values())
    reads = any(
        dotted(node) in ("wandb.config", "wandb.run") and not is_given(node, f)
        for f in files for node in f.nodes(cst.Attribute)
    )  # fmt: skip
    given = argument(call, None, "mode")
    if reads or not (isinstance(file.parent(call), cst.Expr) or is_only_recorded_to(call, file, files)):
        notes.append(_note(file, call, "wandb"))
        return
    condition = runtime.main_rank(file)
    if given is None:
        _add(file, call, "mode", f'None if {condition} else "disabled"')
    else:
        choose(file, given.value, condition, lambda _: cst.SimpleString('"disabled"'))
    converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 records")


def _reads(file: SourceFile, names: frozenset[str]) -> bool:
    return any(
        node.attr.value in names and not isinstance(file.parent(node), cst.AssignTarget)
        for node in file.nodes(cst.Attribute)
    )


def _is_read(flow: Flow, file: SourceFile, tracker: cst.Call) -> bool:
    """Return whether a program reads the state of a tracker, or of what may be one: ``args.log_dir`` is not its."""
    made = flow.values(tracker, file)
    owners = (
        flow.values(node.value, other)
        for other in flow.files.values()
        for name in _TRACKER_STATE
        for node in other.attributes_by_name.get(name, ())
    )
    return any(not owner or owner & made for owner in owners)


def _add(file: SourceFile, call: cst.Call, keyword: str, value: str) -> None:
    made = cst.parse_expression(f"f({keyword}={value})")
    assert isinstance(made, cst.Call)

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        if not updated.args:
            return updated.with_changes(args=made.args)
        *before, last = updated.args
        comma = _without_comments(before[-1].comma) if before else cst.MaybeSentinel.DEFAULT
        has_line = isinstance(getattr(last.comma, "whitespace_after", None), cst.ParenthesizedWhitespace)
        end = last.comma if has_line else cst.MaybeSentinel.DEFAULT
        added = made.args[0].with_changes(comma=end, whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
        return updated.with_changes(args=[*before, last, added])

    file.change(call, change)


def _without_comments(comma: cst.Comma | cst.MaybeSentinel) -> cst.Comma | cst.MaybeSentinel:
    """Return a comma with the line break behind it, but none of the comments there, which are of one argument."""
    space = comma.whitespace_after if isinstance(comma, cst.Comma) else None
    if not isinstance(comma, cst.Comma) or not isinstance(space, cst.ParenthesizedWhitespace):
        return comma
    return comma.with_changes(whitespace_after=space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[]))
