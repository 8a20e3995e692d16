"""The values that expressions may have, given what the variables of the program hold."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ds_migrate.plain.dataflow.branches.set_names import latest_value
from ds_migrate.plain.dataflow.calls.copies import Copies
from ds_migrate.plain.dataflow.calls.given_parameters import are_parameters
from ds_migrate.plain.dataflow.calls.partial_calls import LAMBDA, as_partial, called_by_partial
from ds_migrate.plain.dataflow.calls.returned_parameters import ParameterReturn
from ds_migrate.plain.dataflow.classes import Classes
from ds_migrate.plain.dataflow.containers.container_items import ContainerItems, item_name
from ds_migrate.plain.dataflow.containers.mappings import is_mapping_call
from ds_migrate.plain.dataflow.lookup.definitions import SUBMODULES
from ds_migrate.plain.dataflow.lookup.factories import Factories, Factory
from ds_migrate.plain.dataflow.lookup.imported_modules import ImportedModules, leading_text
from ds_migrate.plain.dataflow.lookup.looked_up_names import LookedUpNames
from ds_migrate.plain.dataflow.lookup.registries import Registries
from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.plain.dataflow.torch_names import (
    CAST,
    FLUENT,
    NAMED_TUPLE,
    SAME_MODULE,
    WRAPPERS,
    is_optimizer_name,
    kind_made_by,
)
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, Variable, deeper, of_kind
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.syntax.nodes import argument, single_index
from ds_migrate.syntax.source import SourceFile

_INSTANTIATE = frozenset({"hydra.utils.instantiate", "hydra.utils.call"})  # what their first argument names
RESULTS_OF_UNKNOWN: Variable = (-1, "results of unknown calls")  # holds something once these have separate values
UNKNOWN = frozenset({Value(Kind.EXTERNAL, 0, "?")})
_KEPT_IN_MODULES = (Kind.OPTIMIZER, Kind.SCHEDULE, Kind.SCALER)  # in their attributes, beside parts
_COPIES = frozenset({"list", "tuple", "sorted", "reversed"})


class Expressions:
    """Expressions of a program.

    Attributes:
        has_settled: whether variables hold all that they may, so that each answer is final.
        registries: of the program, once its names are bound.
    """

    def __init__(self, scopes: Mapping[int, Scopes], variables: Variables, modules: ImportedModules) -> None:
        self.variables = variables
        self._modules = modules
        self.classes = Classes(variables, self.values)
        self.copies = Copies(variables, self.values)
        self._names = LookedUpNames(variables, self.classes)
        self.items = ContainerItems(variables, self.copies, self._names)
        self.factories = Factories(variables)
        self.has_settled = False
        self.registries: Registries | None = None
        self._open: set[Factory | int] = set()  # factories and functions that are looked into, and may call themselves
        self._scopes = scopes

    def values(self, node: cst.CSTNode, file: SourceFile) -> Values:
        """Return what an expression may be."""
        if type(node) is cst.Name:  # as in dotted()
            held = self.variables.held(self._scopes[id(file)].variable(node.value, node))
            return held if len(held) == 1 else self._latest(held, node, file)
        if self._open and not self.has_settled:  # an answer without what is looked into is not kept
            return self._evaluate(node, file)
        question = "values", id(node), id(file)
        _, found = self.variables.derived(question, lambda: (node, self._evaluate(node, file)))  # the node keeps its id
        return found

    def _latest(self, held: Values, node: cst.Name, file: SourceFile) -> Values:
        """Return what a name may be, of several loaders that it is set to in turn the last one."""
        loaders = of_kind(held, Kind.LOADER)
        latest = latest_value(node, file, self._scopes[id(file)]) if len(loaders) > 1 else None
        return held if latest is None else (held - loaders) | (held & self.values(latest, file))

    def _evaluate(self, node: cst.CSTNode, file: SourceFile) -> Values:
        if type(node) is cst.Attribute:
            bases, name = self.values(node.value, file), node.attr.value
            return NOTHING.union(*[self._member(base, name) for base in bases])
        if type(node) is cst.Call:
            if is_mapping_call(node) and not of_kind(self.values(node.func, file), Kind.FUNCTION, Kind.CLASS):
                return frozenset({self.variables.make(Kind.MAPPING, node, file)})
            return self._result(node, file)
        if type(node) in (cst.Tuple, cst.List, cst.ListComp, cst.GeneratorExp):
            return frozenset({self.variables.make(Kind.SEQUENCE, node, file)})
        if type(node) in (cst.Dict, cst.DictComp):
            return frozenset({self.variables.make(Kind.MAPPING, node, file)})
        if type(node) is cst.Subscript:
            index = single_index(node)
            return NOTHING if index is None else self.items.at(self.values(node.value, file), index)
        if type(node) is cst.IfExp:
            return self.values(node.body, file) | self.values(node.orelse, file)
        if type(node) is cst.BooleanOperation:
            return self.values(node.left, file) | self.values(node.right, file)
        if type(node) is cst.Lambda and as_partial(node) is not None:
            return frozenset({self.variables.make(Kind.OBJECT, node, file, LAMBDA)})
        if type(node) is cst.NamedExpr:
            return self.values(node.value, file)
        if type(node) is cst.BinaryOperation and isinstance(node.operator, cst.Add):
            return of_kind(self.values(node.left, file) | self.values(node.right, file), Kind.SEQUENCE)
        return NOTHING

    # -- parts of values -------------------------------------------------------------------------------------------

    def _member(self, base: Value, name: str) -> Values:
        if base.kind is Kind.PART:
            return deeper(base, f"{base.name}.{name}")
        if base.kind is Kind.EXTERNAL:
            return self.variables.held((SUBMODULES, f"{base.name}.{name}")) or deeper(base, f"{base.name}.{name}")
        if base.kind is Kind.FILE:
            if name == "__dict__":
                return frozenset({base})
            return self.variables.held((base.key, name))
        if base.kind in (Kind.INSTANCE, Kind.CLASS):
            held = self.variables.held(self.classes.attribute(base.key, name))
            return held | self._methods(base.key, name)
        if base.kind is Kind.SCHEDULE and base.of:
            return self._methods(base.of, name)
        if base.kind is Kind.OPTIMIZER and name == "__class__":
            return self._optimizer_classes(frozenset({base}))
        if base.kind is Kind.MAPPING and base.name and not hasattr(dict, name):
            methods = self._methods(base.of, name) if base.of else NOTHING
            return methods or self.items.by_key(base, item_name(name)) or deeper(base, name)
        if base.kind not in (Kind.MODULE, Kind.OBJECT):
            return NOTHING
        held = self.variables.held(self.classes.attribute(base.key, name))
        if base.of and base.kind is Kind.MODULE:
            held |= of_kind(self.variables.held(self.classes.attribute(base.of, name)), *_KEPT_IN_MODULES)
        if self.copies.origin(base) is not None:
            held |= self.items.named(base, f".{name}")
        if base.of and base.kind is Kind.MODULE and self.classes.method(base.of, name) is not None:
            return held | self._methods(base.of, name)
        return held | {base if name == "module" else Value(Kind.PART, base.key, name)}

    def _optimizer_classes(self, values: Values) -> Values:
        """Return the classes of the optimizers among values, of which ``type(optimizer)(...)`` makes another one."""
        makers = [(self.variables.node(value), self.variables.file(value)) for value in of_kind(values, Kind.OPTIMIZER)]
        return NOTHING.union(*[self.values(made.func, file) for made, file in makers if isinstance(made, cst.Call)])

    def _methods(self, owner: int, name: str) -> Values:
        """Return the method of a class that a name means, or what it returns where it is a property."""
        method = self.classes.method(owner, name)
        if method is None:
            return NOTHING
        return self.variables.held((method.key, "return")) if self.classes.is_property(method) else frozenset({method})

    # -- results of calls ------------------------------------------------------------------------------------------

    def _result(self, call: cst.Call, file: SourceFile) -> Values:
        if isinstance(call.func, cst.Name) and call.func.value == "super":
            outside = list(file.ancestors(call))
            classes = (a for a in outside if isinstance(a, cst.ClassDef) and not any(b in outside for b in a.bases))
            around = next(classes, None)
            bases = self.classes.bases(id(around)) if around is not None else ()
            return frozenset(Value(Kind.INSTANCE, base) for base in bases)
        found: set[Value] = set()
        callees = self.values(call.func, file)
        builtin = call.func.value if isinstance(call.func, cst.Name) and not callees else ""
        if builtin == "eval":
            return self._evaluated(call, file)
        if builtin == "type" and len(call.args) == 1:
            return self._optimizer_classes(self.values(call.args[0].value, file))
        if builtin == "list" and not call.args:
            return frozenset({self.variables.make(Kind.SEQUENCE, call, file)})
        if builtin in _COPIES and call.args:
            found |= of_kind(self.values(call.args[0].value, file), Kind.SEQUENCE)
        for callee in map(self.classes.as_method, callees - of_kind(callees, Kind.PART)):
            if self.classes.is_attribute_dict(callee) and all(arg.keyword is not None for arg in call.args):
                found.add(self.variables.make(Kind.MAPPING, call, file, callee.name or "dict", callee.key))
                continue
            chosen = self.chosen_by(callee, call, file)
            if chosen is None:
                found |= self._returned_by(callee, call, call, file)
                continue
            choices, given = chosen
            made = frozenset(v for choice in choices for v in self._returned_by(choice, given, call, file))
            found |= made or {self.variables.make(Kind.OBJECT, call, file)}
        if isinstance(call.func, cst.Attribute):
            name = call.func.attr.value
            if name in FLUENT:
                found |= of_kind(self.values(call.func.value, file), Kind.MODULE, Kind.OBJECT)
                found -= of_kind(frozenset(found), Kind.PART)
            if name in ("get", "pop") and call.args:
                found |= self.items.at(self.values(call.func.value, file), call.args[0].value)
            if name == "__getattribute__" and len(call.args) == 1:  # as getattr() does
                found |= self._names.attributes(self.values(call.func.value, file), call.args[0].value)
        # An object that this call alone is known by.
        if not found and (of_kind(callees, Kind.PART) or (not callees and self.variables.held(RESULTS_OF_UNKNOWN))):
            found.add(self.variables.make(Kind.OBJECT, call, file))
        if self.registries is not None and of_kind(callees, Kind.METHOD):
            return self.registries.found_in(call, frozenset(found), file)
        return frozenset(found)

    def chosen_by(self, callee: Value, call: cst.Call, file: SourceFile) -> tuple[Values, cst.Call] | None:
        """Return what a call has a factory choose, with the call of that; None where no factory is called."""
        if callee.kind is Kind.EXTERNAL and callee.name in _INSTANTIATE and call.args:
            return UNKNOWN, self.factories.without_config(call)
        if callee.kind is Kind.OBJECT:
            return called_by_partial(callee, call, file, self.variables, self.values)
        factory = self.factories.of(callee) if callee.kind in (Kind.FUNCTION, Kind.METHOD) else None
        if factory is None:
            return None
        if not factory.namespace:
            return self._looked_up(factory), self.factories.given(factory, call)
        namespace = factory.namespace_at(call, file)
        owners = of_kind(self.values(*namespace), Kind.EXTERNAL, Kind.FILE) if namespace is not None else NOTHING
        return (self._names.attributes(owners, None), self.factories.given(factory, call)) if owners else None

    def _looked_up(self, factory: Factory) -> Values:
        """Return what a factory may call that no parameter of it shows."""
        if factory in self._open:
            return UNKNOWN
        self._open.add(factory)
        found = of_kind(
            self.values(factory.chooser, factory.file), Kind.CLASS, Kind.FUNCTION, Kind.METHOD, Kind.EXTERNAL
        )
        self._open.discard(factory)
        return found or UNKNOWN

    def _returned_by(self, callee: Value, given: cst.Call, call: cst.Call, file: SourceFile) -> Values:
        """Return what a callee returns that is given the arguments of one call, and known by another."""
        if callee.kind is Kind.EXTERNAL:
            return self._made_by_library(callee.name, given, call, file)
        if callee.kind is Kind.OBJECT and callee.name == NAMED_TUPLE:
            return frozenset({self.variables.make(Kind.OBJECT, call, file)})
        if callee.kind in (Kind.FUNCTION, Kind.METHOD):
            returned = self._handed_back(callee, given, file)
            if returned is None:
                returned = self.variables.held((callee.key, "return"))
            return frozenset(self.copies.of(value, callee.key, file, call) for value in returned)
        return frozenset({self._instance(callee, call, file)}) if callee.kind is Kind.CLASS else NOTHING

    def _handed_back(self, callee: Value, call: cst.Call, file: SourceFile) -> Values | None:
        """Return what a call gives a function that returns just that, moved or wrapped; None for all others."""
        owner, function = self.variables.file(callee), self.variables.node(callee)
        assert isinstance(function, cst.FunctionDef)
        if callee.key in self._open:
            return None
        self._open.add(callee.key)
        returned = ParameterReturn(function, owner, self.values)
        place = self.variables.derived(("returned parameter", callee.key), returned.find)
        self._open.discard(callee.key)
        if place is None or any(arg.star for arg in call.args):
            return None
        index, name = place
        arg = argument(call, None if index is None else index - (callee.kind is Kind.METHOD), name)
        return self.values(arg.value, file) if arg is not None else None

    def _made_by_library(self, name: str, given: cst.Call, call: cst.Call, file: SourceFile) -> Values:
        first = given.args[0].value if given.args and not given.args[0].star else None
        if name in ("getattr", "builtins.getattr") and first is not None:
            owners, written = self.values(first, file), given.args[1].value if len(given.args) > 1 else None
            if self.factories.has_chooser(call, file):
                owners -= of_kind(owners, Kind.EXTERNAL, Kind.FILE)  # which each call of the factory has chosen
            return self._names.attributes(owners, written)
        if name == "vars" and first is not None:
            owners = of_kind(self.values(first, file), Kind.EXTERNAL, Kind.FILE)
            namespaces = frozenset(v for owner in owners for v in self._member(owner, "__dict__"))
            return namespaces or frozenset({self.variables.make(Kind.OBJECT, call, file)})
        if name == "importlib.import_module":
            return self._modules.find(given, file, self._scopes[id(file)]) or UNKNOWN
        if name == CAST:
            value = argument(given, 1, "val")
            return self.values(value.value, file) if value is not None else NOTHING
        if (name in WRAPPERS or name in SAME_MODULE) and given.args:
            module = argument(given, 0, "module") or argument(given, 0, "model")
            return self.values(module.value, file) if module is not None else NOTHING
        return frozenset({self.variables.make(self._kind_made_by(name, given, file), call, file, name)})

    def _kind_made_by(self, name: str, given: cst.Call, file: SourceFile) -> Kind:
        """Return the kind of what a name of a library makes of its arguments."""
        if name != "?" and not is_optimizer_name(name):
            return kind_made_by(name)
        params = argument(given, 0, "params") or argument(given, None, "params")
        is_given_parameters = params is not None and are_parameters(params.value, self._scopes[id(file)])
        if name != "?":
            return Kind.OPTIMIZER if is_given_parameters and params is given.args[0] else kind_made_by(name)
        if is_given_parameters:
            return Kind.OPTIMIZER
        scheduled = argument(given, 0, "optimizer") or argument(given, None, "optimizer")
        held = self.values(scheduled.value, file) if scheduled is not None else NOTHING
        return Kind.SCHEDULE if of_kind(held, Kind.OPTIMIZER) else Kind.OBJECT

    def _evaluated(self, call: cst.Call, file: SourceFile) -> Values:
        """Return the names that ``eval("optim." + name)`` may mean."""
        begin = leading_text(call.args[0].value) if call.args else ""
        first, *rest = begin.split(".")[:-1] or ("",)
        found = self.variables.held(self._scopes[id(file)].variable(first, call)) if first else NOTHING
        for name in rest:
            found = frozenset(v for base in found for v in self._member(base, name))
        return self._names.attributes(found, None) or UNKNOWN

    def _instance(self, callee: Value, call: cst.Call, file: SourceFile) -> Value:
        owner, node = self.variables.file(callee), self.variables.node(callee)
        assert isinstance(node, cst.ClassDef)
        kind, name = self.classes.kind_of_objects(node, owner), node.name.value
        if kind is Kind.INSTANCE:
            return Value(kind, callee.key, name)
        has_methods = kind in (Kind.MODULE, Kind.SCHEDULE)
        return self.variables.make(kind, call, file, name, callee.key if has_methods else 0)
