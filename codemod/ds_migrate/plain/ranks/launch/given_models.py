"""Models that code outside of a program gives it, which copies them before their engine gives all ranks one state."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.unwrapping.weight_copies import weight_copies
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import parameters
from ds_migrate.syntax.source import SourceFile


class GivenModels:
    """The models of a program that are parameters of functions which nothing in it calls, and the copies of them."""

    def __init__(self, facts: LoopFacts) -> None:
        self._facts = facts
        modules = frozenset(value for site in facts.sites for value in site.of)
        self._modules = frozenset(v for v in modules if not isinstance(facts.flow.node(v), cst.Call))
        self._copies = [
            (file, call, function) for file, call in weight_copies(self._modules, facts.flow)
            if (function := file.function(call)) is not None
        ] if self._modules else []  # fmt: skip

    def names_to_share(self, start: cst.BaseStatement, file: SourceFile) -> list[str]:
        """Return the parameters of the function where ranks start that are models which are copied behind it."""
        function = file.function(start)
        if function is None or not any(self._follows(copying, function) for _, _, copying in self._copies):
            return []
        return [name for name in self._given(function, file) if name != "self"]

    def early_copies(self, start: cst.BaseStatement, file: SourceFile) -> Iterator[Note]:
        """Yield a note for each copy that the object makes whose method starts the ranks, before that."""
        function, owner = file.function(start), file.class_around(start)
        inits = [f for f in file.nodes(cst.FunctionDef, below=owner) if f.name.value == "__init__"] if owner else []
        for home, call, copying in self._copies:
            if function in inits or not any(self._follows(copying, init) for init in inits):
                continue
            message = (
                "this copy begins with each rank's own weights: the model comes from outside, "
                "and the engine, which is made later, gives all ranks rank 0's"
            )
            advice = "call init_distributed(), and share_weights() with the model, before it is copied"
            yield Note(Code.PLAIN_AGREEMENT, home, call, message, advice)

    def _given(self, function: cst.FunctionDef, file: SourceFile) -> Iterator[str]:
        flow = self._facts.flow
        for parameter in parameters(function):
            if any(
                flow.values(name, file) & self._modules
                for name in file.nodes(cst.Name, below=function.body) if name.value == parameter.name.value
            ):  # fmt: skip
                yield parameter.name.value

    def _follows(self, copying: cst.FunctionDef, function: cst.FunctionDef) -> bool:
        return copying is function or self._facts.flow.callers.reaches(id(function), copying)
