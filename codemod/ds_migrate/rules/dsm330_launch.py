"""Scripts: ``pytorch.init`` and ``Trainer`` become those of the DeepSpeed API.

What it does
    ``init(..., aggregation_frequency=K)`` moves K to ``overwrite_deepspeed_args`` of the hyperparameters, where the
    converted trial reads it, and divides the batch-unit lengths and periods of ``fit`` by it. Hyperparameters that are
    written out in the script get ``deepspeed_config``, as those of an experiment config do.
    ``trainer.configure_profiler(...)`` goes.

Why
    With accumulation a batch of DeepSpeedTrial is one optimizer step. ``configure_profiler`` has done nothing since
    Determined 0.31, ``fit(profiling_enabled=...)`` took its place.

Numbers
    Unchanged.

References
    trial_runtime.pytorch.deepspeed.init, trial_runtime.pytorch.deepspeed.Trainer
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import libcst as cst

from ds_migrate.plan import Plan
from ds_migrate.rules.support import expression_text, remove_statement, trim_comma
from ds_migrate.syntax.literals import add_pairs
from ds_migrate.syntax.source import SourceFile
from ds_migrate.syntax.tree import argument, number

CODE = "DSM330"
NAME = "launch"
_WIDTH = 120

_BATCHED = ("checkpoint_period", "validation_period", "max_length", "reporting_period")


def apply_file(file: SourceFile, plans: Sequence[Plan]) -> None:
    plan = plans[0]
    accumulation = 1
    calls = file.nodes(cst.Call)
    for call in calls:
        if file.names.qualified(call.func) == "determined.pytorch.init":
            accumulation = _init(plan, file, call) or accumulation
    for call in calls:
        if not isinstance(call.func, cst.Attribute):
            continue
        if call.func.attr.value == "configure_profiler":
            if remove_statement(file, call):
                plan.converted(CODE, file, call, "configure_profiler did nothing; fit(profiling_enabled=True) profiles")
            else:
                plan.blocked(CODE, file, call, "the value of configure_profiler() is used", "take the call out")
        elif call.func.attr.value == "fit" and accumulation > 1 and any(argument(call, None, n) for n in _BATCHED):
            _shorten(plan, file, call, accumulation)


def aggregations_of(file: SourceFile) -> set[int | float | None]:
    """The ``aggregation_frequency`` of each call of ``init``: 1 where it gives none, None for no number."""
    found: set[int | float | None] = set()
    for call in file.nodes(cst.Call):
        if file.names.qualified(call.func) == "determined.pytorch.init":
            given = argument(call, None, "aggregation_frequency")
            found.add(1 if given is None else number(given.value))
    return found


def _init(plan: Plan, file: SourceFile, call: cst.Call) -> int | None:
    """Let literal hyperparameters name the DeepSpeed config, and move ``aggregation_frequency`` there; returns it."""
    hparams = argument(call, None, "hparams")
    literal = None if hparams is None else _literal(file, call, hparams.value)
    pairs: dict[str, str] = {}
    if literal is not None and (path := _beside(plan, file)) and not _has(literal, "deepspeed_config"):
        pairs["deepspeed_config"] = path
        plan.converted(CODE, file, literal, "these hyperparameters name the DeepSpeed config, as experiment configs do")
    given = argument(call, None, "aggregation_frequency")
    value = None if given is None else number(given.value)
    if given is not None and value != 1 and (not isinstance(value, int) or hparams is None):
        plan.blocked(
            CODE, file, given, f"aggregation_frequency={expression_text(given.value)} must move to the hyperparameters",
            'pass init(hparams={..., "overwrite_deepspeed_args": {"gradient_accumulation_steps": K}}), '
            "and divide batch periods by K",
        )  # fmt: skip
        return None
    if given is not None:
        _remove(file, call, given)
    if given is not None and value != 1 and hparams is not None:
        accumulation = f'{{"gradient_accumulation_steps": {value}}}'
        if literal is None:
            merged = f'{{**{expression_text(hparams.value)}, "overwrite_deepspeed_args": {accumulation}}}'
            file.replace(hparams.value, merged)
        else:
            pairs["overwrite_deepspeed_args"] = accumulation
        plan.converted(CODE, file, given, f"accumulation over {value} micro-batches is gradient_accumulation_steps")
    if literal is not None and pairs and file.edits.once(literal, CODE):
        file.change(literal, partial(add_pairs, pairs=pairs, room=_WIDTH - _line_length(file, literal)))
    return value if isinstance(value, int) else None


def _literal(file: SourceFile, call: cst.Call, value: cst.BaseExpression) -> cst.Dict | None:
    """The dict literal that ``value`` is or names, when nothing else than hyperparameters is read from it."""
    if isinstance(value, cst.Dict):
        return value
    if not isinstance(value, cst.Name):
        return None
    scope: cst.CSTNode = file.function(call) or file.module
    assigned = file.values_of({value.value}, scope) or file.values_of({value.value}, file.module)
    if len(assigned) != 1 or not isinstance(assigned[0], cst.Dict):
        return None
    for name in file.nodes(cst.Name):
        parent = file.parent(name)
        if name.value != value.value or parent is None or isinstance(parent, cst.AssignTarget):
            continue
        given = isinstance(parent, cst.Arg) and parent.keyword is not None and parent.keyword.value == "hparams"
        read = isinstance(parent, (cst.Subscript, cst.Attribute)) and parent.value is name
        if not (given or read):
            return None
    return assigned[0]


def _line_length(file: SourceFile, node: cst.CSTNode) -> int:
    return len(file.module.code.splitlines()[file.position(node)[0] - 1])


def _has(literal: cst.Dict, key: str) -> bool:
    return any(
        isinstance(element, cst.DictElement)
        and isinstance(element.key, cst.SimpleString)
        and element.key.evaluated_value == key
        for element in literal.elements
    )


def _beside(plan: Plan, file: SourceFile) -> str:
    """The DeepSpeed config of the trial as an expression; "" where it lies in another folder, which the trial's own
    code knows."""
    if plan.trial.facts.path.parent != file.path.parent:
        return ""
    if file.path.suffix == ".ipynb":  # it has no __file__, it runs in its folder
        return f'"{plan.ds_config_name}"'
    return f'str({file.imports.name("pathlib", "Path")}(__file__).with_name("{plan.ds_config_name}"))'


def _remove(file: SourceFile, call: cst.Call, given: cst.Arg) -> None:
    file.keep_comments(call, given)
    file.change(given, lambda _: cst.RemoveFromParent())
    file.change(call, trim_comma)


def _shorten(plan: Plan, file: SourceFile, call: cst.Call, accumulation: int) -> None:
    for name in _BATCHED:
        arg = argument(call, None, name)
        inner = arg.value if arg is not None else None
        if (
            not isinstance(inner, cst.Call)
            or file.names.qualified(inner.func) != "determined.pytorch.Batch"
            or not inner.args
        ):
            continue
        length = inner.args[0]
        value = number(length.value)
        if isinstance(value, int):
            file.replace(length.value, str(max(value // accumulation, 1)))
            if value % accumulation:
                plan.review(CODE, file, inner, f"{value} micro-batches are not whole batches of {accumulation}")
        else:
            plan.blocked(CODE, file, inner, f"{name} counts micro-batches", f"divide it by {accumulation}")
            continue
        plan.converted(CODE, file, inner, f"{name} counts batches of {accumulation} micro-batches")
