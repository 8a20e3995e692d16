"""The arguments that calls give to the parameters of a program's functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.calls.spawning import is_spawn, started, started_arguments
from ds_migrate.plain.dataflow.classes import is_decorated
from ds_migrate.plain.dataflow.expressions import Expressions
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, Variable, of_kind
from ds_migrate.syntax.nodes import parameters, positional
from ds_migrate.syntax.source import SourceFile

_Given = tuple[int, str | None, cst.Arg]  # function, parameter (None behind a star), argument; or *args, item, argument


class Arguments:
    """The arguments of calls, by the parameters that they are for."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._known: dict[cst.Call, list[_Given]] = {}  # those of calls, once values are settled

    def passed(self, call: cst.Call, file: SourceFile) -> Iterator[tuple[Variable, cst.BaseExpression]]:
        """Yield the parameters that a call of the program's functions gives values to, and the expressions of these.

        What ``*args`` and ``**kwargs`` get is an item of theirs.
        """
        for owner, variable, arg in self._all(call, file):
            if variable is not None:
                yield (owner, variable), arg.value

    def given(self, call: cst.Call, function: cst.FunctionDef, parameter: str, file: SourceFile) -> cst.Arg | None:
        """Return the argument that a call gives for a parameter, or the star that may; None where it gives none."""
        for key, name, arg in self._all(call, file):
            if key == id(function) and name in (parameter, None):
                return arg
        return None

    def all_of(self, call: cst.Call, file: SourceFile) -> Iterator[tuple[Variable, cst.BaseExpression, SourceFile]]:
        """Yield the parameters of what a call runs with the expressions that they get, and the files of these.

        Those that the call leaves out get their default values, where these are names.
        """
        called = list(self._called(call, file))
        for key, args, skipped in called:
            for owner, name, arg in self._bound(key, args, skipped):
                if name is not None:
                    yield (owner, name), arg.value, file
        for key, args, skipped in called:
            known = self._expressions.variables.function_of(key)
            if known is None:
                continue
            home, function = known
            named = [p for p in parameters(function) if isinstance(p.default, (cst.Name, cst.Attribute))]
            given = {name for _, name, _ in self._bound(key, args, skipped)} if named else {None}
            for parameter in named if None not in given else ():
                if parameter.name.value not in given and parameter.default is not None:
                    yield (key, parameter.name.value), parameter.default, home

    def _all(self, call: cst.Call, file: SourceFile) -> Iterable[_Given]:
        if not self._expressions.has_settled:
            return self._find(call, file)
        if call not in self._known:
            self._known[call] = list(self._find(call, file))
        return self._known[call]

    def _find(self, call: cst.Call, file: SourceFile) -> Iterator[_Given]:
        for key, args, skipped in self._called(call, file):
            yield from self._bound(key, args, skipped)

    def _called(self, call: cst.Call, file: SourceFile) -> Iterator[tuple[int, Sequence[cst.Arg], int]]:
        """Yield the functions that a call runs, with their arguments and how many parameters get none of these."""
        callees = self._expressions.values(call.func, file)
        target = started(call, callees)
        workers = self._expressions.values(target, file) if target is not None else NOTHING
        for worker in of_kind(workers, Kind.FUNCTION, Kind.METHOD):
            skipped = int(is_spawn(callees)) + self._receivers(worker)
            yield worker.key, started_arguments(call, callees), skipped
        for callee in callees - of_kind(callees, Kind.PART):
            yield from self._run_by(callee, call.args)
            chosen = self._expressions.chosen_by(callee, call, file)
            choices, given = chosen if chosen is not None else (NOTHING, call)
            for choice in choices:
                yield from self._run_by(choice, given.args)

    def _run_by(self, callee: Value, args: Sequence[cst.Arg]) -> Iterator[tuple[int, Sequence[cst.Arg], int]]:
        if callee.kind is Kind.FUNCTION:
            yield callee.key, args, 0
        elif (method := self._method(callee)) is not None:
            yield method.key, args, self._receivers(method)

    def _receivers(self, callee: Value) -> int:
        """Return how many parameters get the object or class that a function is called on."""
        known = self._expressions.variables.function_of(callee.key)
        is_static = known is not None and is_decorated(known[1], "staticmethod")
        return int(callee.kind is Kind.METHOD and not is_static)

    def unpacked(self, call: cst.Call, file: SourceFile) -> Iterator[tuple[Variable, Values]]:
        """Yield the parameters that a call gives the items of a dict by ``**``, with these."""
        whole = [arg.value for arg in call.args if arg.star == "**"]
        mappings = [v for node in whole for v in of_kind(self._expressions.values(node, file), Kind.MAPPING)]
        for key, _, _ in self._called(call, file) if mappings else ():
            known = self._expressions.variables.function_of(key)
            if known is None:
                continue
            params = known[1].params
            named = {param.name.value for param in (*params.params, *params.kwonly_params)}
            for mapping in mappings:
                for item in self._expressions.variables.names(mapping.key):
                    name, values = item[2:-2], self._expressions.items.named(mapping, item)
                    if name in named:
                        yield (key, name), values
                    elif params.star_kwarg is not None and item[:2] == "['":
                        yield (id(params.star_kwarg), item), values

    def first_parameters(self, callees: Values) -> Iterator[Variable]:
        """Yield the parameters that get the first argument of a call of these."""
        for callee in of_kind(callees, Kind.FUNCTION, Kind.METHOD):
            known = self._expressions.variables.function_of(callee.key)
            for param in positional(known[1])[self._receivers(callee) :][:1] if known is not None else ():
                yield callee.key, param.name.value

    def class_receivers(self, call: cst.Call, file: SourceFile) -> Iterator[tuple[Variable, Value]]:
        """Yield the first parameters of the class methods that a call runs, with the class that each is called on."""
        if not isinstance(call.func, cst.Attribute):
            return
        for owner in of_kind(self._expressions.values(call.func.value, file), Kind.CLASS):
            method = self._expressions.classes.method(owner.key, call.func.attr.value)
            known = self._expressions.variables.function_of(method.key) if method is not None else None
            if method is not None and known is not None and is_decorated(known[1], "classmethod"):
                yield from (((method.key, param.name.value), owner) for param in positional(known[1])[:1])

    def _method(self, callee: Value) -> Value | None:
        """Return the method that a call of a value runs."""
        method, callee = self._expressions.classes.method, self._expressions.classes.as_method(callee)
        if callee.kind is Kind.METHOD:
            return callee
        if callee.kind is Kind.CLASS:
            return method(callee.key, "__init__")
        return method(callee.of, "forward") if callee.kind is Kind.MODULE and callee.of else None

    def _bound(self, key: int, args: Sequence[cst.Arg], skipped: int) -> Iterator[_Given]:
        found = self._expressions.variables.function_of(key)
        assert found is not None
        params = found[1].params
        names = [p.name.value for p in positional(found[1])][skipped:]
        named = {p.name.value for p in (*params.params, *params.kwonly_params)}
        for index, arg in enumerate(args):
            if arg.star:
                yield key, None, arg
                return
            if arg.keyword is not None:
                if arg.keyword.value in named:
                    yield key, arg.keyword.value, arg
                elif params.star_kwarg is not None:
                    yield id(params.star_kwarg), f"[{arg.keyword.value!r}]", arg
            elif index < len(names):
                yield key, names[index], arg
            elif isinstance(params.star_arg, cst.Param):
                yield id(params.star_arg), f"[{index - len(names)}]", arg
