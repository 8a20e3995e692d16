"""Functions that make what their caller names: ``getattr(module, name)(*args, **kwargs)``, with the caller's module.

Such a function makes as many kinds of objects as it has callers. Each call of it is taken for a call of the class or
function that it chooses there. Where that is found by a config alone, as ``instantiate(config, **kwargs)`` does it, it
is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.classes import is_decorated
from ds_migrate.plain.dataflow.values import Kind, Value
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.syntax.nodes import dotted, last_name, parameter, parameters, positional, targets
from ds_migrate.syntax.source import SourceFile

_HIDDEN = cst.Arg(cst.Name("None"), star="**")  # what a factory gives beside the arguments of its caller


@dataclass(frozen=True, eq=False)
class Factory:
    """A function that returns what a callable makes which it looks up, as by an attribute of its parameter.

    Attributes:
        file: of the function.
        chooser: the expression of the callable, such as the call of ``getattr()``.
        namespace: the parameter whose attribute is called; "" where it is looked up elsewhere.
        call: the call of what is looked up.
        skipped: the number of parameters that calls give no argument for: ``self``.
    """

    function: cst.FunctionDef
    file: SourceFile
    chooser: cst.BaseExpression
    namespace: str
    call: cst.Call
    skipped: int

    def namespace_at(self, call: cst.Call, file: SourceFile) -> tuple[cst.BaseExpression, SourceFile] | None:
        """Return the expression of the namespace that a call gives, or the default one, with its file."""
        given = self._bound(call).get(self.namespace)
        if given is not None:
            return given.value, file
        param = parameter(self.function, self.namespace)
        return (param.default, self.file) if param is not None and param.default is not None else None

    def arguments_of(self, call: cst.Call) -> list[cst.Arg]:
        """Return what a call of the function gives to what it chooses; ``**None`` stands for what is given there."""
        bound, params = self._bound(call), self.function.params
        stars = [_name_of(params.star_arg), _name_of(params.star_kwarg)]
        more = [arg for arg in call.args if not any(arg is known for known in bound.values())]
        found: list[cst.Arg] = []
        for arg in self.call.args:
            name = dotted(arg.value)
            if arg.star == "*" and name == stars[0]:
                found += [one for one in more if one.keyword is None and one.star != "**"]
            elif arg.star != "**" and name in bound:
                found.append(bound[name].with_changes(keyword=arg.keyword, equal=arg.equal))
        found += [one for one in more if one.keyword is not None] if stars[1] is not None else []
        return [*found, _HIDDEN]

    def _bound(self, call: cst.Call) -> dict[str, cst.Arg]:
        """Return the arguments of a call by the parameter that each is for."""
        params = self.function.params
        names = [p.name.value for p in positional(self.function)][self.skipped :]
        named = {p.name.value for p in (*params.params, *params.kwonly_params)}
        found: dict[str, cst.Arg] = {}
        for index, arg in enumerate(call.args):
            if arg.star:
                break
            if arg.keyword is not None and arg.keyword.value in named:
                found[arg.keyword.value] = arg
            elif arg.keyword is None and index < len(names):
                found[names[index]] = arg
        return found


class Factories:
    """The factories of a program."""

    def __init__(self, variables: Variables) -> None:
        self._variables = variables
        self._found: dict[int, Factory | None] = {}
        self._given: dict[tuple[int, int], cst.Call] = {}

    def of(self, callee: Value) -> Factory | None:
        """Return what a function or method makes as its caller chooses; None where it is no factory."""
        if callee.key not in self._found:
            file, node = self._variables.node_of(callee.key) or (None, None)
            self._found[callee.key] = None
            if file is not None and isinstance(node, cst.FunctionDef):
                self._found[callee.key] = _find_factory(node, file, callee.kind is Kind.METHOD)
        return self._found[callee.key]

    def given(self, factory: Factory, call: cst.Call) -> cst.Call:
        """Return the call of what a factory chooses, with the arguments that a call of the factory gives it."""
        place = id(factory), id(call)
        if place not in self._given:
            self._given[place] = cst.Call(call.func, factory.arguments_of(call))
        return self._given[place]

    def without_config(self, call: cst.Call) -> cst.Call:
        """Return the call of what ``instantiate(config, ...)`` chooses."""
        place = 0, id(call)
        if place not in self._given:
            self._given[place] = cst.Call(call.func, [*call.args[1:], _HIDDEN])
        return self._given[place]

    def has_chooser(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call of ``getattr()`` chooses what a factory makes for its callers."""
        factory = self._around(call, file)
        return factory is not None and bool(factory.namespace) and factory.chooser is call

    def makes(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call makes what a factory returns to its callers."""
        factory = self._around(call, file)
        return factory is not None and factory.call is call

    def _around(self, call: cst.Call, file: SourceFile) -> Factory | None:
        function = file.function(call)
        if function is None:
            return None
        is_method = isinstance(file.parent(file.parent(function) or function), cst.ClassDef)
        return self.of(Value(Kind.METHOD if is_method else Kind.FUNCTION, id(function)))


def _find_factory(function: cst.FunctionDef, file: SourceFile, is_method: bool) -> Factory | None:
    values = file.returned(function)  # a partial makes nothing yet
    returned = [value for value in values if not (isinstance(value, cst.Call) and last_name(value.func) == "partial")]
    if len(returned) != 1 or returned[0] is None or file.nodes(cst.Yield, below=function):
        return None
    made = _behind_names(returned[0], function, file)
    if not isinstance(made, cst.Call) or not _are_forwarded(made.args, function):
        return None
    chooser = _behind_names(made.func, function, file)
    if not isinstance(chooser, (cst.Call, cst.Subscript)):
        return None
    namespace = _namespace(chooser, function, file)
    stars = {_name_of(function.params.star_arg), _name_of(function.params.star_kwarg)} - {None}
    if not namespace and not any(arg.star and dotted(arg.value) in stars for arg in made.args):
        return None
    skipped = int(is_method and not is_decorated(function, "staticmethod"))
    return Factory(function, file, chooser, namespace, made, skipped)


def _namespace(chooser: cst.Call | cst.Subscript, function: cst.FunctionDef, file: SourceFile) -> str:
    """Return the parameter of which ``getattr()`` is given an attribute's name; "" where it is none."""
    if not (isinstance(chooser, cst.Call) and dotted(chooser.func) == "getattr" and len(chooser.args) > 1):
        return ""
    name = dotted(chooser.args[0].value)
    is_known = parameter(function, name) is not None and not _assigned(name or "", function, file)
    return name or "" if is_known else ""


def _behind_names(node: cst.BaseExpression, function: cst.FunctionDef, file: SourceFile) -> cst.BaseExpression:
    """Return what a local name is assigned, where that is one expression."""
    for _ in range(2):
        values = _assigned(node.value, function, file) if isinstance(node, cst.Name) else []
        if len(values) != 1:
            break
        node = values[0]
    return node


def _assigned(name: str, function: cst.FunctionDef, file: SourceFile) -> list[cst.BaseExpression]:
    return [
        node.value for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=function)
        if node.value is not None and any(dotted(target) == name for target in targets(node))
    ]  # fmt: skip


def _are_forwarded(args: Sequence[cst.Arg], function: cst.FunctionDef) -> bool:
    """Return whether each argument that is given by position is one that the function is given."""
    names, star = {p.name.value for p in parameters(function)}, _name_of(function.params.star_arg)
    return all(
        arg.keyword is not None or arg.star == "**" or dotted(arg.value) in (names if not arg.star else {star})
        for arg in args
    )


def _name_of(param: cst.Param | cst.ParamStar | cst.MaybeSentinel | None) -> str | None:
    return param.name.value if isinstance(param, cst.Param) else None
