"""The classes of a program: what they are built on, their attributes and methods."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import ATTRIBUTE_DICTS, kind_made_by
from ds_migrate.plain.dataflow.values import Kind, Value, Values, Variable, of_kind
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.plain.reachability import reachable
from ds_migrate.syntax.nodes import body_of, docstring, dotted, elements, targets, without_index
from ds_migrate.syntax.source import SourceFile

Evaluate = Callable[[cst.CSTNode, SourceFile], Values]  # expression, file -> what it may be
PROPERTIES = ("property", "cached_property", "functools.cached_property", "abstractproperty", "abc.abstractproperty")
_DICTS = frozenset({"dict", "OrderedDict", "collections.OrderedDict"})
_MODULES = ("Module", "Sequential", "ModuleList")
_DEPTH = 8
_LONGEST = 40  # characters of a string that may name an attribute


def is_decorated(function: cst.FunctionDef, name: str) -> bool:
    """Return whether a function has a decorator that is a bare name, such as ``staticmethod``."""
    return any(dotted(decorator.decorator) == name for decorator in function.decorators)


class Classes:
    """The hierarchy of classes, as far as it is known.

    Args:
        variables: of the program.
        evaluate: returns what the expression of a base class may be.
    """

    def __init__(self, variables: Variables, evaluate: Evaluate) -> None:
        self._variables = variables
        self._evaluate = evaluate
        self._own_methods: dict[str, dict[int, Value]] = {}  # by name and class
        self._named_in: dict[str, dict[int, bool]] = {}  # by name, the classes with it, and whether they assign it
        self._all: set[int] = set()
        self._class_names: set[str] = set()
        self._properties: dict[str, dict[int, str]] = {}  # by name and function: the attributes that they return
        self._open: set[tuple[int, str]] = set()  # attributes that are being looked into, and may be of bases

    def add_method(self, owner: int, name: str, method: Value) -> None:
        self._own_methods.setdefault(name, {}).setdefault(owner, method)

    def add_property(self, name: str, function: cst.FunctionDef, file: SourceFile) -> None:
        """Add a property, with the attribute that it returns, as in ``return self._optimizer``."""
        first = function.params.params[0].name.value if function.params.params else ""
        returned = {dotted(value) or "" for value in file.returned(function)}
        owner, _, attribute = returned.pop().rpartition(".") if len(returned) == 1 else ("", "", "")
        self._properties.setdefault(name, {})[id(function)] = attribute if owner == first and attribute != name else ""

    def is_property(self, method: Value) -> bool:
        """Return whether a method is a property, whose name means what it returns."""
        return method.key in self._properties.get(method.name, ())

    def add_class(self, node: cst.ClassDef, file: SourceFile) -> None:
        """Add a class with the names in it, of which some are attributes that it assigns."""
        self._all.add(id(node))
        self._class_names.add(node.name.value)
        names = {n.value for n in file.nodes(cst.Name, below=node)}
        names |= {str(n.evaluated_value) for n in file.nodes(cst.SimpleString, below=node) if len(n.value) < _LONGEST}
        assigned = {
            element.attr.value
            for statement in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=node)
            for target in targets(statement)
            for element in elements(target)
            if isinstance(element, cst.Attribute)
        }
        for name in names:
            self._named_in.setdefault(name, {})[id(node)] = name in assigned

    def is_module(self, node: cst.ClassDef, file: SourceFile) -> bool:
        """Return whether a class is built on ``torch.nn.Module``, as far as the program shows."""
        return self.kind_of_objects(node, file) is Kind.MODULE

    def is_optimizer(self, node: cst.ClassDef, file: SourceFile) -> bool:
        """Return whether a class is built on ``torch.optim.Optimizer``."""
        names = self._base_names(node, file)
        return any(name.startswith("torch.optim.") and kind_made_by(name) is Kind.OPTIMIZER for name in names)

    def kind_of_objects(self, node: cst.ClassDef, file: SourceFile) -> Kind:
        """Return the kind of the objects of a class: modules, optimizers, schedules, loaders, or anything else."""
        names = self._base_names(node, file)
        if any(name.rpartition(".")[2] in _MODULES or name.startswith("torch.nn.") for name in names):
            return Kind.MODULE
        if any(name.endswith("PreTrainedModel") for name in names):  # of transformers
            return Kind.MODULE
        made = [kind_made_by(name) for name in names if name.startswith("torch.optim.")]
        if Kind.OPTIMIZER in made or Kind.SCHEDULE in made:
            return Kind.OPTIMIZER if Kind.OPTIMIZER in made else Kind.SCHEDULE
        return Kind.LOADER if any(name.rpartition(".")[2] == "DataLoader" for name in names) else Kind.INSTANCE

    def is_attribute_dict(self, callee: Value) -> bool:
        """Return whether a call of this makes a dict whose items are attributes, too."""
        if callee.kind is not Kind.CLASS:
            return callee.kind is Kind.EXTERNAL and callee.name in ATTRIBUTE_DICTS
        file, node = self._definition(callee.key)
        if not any(dotted(base.value) in _DICTS for base in node.bases):
            return False
        assigned = {dotted(target) for line in file.nodes(cst.Assign, below=node) for target in targets(line)}
        looks_up = callee.key in self._own_methods.get("__getattr__", ())
        return looks_up or bool(assigned & {"__getattr__", "self.__dict__"})

    def bases(self, key: int) -> list[int]:
        """Return the classes of the program that a class is built on directly."""
        file, node = self._definition(key)
        return [
            v.key
            for base in node.bases
            for v in sorted(
                of_kind(self._evaluate(without_index(base.value), file), Kind.CLASS), key=self._variables.place
            )
            if v.key != key
        ]

    def root(self, key: int) -> int:
        """Return the outermost class of the program that a class is built on: all below it share attributes."""
        return self._variables.derived(("root", key), lambda: self._find_root(key))

    def _find_root(self, key: int) -> int:
        seen = [key]
        while bases := [base for base in self.bases(seen[-1]) if base not in seen]:
            seen.append(bases[0])
        return seen[-1]

    def attribute(self, owner: int, name: str) -> Variable:
        """Return the variable that an attribute is: that of the attribute which it returns, for a property."""
        is_class = self._variables.class_of(owner) is not None
        if is_class and name in self._properties:
            method = self.method(owner, name)
            name = (self._properties[name].get(method.key) if method is not None else None) or name
        return (self._keeper(owner, name) if is_class else owner), f".{name}"

    def keepers(self, owner: int) -> set[int]:
        """Return the classes whose variables the attributes of a class may be."""
        return {self.root(owner), *self._family(owner)}

    def _keeper(self, owner: int, name: str) -> int:
        """Return the class whose variable an attribute of a class is: all that share it have one."""
        root, place = self.root(owner), (owner, name)
        if sum(self._named_in.get(name, {}).values()) < 2 or place in self._open:
            return root
        self._open.add(place)
        first = self._variables.derived(("separate", root, name), lambda: self._separate_classes(root, name))
        self._open.discard(place)
        family = self._family(owner) if first else []
        return next((cls for cls in first if cls in family), root)

    def _separate_classes(self, root: int, name: str) -> list[int]:
        """Return the classes below a root that each have a separate attribute of a name, which no other class names."""
        named = {cls: assigns for cls, assigns in self._named_in[name].items() if self.root(cls) == root}
        making = [cls for cls, assigns in named.items() if assigns]
        first = [cls for cls in making if not any(other != cls and other in self._family(cls) for other in making)]
        families = [self._family(cls) for cls in named]
        is_shared = any(len(set(first) & set(family)) != 1 for family in families)
        return [] if len(first) < 2 or is_shared else first

    def _family(self, key: int) -> list[int]:
        """Return a class and all that it is built on."""
        return self._variables.derived(("family", key), lambda: reachable([key], self.bases))

    def files_of_relatives(self, key: int) -> Collection[SourceFile]:
        """Return the files of a class and of all that are built on it, or share something that they are built on."""
        return {self._definition(cls)[0] for cls in self.relatives(key)}

    def relatives(self, key: int) -> frozenset[int]:
        """Return a class with all that are built on it, or share something that they are built on."""
        return self._variables.derived(("relatives", key), lambda: self._find_relatives(key))

    def _find_relatives(self, key: int) -> frozenset[int]:
        families = [set(self._family(cls)) for cls in self._all]
        found, size = {key}, 0
        while len(found) > size:
            size = len(found)
            found.update(*(family for family in families if family & found))
        return frozenset(found)

    def has_known_bases(self, key: int) -> bool:
        """Return whether everything that a class is built on directly is a known class: of the program or a library."""
        file, node = self._definition(key)
        return all(self._is_known_base(without_index(base.value), file) for base in node.bases)

    def _is_known_base(self, base: cst.BaseExpression, file: SourceFile) -> bool:
        values = self._evaluate(base, file)
        if not values:
            return isinstance(base, cst.Name) and hasattr(builtins, base.value)
        return all(v.kind is Kind.CLASS or (v.kind is Kind.EXTERNAL and self._is_of_library(v.name)) for v in values)

    def _is_of_library(self, name: str) -> bool:
        """Return whether a class is a library's, and not perhaps one of the program that is imported by another way."""
        return name != "?" and name.rpartition(".")[2] not in self._class_names

    def external_bases(self, key: int) -> list[str]:
        """Return the names, in libraries, of what a class is built on, however indirectly."""
        file, node = self._definition(key)
        return self._base_names(node, file)

    def method(self, key: int, name: str) -> Value | None:
        """Return the method of a class, of one that it is built on, or of one that is built on it."""
        own = self._own_methods.get(name)
        if own is None:
            return None
        return self._variables.derived(("method", key, name), lambda: self._find_method(key, own))

    def as_method(self, callee: Value) -> Value:
        """Return what a call of a value runs: of an instance, its method ``__call__``."""
        return (self.method(callee.key, "__call__") or callee) if callee.kind is Kind.INSTANCE else callee

    def _find_method(self, key: int, own: dict[int, Value]) -> Value | None:
        family = self._family(key)
        found = next(filter(None, map(own.get, family)), None)
        if found is None or self.is_abstract(found):
            root = self.root(key)
            found = next((own[cls] for cls in own if cls not in family and self.root(cls) == root), found)
        return found

    def is_abstract(self, method: Value) -> bool:
        """Return whether a method leaves its work to those that replace it: it does nothing, or raises an error."""
        found = self._variables.function_of(method.key)
        if found is None:
            return False
        first = [s for s in body_of(found[1]) if s is not docstring(found[1])][:1]
        small = first[0].body[0] if first and isinstance(first[0], cst.SimpleStatementLine) else None
        return (
            not first
            or isinstance(small, (cst.Pass, cst.Raise))
            or (isinstance(small, cst.Expr) and isinstance(small.value, cst.Ellipsis))
        )

    def _base_names(self, node: cst.ClassDef, file: SourceFile, depth: int = 0) -> list[str]:
        """Return the external names that a class is built on, however indirectly."""
        found: list[str] = []
        for base in node.bases:
            values = self._evaluate(without_index(base.value), file)  # of Base[T]
            for value in sorted(values, key=lambda v: (self._variables.place(v), v.name)):
                if value.kind is Kind.EXTERNAL:
                    found.append(value.name)
                elif value.kind is Kind.CLASS and depth < _DEPTH:
                    owner, inner = self._definition(value.key)
                    found += self._base_names(inner, owner, depth + 1)
        return found

    def _definition(self, key: int) -> tuple[SourceFile, cst.ClassDef]:
        found = self._variables.class_of(key)
        assert found is not None
        return found
