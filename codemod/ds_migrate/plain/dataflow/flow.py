"""The flow of values through a program, until nothing more is found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import libcst as cst

from ds_migrate.plain.dataflow.copies import Copies, separable_functions
from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.plain.dataflow.spawning import is_spawn, started, started_arguments
from ds_migrate.plain.dataflow.torch_names import FLUENT, SAME_MODULE, WRAPPERS, is_optimizer_name, kind_made_by
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, Variable, of_kind
from ds_migrate.syntax.nodes import argument, dotted
from ds_migrate.syntax.source import SourceFile

_ROUNDS = 12
Resolve = Callable[[Path, str, str, int], Path | None]  # file, module, name, leading dots -> file


class Flow:
    """The values of every variable of a program.

    Args:
        files: the files of the program.
        resolve: finds the file that an import means.
    """

    def __init__(self, files: Mapping[Path, SourceFile], resolve: Resolve) -> None:
        self.files = files
        self._resolve = resolve
        self._held: dict[Variable, Values] = {}
        self._names: dict[int, set[str]] = {}  # of the variables of each owner
        self._nodes: dict[int, tuple[SourceFile, cst.CSTNode]] = {}
        self._scopes = {id(file): Scopes(file) for file in files.values()}
        self._by_module = {id(file.module): file for file in files.values()}
        self._links: list[tuple[Variable, Variable]] = []  # names imported from files of the program
        self._stars: list[tuple[int, int]] = []  # scopes with all names of another
        self._roots: dict[int, int] = {}  # of this round, as are the methods
        self._methods: dict[tuple[int, str], tuple[Value, ...]] = {}
        self._own_methods: dict[tuple[int, str], Value] = {}  # by class and name
        self.copies = Copies()
        self._bind_definitions()
        self._settle()
        self.copies.functions = separable_functions(self)
        if self.copies.functions:
            for known in (self._held, self._names, self._links, self._stars):
                known.clear()
            self._bind_definitions()
            self._settle()

    # -- questions -------------------------------------------------------------------------------------------------

    def scopes(self, file: SourceFile) -> Scopes:
        return self._scopes[id(file)]

    def held(self, variable: Variable) -> Values:
        """Return what a variable may hold."""
        return self._held.get(variable, NOTHING)

    def node(self, value: Value) -> cst.CSTNode:
        """Return the node that makes a value."""
        return self._nodes[value.key][1]

    def file(self, value: Value) -> SourceFile:
        """Return the file of the node that makes a value."""
        return self._nodes[value.key][0]

    def items_of(self, value: Value) -> set[Value]:
        """Return everything that a sequence or mapping may hold."""
        names = self._names.get(value.key, ())
        held = {v for name in names if name[:1] == "[" for v in self._held[value.key, name]}
        origin = self.copies.origin(value)
        if origin is None:
            return held
        whole, file, call = origin
        return held | self.copies.all_of(frozenset(self.items_of(whole)), file, call, self)

    def _item_of(self, value: Value, name: str) -> Values:
        """Return one item of a sequence or mapping, or an attribute, by its variable's name."""
        held = self._held.get((value.key, name), NOTHING)
        origin = self.copies.origin(value)
        if origin is None:
            return held
        whole, file, call = origin
        return held | self.copies.all_of(self._item_of(whole, name), file, call, self)

    def add_node(self, key: int, file: SourceFile, node: cst.CSTNode) -> None:
        """Name a further value that a node makes."""
        self._nodes[key] = file, node

    def node_of(self, key: int) -> tuple[SourceFile, cst.CSTNode] | None:
        return self._nodes.get(key)

    def is_module_class(self, node: cst.ClassDef, file: SourceFile) -> bool:
        """Return whether a class is built on ``torch.nn.Module``, as far as the program shows."""
        return any(
            name.rpartition(".")[2] in ("Module", "Sequential", "ModuleList") or name.startswith("torch.nn.")
            for name in self._base_names(node, file)
        )

    def is_optimizer_class(self, node: cst.ClassDef, file: SourceFile) -> bool:
        """Return whether a class is built on ``torch.optim.Optimizer``."""
        return any(
            name == "torch.optim.Optimizer" or name.startswith("torch.optim.") for name in self._base_names(node, file)
        )

    def is_call_of(self, call: cst.Call, file: SourceFile, names: Collection[str]) -> bool:
        """Return whether a call may be one of these functions of a library, by their dotted names."""
        return any(v.kind is Kind.EXTERNAL and v.name in names for v in self.values(call.func, file))

    def variable(self, node: cst.CSTNode, file: SourceFile) -> Variable | None:
        """Return the variable that a name or attribute means; None where the owner of an attribute is not one value."""
        if isinstance(node, cst.Name):
            return self.scopes(file).variable(node.value, node)
        if isinstance(node, cst.Attribute):
            owners = {self._owner_key(value) for value in self.values(node.value, file)} - {None}
            if len(owners) == 1:
                owner = owners.pop()
                assert owner is not None
                return self.attribute(owner, node.attr.value)
        return None

    # -- expressions -----------------------------------------------------------------------------------------------

    def values(self, node: cst.CSTNode, file: SourceFile) -> Values:
        """Return what an expression may be."""
        if isinstance(node, cst.Name):
            return self._held.get(self.scopes(file).variable(node.value, node), NOTHING)
        if isinstance(node, cst.Attribute):
            return frozenset(v for base in self.values(node.value, file) for v in self._member(base, node.attr.value))
        if isinstance(node, cst.Call):
            return self._called(node, file)
        if isinstance(node, (cst.Tuple, cst.List)):
            return frozenset({self._made(Kind.SEQUENCE, node, file)})
        if isinstance(node, cst.Dict):
            return frozenset({self._made(Kind.MAPPING, node, file)})
        if isinstance(node, cst.Subscript):
            return self._item(node, file)
        if isinstance(node, cst.IfExp):
            return self.values(node.body, file) | self.values(node.orelse, file)
        if isinstance(node, cst.BooleanOperation):
            return self.values(node.left, file) | self.values(node.right, file)
        if isinstance(node, cst.NamedExpr):
            return self.values(node.value, file)
        return NOTHING

    def _member(self, base: Value, name: str) -> Values:
        if base.kind is Kind.EXTERNAL:
            return frozenset({Value(Kind.EXTERNAL, 0, f"{base.name}.{name}")})
        if base.kind is Kind.FILE:
            return self._held.get((base.key, name), NOTHING)
        if base.kind in (Kind.INSTANCE, Kind.CLASS):
            held = self._held.get(self.attribute(base.key, name), NOTHING)
            method = self.method(base.key, name)
            return held | {method} if method is not None else held
        if base.kind in (Kind.MODULE, Kind.OBJECT, Kind.PART):
            held = self._attribute_of(base, name) if base.kind is not Kind.PART else NOTHING
            if base.of and base.kind is Kind.MODULE:
                method = self.method(base.of, name)
                if method is not None:
                    return held | {method}
            if name == "module" and base.kind is not Kind.PART:
                return held | {base}
            path = f"{base.name}.{name}" if base.kind is Kind.PART else name
            return held | {Value(Kind.PART, base.key, path)}
        return NOTHING

    def _attribute_of(self, base: Value, name: str) -> Values:
        held = self._held.get(self.attribute(base.key, name), NOTHING)
        return held | self._item_of(base, f".{name}") if self.copies.origin(base) is not None else held

    def _called(self, call: cst.Call, file: SourceFile) -> Values:
        if isinstance(call.func, cst.Name) and call.func.value == "super":
            around = next((a for a in file.ancestors(call) if isinstance(a, cst.ClassDef)), None)
            return frozenset(
                Value(Kind.INSTANCE, base) for base in (self._bases(id(around)) if around is not None else ())
            )
        found: set[Value] = set()
        callees = self.values(call.func, file)
        for callee in callees:
            if callee.kind is Kind.EXTERNAL:
                found |= self._made_by_library(callee.name, call, file)
            elif callee.kind is Kind.FUNCTION or callee.kind is Kind.METHOD:
                returned = self._held.get((callee.key, "return"), NOTHING)
                found |= {self.copies.of(value, callee.key, file, call, self) for value in returned}
            elif callee.kind is Kind.CLASS:
                found.add(self._instance(callee, call, file))
        if isinstance(call.func, cst.Attribute):
            name = call.func.attr.value
            if name in FLUENT:
                owner = self.values(call.func.value, file)
                found |= of_kind(owner, Kind.MODULE, Kind.OBJECT)
                found -= {value for value in found if value.kind is Kind.PART}
            if name == "get" and call.args:
                found |= self._items(call.func.value, call.args[0].value, file)
        if not callees and not found and self._is_early:
            return NOTHING
        if (not callees and not found) or (any(callee.kind is Kind.PART for callee in callees) and not found):
            found.add(self._made(Kind.OBJECT, call, file))
        return frozenset(found)

    def _made_by_library(self, name: str, call: cst.Call, file: SourceFile) -> Values:
        first = call.args[0].value if call.args else None
        if name in ("getattr", "builtins.getattr") and first is not None:
            return frozenset(
                Value(Kind.EXTERNAL, 0, f"{value.name}.?")
                for value in self.values(first, file)
                if value.kind is Kind.EXTERNAL
            )
        if (name in WRAPPERS or name in SAME_MODULE) and call.args:
            module = argument(call, 0, "module") or argument(call, 0, "model")
            return self.values(module.value, file) if module is not None else NOTHING
        is_given_parameters = (
            isinstance(first, cst.Call)
            and isinstance(first.func, cst.Attribute)
            and first.func.attr.value == "parameters"
        )
        kind = Kind.OPTIMIZER if is_given_parameters and is_optimizer_name(name) else kind_made_by(name)
        return frozenset({self._made(kind, call, file, name)})

    def _instance(self, callee: Value, call: cst.Call, file: SourceFile) -> Value:
        _, node = self._nodes[callee.key]
        owner = self._nodes[callee.key][0]
        assert isinstance(node, cst.ClassDef)
        if self.is_module_class(node, owner):
            return self._made(Kind.MODULE, call, file, node.name.value, callee.key)
        if self.is_optimizer_class(node, owner):
            return self._made(Kind.OPTIMIZER, call, file, node.name.value)
        if any(name.rpartition(".")[2] == "DataLoader" for name in self._base_names(node, owner)):
            return self._made(Kind.LOADER, call, file, node.name.value)
        return Value(Kind.INSTANCE, self._root(callee.key), node.name.value)

    def _item(self, node: cst.Subscript, file: SourceFile) -> Values:
        index = node.slice[0].slice if len(node.slice) == 1 else None
        if not isinstance(index, cst.Index):
            return NOTHING
        return self._items(node.value, index.value, file)

    def _items(self, container: cst.BaseExpression, index: cst.BaseExpression, file: SourceFile) -> Values:
        found: set[Value] = set()
        for value in self.values(container, file):
            if value.kind in (Kind.MAPPING, Kind.SEQUENCE):
                if isinstance(index, (cst.SimpleString, cst.Integer)):
                    found |= self._item_of(value, _item_name(index))
                else:
                    found |= self.items_of(value)
            elif value.kind is Kind.EXTERNAL:
                found.add(Value(Kind.EXTERNAL, 0, f"{value.name.removesuffix('.__dict__')}.?"))
            elif value.kind in (Kind.MODULE, Kind.PART):
                found.add(Value(Kind.PART, value.key, f"{value.name}[]"))
        return frozenset(found)

    # -- rounds ----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let values flow until nothing changes, at first without the results of calls that may still be found."""
        self._is_early = True
        self._flow_on()
        self._is_early = False
        self._flow_on()

    def _flow_on(self) -> None:
        for _ in range(_ROUNDS):
            self._changed = False
            self._roots.clear()
            self._methods.clear()
            for variable, other in self._links:
                self._add(variable, self.held(other))
            for scope, other_scope in self._stars:
                for name in list(self._names.get(other_scope, ())):
                    self._add((scope, name), self._held[other_scope, name])
            for file in self.files.values():
                for flow in self._flows(file):
                    self._add(*flow)
            if not self._changed:
                return

    def _add(self, variable: Variable, values: Values) -> None:
        known = self._held.get(variable, NOTHING)
        if not values <= known:
            self._held[variable] = known | values
            self._names.setdefault(variable[0], set()).add(variable[1])
            self._changed = True

    def _flows(self, file: SourceFile) -> Iterator[tuple[Variable, Values]]:
        for node in file.nodes(cst.Assign):
            values = self.values(node.value, file)
            for target in node.targets:
                yield from self._into(target.target, values, file)
        for node in file.nodes(cst.AnnAssign, cst.NamedExpr):
            if node.value is not None:
                yield from self._into(node.target, self.values(node.value, file), file)
        for node in file.nodes(cst.For):
            items = {v for value in self.values(node.iter, file) for v in self.items_of(value)}
            yield from self._into(node.target, frozenset(items), file)
        for node in file.nodes(cst.WithItem):
            if node.asname is not None:
                yield from self._into(node.asname.name, self.values(node.item, file), file)
        for node in file.nodes(cst.Return):
            function = file.function(node)
            if function is not None and node.value is not None:
                yield (id(function), "return"), self.values(node.value, file)
        for node in file.nodes(cst.Tuple, cst.List, cst.Dict):
            yield from self._elements(node, file)
        for node in file.nodes(cst.Call):
            for variable, given in self.passed(node, file):
                yield variable, self.values(given, file)

    def _into(self, target: cst.CSTNode, values: Values, file: SourceFile) -> Iterator[tuple[Variable, Values]]:
        if isinstance(target, cst.Name):
            function = file.function(target)
            owner = self.scopes(file).variable(target.value, target)
            if function is None:
                around = next((a for a in file.ancestors(target) if isinstance(a, cst.ClassDef)), None)
                if around is not None:
                    owner = self.attribute(id(around), target.value)
            yield owner, values
        elif isinstance(target, cst.Attribute):
            for base in self.values(target.value, file):
                owner_key = self._owner_key(base)
                if owner_key is not None:
                    yield self.attribute(owner_key, target.attr.value), values
        elif isinstance(target, (cst.Tuple, cst.List)):
            for index, element in enumerate(target.elements):
                held = {v for s in values if s.kind is Kind.SEQUENCE for v in self._item_of(s, f"[{index}]")}
                yield from self._into(element.value, frozenset(held), file)
        elif isinstance(target, cst.Subscript) and len(target.slice) == 1:
            index_node = target.slice[0].slice
            if isinstance(index_node, cst.Index) and isinstance(index_node.value, (cst.SimpleString, cst.Integer)):
                for base in of_kind(self.values(target.value, file), Kind.MAPPING, Kind.SEQUENCE):
                    yield (base.key, _item_name(index_node.value)), values

    def _elements(self, node: cst.Tuple | cst.List | cst.Dict, file: SourceFile) -> Iterator[tuple[Variable, Values]]:
        if isinstance(node, cst.Dict):
            for pair in node.elements:
                if isinstance(pair, cst.DictElement) and isinstance(pair.key, cst.SimpleString):
                    yield (id(node), _item_name(pair.key)), self.values(pair.value, file)
            return
        for index, element in enumerate(node.elements):
            if isinstance(element, cst.Element):
                yield (id(node), f"[{index}]"), self.values(element.value, file)

    def passed(self, call: cst.Call, file: SourceFile) -> Iterator[tuple[Variable, cst.BaseExpression]]:
        """Yield the parameters that a call of the program's functions gives values to, and the expressions of these."""
        callees = self.values(call.func, file)
        target = started(call, callees)
        for callee in of_kind(self.values(target, file), Kind.FUNCTION) if target is not None else ():
            yield from self._bind(callee.key, started_arguments(call, callees), int(is_spawn(callees)))
        for callee in callees:
            if callee.kind is Kind.FUNCTION:
                yield from self._bind(callee.key, call.args, 0)
            elif callee.kind is Kind.METHOD:
                yield from self._bind(callee.key, call.args, 1)
            elif callee.kind is Kind.CLASS:
                yield from self._bind_method(callee.key, "__init__", call)
            elif callee.kind is Kind.INSTANCE:
                yield from self._bind_method(callee.key, "__call__", call)
            elif callee.kind is Kind.MODULE and callee.of:
                yield from self._bind_method(callee.of, "forward", call)

    def _bind_method(self, owner: int, name: str, call: cst.Call) -> Iterator[tuple[Variable, cst.BaseExpression]]:
        method = self.method(owner, name)
        if method is not None:
            yield from self._bind(method.key, call.args, 1)

    def _bind(
        self, function_key: int, args: Sequence[cst.Arg], skipped: int
    ) -> Iterator[tuple[Variable, cst.BaseExpression]]:
        _, function = self._nodes[function_key]
        assert isinstance(function, cst.FunctionDef)
        params = function.params
        positional = [p.name.value for p in (*params.posonly_params, *params.params)][skipped:]
        named = {p.name.value for p in (*params.params, *params.kwonly_params)}
        for index, arg in enumerate(args):
            if arg.star:
                return
            if arg.keyword is not None:
                if arg.keyword.value in named:
                    yield (function_key, arg.keyword.value), arg.value
            elif index < len(positional):
                yield (function_key, positional[index]), arg.value

    # -- definitions -----------------------------------------------------------------------------------------------

    def _bind_definitions(self) -> None:
        self._changed = False
        for path, file in self.files.items():
            self._nodes[id(file.module)] = (file, file.module)
            for node in file.nodes(cst.FunctionDef, cst.ClassDef):
                self._nodes[id(node)] = (file, node)
                kind = Kind.CLASS if isinstance(node, cst.ClassDef) else Kind.FUNCTION
                function = self.scopes(file).function_of(node)
                owner = next((a for a in file.ancestors(node) if isinstance(a, (cst.ClassDef, cst.FunctionDef))), None)
                if isinstance(owner, cst.ClassDef) and kind is Kind.FUNCTION:
                    method = Value(Kind.METHOD, id(node), node.name.value, id(owner))
                    self._own_methods.setdefault((id(owner), node.name.value), method)
                    self._bind_receiver(node, owner)
                    continue
                scope = function if function is not None else file.module
                self._add((id(scope), node.name.value), frozenset({Value(kind, id(node))}))
            self._bind_imports(path, file)

    def _bind_receiver(self, function: cst.FunctionDef, owner: cst.ClassDef) -> None:
        decorators = {dotted(d.decorator) for d in function.decorators}
        first = [*function.params.posonly_params, *function.params.params][:1]
        if first and not decorators & {"staticmethod", "classmethod"}:
            self._add(
                (id(function), first[0].name.value), frozenset({Value(Kind.INSTANCE, id(owner), owner.name.value)})
            )

    def _bind_imports(self, path: Path, file: SourceFile) -> None:
        for node in file.names.import_nodes:
            scope = self.scopes(file).function_of(node) or file.module
            if isinstance(node, cst.Import):
                for alias in node.names:
                    name = dotted(alias.name) or ""
                    bound = alias.evaluated_alias or name.split(".")[0]
                    found = self.module_file(path, name, 0)
                    if found is not None and (alias.evaluated_alias or "." not in name):
                        value = Value(Kind.FILE, id(found.module))
                    else:
                        value = Value(Kind.EXTERNAL, 0, name if alias.evaluated_alias else bound)
                    self._add((id(scope), bound), frozenset({value}))
            else:
                self._bind_from(path, node, id(scope))
        for name in ("getattr", "print"):
            self._add((id(file.module), name), frozenset({Value(Kind.EXTERNAL, 0, name)}))

    def _bind_from(self, path: Path, node: cst.ImportFrom, scope: int) -> None:
        module, level = dotted(node.module) or "", len(node.relative)
        if isinstance(node.names, cst.ImportStar):
            home = self.module_file(path, module, level)
            if home is not None:
                self._stars.append((scope, id(home.module)))
            return
        for alias in node.names:
            name = dotted(alias.name) or ""
            bound = alias.evaluated_alias or name
            submodule = self.module_file(path, f"{module}.{name}" if module else name, level)
            home = self.module_file(path, module, level)
            if submodule is not None:
                self._add((scope, bound), frozenset({Value(Kind.FILE, id(submodule.module))}))
            if home is not None:  # a function may be named like its module
                self._links.append(((scope, bound), (id(home.module), name)))
            elif submodule is None:
                prefix = "." * level + module
                qualified = f"{prefix}.{name}" if module else f"{prefix}{name}"
                self._add((scope, bound), frozenset({Value(Kind.EXTERNAL, 0, qualified)}))

    def module_file(self, importer: Path, module: str, level: int) -> SourceFile | None:
        """Return the file of the program that a module is."""
        found = self._resolve(importer, module, "", level)
        return None if found is None else self.files.get(found)

    # -- classes ---------------------------------------------------------------------------------------------------

    def _made(self, kind: Kind, node: cst.CSTNode, file: SourceFile, name: str = "", of: int = 0) -> Value:
        self._nodes.setdefault(id(node), (file, node))
        return Value(kind, id(node), name, of)

    def _bases(self, key: int) -> list[int]:
        """Return the classes of the program that a class is built on directly."""
        file, node = self._nodes[key]
        assert isinstance(node, cst.ClassDef)
        return [
            v.key for base in node.bases for v in of_kind(self.values(base.value, file), Kind.CLASS) if v.key != key
        ]

    def _base_names(self, node: cst.ClassDef, file: SourceFile, depth: int = 0) -> list[str]:
        """Return the external names that a class is built on, however indirectly."""
        found: list[str] = []
        for base in node.bases:
            for value in self.values(base.value, file):
                if value.kind is Kind.EXTERNAL:
                    found.append(value.name)
                elif value.kind is Kind.CLASS and depth < 8:
                    owner, inner = self._nodes[value.key]
                    assert isinstance(inner, cst.ClassDef)
                    found += self._base_names(inner, owner, depth + 1)
        return found

    def _root(self, key: int) -> int:
        """Return the outermost class of the program that a class is built on: all below it share attributes."""
        if key in self._roots:
            return self._roots[key]
        seen = [key]
        while bases := [base for base in self._bases(seen[-1]) if base not in seen]:
            seen.append(bases[0])
        self._roots[key] = seen[-1]
        return seen[-1]

    def attribute(self, owner: int, name: str) -> Variable:
        is_class = owner in self._nodes and isinstance(self._nodes[owner][1], cst.ClassDef)
        return (self._root(owner) if is_class else owner), f".{name}"

    def _owner_key(self, value: Value) -> int | None:
        if value.kind is Kind.MODULE:
            return value.of or value.key
        return value.key if value.kind in (Kind.INSTANCE, Kind.CLASS, Kind.OBJECT) else None

    def method(self, key: int, name: str) -> Value | None:
        """Return the method of a class, of one that it is built on, or of one that is built on it."""
        known = self._methods.get((key, name))
        if known is None:
            known = self._methods[key, name] = self._found_method(key, name)
        return known[0] if known else None

    def _found_method(self, key: int, name: str) -> tuple[Value, ...]:
        family = [key]
        for known in family:
            family += [base for base in self._bases(known) if base not in family]
        found = next(filter(None, (self._own_methods.get((known, name)) for known in family)), None)
        if found is None:
            root = self._root(key)
            with_it = (cls for cls, method in self._own_methods if method == name and cls not in family)
            found = next((self._own_methods[cls, name] for cls in with_it if self._root(cls) == root), None)
        return (found,) if found is not None else ()


def _item_name(index: cst.SimpleString | cst.Integer) -> str:
    """Return the name of the variable that an item of a container is."""
    return f"[{index.evaluated_value!r}]"
