"""DistributedDataParallel and DataParallel: they go, and what was saved and loaded through them stays as it was."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.set_names import latest_value
from ds_migrate.plain.dataflow.torch_names import COPY, WRAPPERS
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.ranks.unwrapping.wrapped_values import Wrapped, WrappedValues, WrapperCall
from ds_migrate.plain.ranks.unwrapping.wrapper_tests import is_found_of_class
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.nodes import argument, dotted, targets
from ds_migrate.syntax.source import SourceFile


class Wrappers:
    """The wrappers around the modules of engines.

    Attributes:
        calls: those that wrap, with the argument that is the module.
    """

    def __init__(self, facts: LoopFacts) -> None:
        self._flow = facts.flow
        self._modules: Values = frozenset(value for site in facts.sites for value in site.of)
        self.calls = list(self._find_calls())
        self._values = frozenset(v for file, call, _ in self.calls for v in self._flow.values(call, file))
        self._bare = frozenset(v for file, _, module in self.calls for v in self._within(module.value, file))
        self._add_copies()
        self._wrapped = WrappedValues(facts, self.calls, self._values)

    def _find_calls(self) -> Iterator[WrapperCall]:
        for file, call in self._flow.nodes(cst.Call):
            module = argument(call, 0, "module")
            is_wrapper = module is not None and self._flow.is_call_of(call, file, WRAPPERS)
            if is_wrapper and module is not None and self._flow.values(call, file) & self._modules:
                yield file, call, module

    def _within(self, module: cst.BaseExpression, file: SourceFile) -> Values:
        """Return what a wrapper is given, where the line that made it shows that."""
        latest = latest_value(module, file, self._flow.scopes(file)) if isinstance(module, cst.Name) else None
        return self._flow.values(latest or module, file)

    def _add_copies(self) -> None:
        """Add the copies of modules in their wrappers, which are made without these now."""
        for file in self._flow.files.values() if self.calls else ():
            for call in file.nodes(cst.Call):
                is_copy = bool(call.args) and self._flow.is_call_of(call, file, COPY)
                if is_copy and self._flow.values(call.args[0].value, file) & self._values:
                    self._values |= self._flow.values(call, file)
        self._modules |= self._values

    def stay_around(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression may also be a module of no engine, which keeps its wrapper."""
        return any(
            self._flow.is_call_of(call, other, WRAPPERS) and self._flow.values(call, other) & others
            for others in (self._flow.values(node, file) - self._modules,)
            for other, call in self._flow.nodes(cst.Call)
        )

    def inner_modules(self) -> Iterator[tuple[SourceFile, cst.Attribute, bool]]:
        """Yield ``model.module`` of modules that are wrapped somewhere, and whether others there have one too."""
        for file, node in self._flow.attributes("module"):
            values = of_kind(self._flow.values(node.value, file), Kind.MODULE, Kind.OBJECT)
            if values <= self._modules and values & self._values and not is_found_of_class(node, file):
                yield file, node, any(self._holds_module(value) for value in values - self._bare)

    def _holds_module(self, value: Value) -> bool:
        """Return whether the class of a module gives it an attribute that has the name of that of wrappers."""
        return bool(value.of and self._flow.held(self._flow.classes.attribute(value.of, "module")))

    def forwards(self) -> Iterator[tuple[SourceFile, cst.Attribute]]:
        """Yield ``model.forward`` where it is called of modules in their wrappers.

        ``forward()`` of a wrapper calls its module, with all hooks; that of the module runs none of them.
        """
        for file in self._flow.files.values() if self.calls else ():
            for node in file.attributes_by_name.get("forward", ()):
                call = file.parent(node)
                if not isinstance(call, cst.Call) or call.func is not node:
                    continue
                values = of_kind(self._flow.values(node.value, file), Kind.MODULE, Kind.OBJECT)
                if values & self._modules and self._wrapped.of(node.value, file) is not Wrapped.NEVER:
                    yield file, node

    def states(self) -> Iterator[tuple[SourceFile, cst.Call, Wrapped]]:
        """Yield ``state_dict()`` and ``load_state_dict(state)`` of modules in their wrappers."""
        for file in self._flow.files.values() if self.calls else ():
            for name, count in (("state_dict", 0), ("load_state_dict", 1)):
                for node in file.attributes_by_name.get(name, ()):
                    call = file.parent(node)
                    if not isinstance(call, cst.Call) or call.func is not node or len(call.args) < count:
                        continue
                    values = of_kind(self._flow.values(node.value, file), Kind.MODULE, Kind.OBJECT)
                    wrapped = self._wrapped.of(node.value, file) if values & self._modules else Wrapped.NEVER
                    if not values and isinstance(node.value, cst.Subscript) and self._may_hold(node.value.value, file):
                        wrapped = Wrapped.SOMETIMES
                    if wrapped is not Wrapped.NEVER:
                        yield file, call, wrapped

    def _may_hold(self, container: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a container gets a module in its wrapper by an unknown key: ``models[name] = model``."""
        variable, name = self._flow.variable(container, file), (dotted(container) or "").rpartition(".")[2]
        return bool(name) and any(
            isinstance(target, cst.Subscript)
            and (dotted(target.value) or "").rpartition(".")[2] == name
            and self._flow.variable(target.value, other) == variable
            and self._flow.values(line.value, other) & self._modules
            and self._wrapped.of(line.value, other) is not Wrapped.NEVER
            for other, line in self._flow.nodes(cst.Assign)
            for target in targets(line)
        )

    def named(self) -> Iterator[tuple[SourceFile, cst.Call]]:
        """Yield the calls that name the parts of modules in their wrappers, where more of a name counts than its end.

        ``named_parameters()`` of the wrapper puts ``module.`` before each name.
        """
        for file in self._flow.files.values() if self.calls else ():
            for name in ("named_parameters", "named_buffers", "named_modules"):
                for node in file.attributes_by_name.get(name, ()):
                    call = file.parent(node)
                    if not isinstance(call, cst.Call) or call.func is not node or call.args or _only_ends(call, file):
                        continue
                    values = of_kind(self._flow.values(node.value, file), Kind.MODULE, Kind.OBJECT)
                    if values & self._modules and self._wrapped.of(node.value, file) is Wrapped.ALWAYS:
                        yield file, call


def _only_ends(call: cst.Call, file: SourceFile) -> bool:
    """Return whether all that a loop looks at in names are their ends, and parts in which ``module`` does not occur."""
    loop = file.parent(call)
    if not isinstance(loop, (cst.For, cst.CompFor)) or loop.iter is not call or not isinstance(loop.target, cst.Tuple):
        return False
    name = dotted(loop.target.elements[0].value)
    within = loop.body if isinstance(loop, cst.For) else file.parent(loop)
    return all(
        _is_end_or_part(use, file)
        for use in file.nodes(cst.Name, below=within)
        if use.value == name and use is not loop.target.elements[0].value
    )


def _is_end_or_part(name: cst.Name, file: SourceFile) -> bool:
    around = file.parent(name)
    if isinstance(around, cst.Attribute):
        return around.attr.value == "endswith"
    test = file.parent(around) if isinstance(around, cst.ComparisonTarget) else None
    is_part = isinstance(around, cst.ComparisonTarget) and isinstance(around.operator, (cst.In, cst.NotIn))
    if not is_part or not isinstance(test, cst.Comparison):
        return False
    parts = [test.left] if isinstance(test.left, cst.SimpleString) else file.nodes(cst.SimpleString)
    return all("module" not in part.value for part in parts)
