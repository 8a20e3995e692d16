"""Random numbers that a program draws before its ranks start, as a module does while it is imported.

Ranks begin with rank 0's state of the generators of torch, Python and NumPy. What a module draws before that without a
seed, as the samples of a dataset or the indices that divide one, is other data on each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.module_start import asks_for_main
from ds_migrate.syntax.nodes import argument, called_name, dotted
from ds_migrate.syntax.source import SourceFile

_TORCH = frozenset(
    {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
     "multinomial", "poisson", "utils.data.random_split"}
)  # fmt: skip
_IN_PLACE = frozenset({"uniform_", "normal_", "random_", "exponential_", "bernoulli_"})
_FIXED = frozenset({"constant_", "zeros_", "ones_", "eye_", "dirac_", "calculate_gain"})  # of torch.nn.init
_DRAW_NOTHING = frozenset({"seed", "get_state", "set_state", "getstate", "setstate", "default_rng"})
_SEEDS = frozenset({"random.seed", "numpy.random.seed", "torch.manual_seed", "torch.random.manual_seed"})
_SEED_ALL = frozenset({"seed_everything", "set_seed", "set_random_seed", "set_determinism"})
_ALL = ("torch", "numpy", "random")

Reached = tuple[SourceFile, int, cst.BaseStatement]  # a statement of a module, with its place
EarlyDraw = tuple[cst.BaseStatement, SourceFile, cst.Call]  # the statement of a module, and the call that it leads to


class EarlyDraws:
    """The statements of modules that draw random numbers without a seed, outside of the block of ``__main__``.

    Args:
        files: of the program.
    """

    def __init__(self, files: Sequence[SourceFile], flow: Flow) -> None:
        self._files = files
        self._flow = flow

    def of(self, module: SourceFile) -> list[EarlyDraw]:
        """Return those of a module in order."""
        return [
            (statement, file, call)
            for place, statement, file, call, library in self._reached_draws.get(id(module), ())
            if not self._is_seeded(module, place, library)
        ]

    @cached_property
    def _reached_draws(self) -> dict[int, list[tuple[int, cst.BaseStatement, SourceFile, cst.Call, str]]]:
        """The statements that lead to draws, with their places, by the identity of the module."""
        found: dict[int, list[tuple[int, cst.BaseStatement, SourceFile, cst.Call, str]]] = {}
        for file, call, library in self._draws:
            for module, place, statement in self._reached(file, call):
                found.setdefault(id(module), []).append((place, statement, file, call, library))
        return found

    def are_in(self, function: cst.FunctionDef) -> bool:
        """Return whether a function draws, or calls one that does."""
        drawing = [file.function(call) for file, call, _ in self._draws]
        return any(self._flow.callers.reaches(id(function), other) for other in drawing)

    @cached_property
    def _draws(self) -> list[tuple[SourceFile, cst.Call, str]]:
        calls = [
            (file, call, drawn_from(call, file, self._flow)) for file in self._files for call in file.nodes(cst.Call)
        ]
        return [(file, call, library) for file, call, library in calls if library]

    @cached_property
    def _seeds(self) -> list[tuple[SourceFile, int, str]]:
        return [
            (module, place, library)
            for file in self._files
            for call in file.nodes(cst.Call)
            for library in self._seeded(call, file)
            for module, place, _ in self._reached(file, call)
        ]

    def _is_seeded(self, module: SourceFile, place: int, library: str) -> bool:
        """Return whether a statement follows a seed; one in another module may stand before the import of this."""
        return any(
            seeded == library and (other is not module or before <= place) for other, before, seeded in self._seeds
        )

    def _reached(self, file: SourceFile, call: cst.Call) -> Iterator[Reached]:
        """Yield the statements of modules that run a call."""
        function = file.function(call)
        calling = self._flow.callers.files_of(function)
        for module in [file] if function is None else [other for other in self._files if id(other) in calling]:
            nodes = [call] if function is None else self._flow.callers.leading_to(function, module, None)
            around = {id(outer) for node in nodes for outer in module.ancestors(node)}
            for place, statement in enumerate(module.module.body):
                if id(statement) in around and not asks_for_main(statement):
                    assert isinstance(statement, cst.BaseStatement)
                    yield module, place, statement

    def _seeded(self, call: cst.Call, file: SourceFile) -> Sequence[str]:
        """Return the libraries whose own generators a call seeds."""
        for value in self._flow.in_order(of_kind(self._flow.values(call.func, file), Kind.EXTERNAL)):
            if value.name.rpartition(".")[2] in _SEED_ALL:
                return _ALL
            if value.name in _SEEDS:
                return [value.name.partition(".")[0]]
        return ()


def drawn_from(call: cst.Call, file: SourceFile, flow: Flow) -> str:
    """Return the library whose own generator a call draws from; "" where it draws from none."""
    state = argument(call, None, "random_state") or argument(call, None, "generator")
    if state is not None and dotted(state.value) != "None":
        return ""
    name = called_name(call).rpartition(".")[2]
    if name in _IN_PLACE:
        return "torch"
    if name == "sample" and argument(call, None, "frac") is not None:  # of a table
        return "numpy"
    for value in flow.in_order(of_kind(flow.values(call.func, file), Kind.EXTERNAL)):
        library, _, rest = value.name.partition(".")
        if value.name.startswith("torch.nn.init.") and name not in _FIXED:
            return "torch"
        is_random = value.name.startswith(("random.", "numpy.random."))
        if rest in _TORCH if library == "torch" else is_random and name.islower() and name not in _DRAW_NOTHING:
            return library
        if library == "sklearn" and (name in ("train_test_split", "shuffle") or name.startswith("make_")):
            return "numpy"
    return ""
