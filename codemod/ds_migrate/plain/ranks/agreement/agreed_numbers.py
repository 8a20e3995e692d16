"""Numbers of rounds and settings of optimizers that a rank makes of its share of the data, on which all agree.

A number of epochs that was best in an earlier training, or a learning rate that was found by a test, would leave ranks
waiting for each other, or with other weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.calls.given_parameters import are_parameters
from ds_migrate.plain.dataflow.containers.mappings import display_items
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan, Review
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.agreement.common_operations import CommonOperations
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import last_name, walk
from ds_migrate.syntax.source import SourceFile

_NUMBERS = {
    "lr": "learning rate", "max_lr": "learning rate", "base_lr": "learning rate", "eta_min": "learning rate",
    "min_lr": "learning rate", "momentum": "momentum", "weight_decay": "weight decay", "gamma": "factor",
}  # fmt: skip
_COUNTS = frozenset({"T_max", "T_0", "total_steps", "epochs", "steps_per_epoch", "step_size", "total_iters"})
_RANGES = frozenset({"range", "trange"})
_MEAN = "mean_over_ranks"


class AgreedNumbers:
    """Numbers that become the mean over ranks where they differ by rank."""

    def __init__(
        self, plan: ProgramPlan, values: RankValues, runtime: RuntimeNames, converted: Converted, review: Review
    ) -> None:
        self._plan = plan
        self._values = values
        self._runtime = runtime
        self._converted = converted
        self._review = review

    def agree_on_rounds(self, files: Iterable[SourceFile], common: CommonOperations) -> None:
        """Let loops that train run equally often on all ranks."""
        for file in files:
            for loop in file.nodes(cst.For):
                for call in file.nodes(cst.Call, below=loop.iter):
                    name = last_name(call.func)
                    if name not in _RANGES or is_guarded(loop, file) or not common.holds(loop.body):
                        continue
                    for arg in call.args:
                        if arg.star or arg.keyword is not None or not self._values.differs(arg.value, file):
                            continue
                        if file.edits.once(arg.value, _MEAN):
                            self._average(arg.value, file, is_count=True)
                            message = "all ranks run the mean number of rounds, as the number differs by rank"
                            self._converted(Code.PLAIN_AGREEMENT, file, loop, message)

    def agree_on_settings(self, site: Site, files: Iterable[SourceFile]) -> None:
        """Let a site's optimizers, and the schedules on them, have the same settings on all ranks."""
        for file, maker in site.makers:
            for arg in _settings(maker, file, self._plan.facts.flow):
                self._set(arg, maker, file)
            for name, value in _group_settings(file):
                self._agree(value, name, maker, file)
        flow = self._plan.facts.flow
        for file in files:
            for call in file.nodes(cst.Call):
                is_schedule = bool(of_kind(flow.values(call, file), Kind.SCHEDULE)) and not of_kind(
                    flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD, Kind.CLASS
                )
                if is_schedule and call.args and flow.values(call.args[0].value, file) & site.optimizers:
                    for arg in call.args[1:]:
                        self._set(arg, call, file)

    def _set(self, arg: cst.Arg, call: cst.Call, file: SourceFile) -> None:
        is_rate = arg is call.args[1] and not arg.star
        name = arg.keyword.value if arg.keyword is not None else "lr" if is_rate else ""
        self._agree(arg.value, name, call, file)

    def _agree(self, value: cst.BaseExpression, name: str, call: cst.Call, file: SourceFile) -> None:
        if not self._values.differs(value, file) or is_guarded(call, file) or self._is_of_optimizer(value, file):
            return
        if name in _NUMBERS or name in _COUNTS:
            if file.edits.once(value, _MEAN):
                self._average(value, file, is_count=name in _COUNTS)
                message = f"the {_NUMBERS.get(name, 'number of steps')} is the mean over ranks"
                self._converted(Code.PLAIN_AGREEMENT, file, value, message)
            return
        message = "each rank may have other settings of the optimizer here, by its share of the data"
        advice = "make them of what is the same on all ranks, as mean_over_ranks() returns it"
        self._review(Note(Code.PLAIN_AGREEMENT, file, value, message, advice))

    def _is_of_optimizer(self, value: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a value is made of an optimizer's own settings, on which ranks agree."""
        flow = self._plan.facts.flow
        return any(
            isinstance(part, cst.Name) and of_kind(flow.values(part, file), Kind.OPTIMIZER) for part in walk(value)
        )

    def _average(self, node: cst.BaseExpression, file: SourceFile, *, is_count: bool) -> None:
        wrap(file, node, self._runtime.name(file, _MEAN), *(["int"] if is_count else []))


def _settings(maker: cst.Call, file: SourceFile, flow: Flow) -> Sequence[cst.Arg]:
    """Return what an optimizer is given behind its parameters, which a function may get behind its class's name."""
    first = next((i for i, arg in enumerate(maker.args) if are_parameters(arg.value, flow.scopes(file))), 0)
    return maker.args[first + 1 :]


def _group_settings(file: SourceFile) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the settings of groups of parameters: ``{"params": ..., "lr": ...}`` and ``dict(params=..., lr=...)``."""
    for node in file.nodes(cst.Dict, cst.Call):
        named = {key: value for key, value in display_items(node) if isinstance(key, str)}
        if "params" in named:
            yield from ((key, value) for key, value in named.items() if key in _NUMBERS)
