"""The values that differ by rank once each rank trains on a share of the data: batches, losses, what is made of them.

The order of statements is ignored, as it is in the flow of values: a variable that differs anywhere differs everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import libcst as cst

from ds_migrate.plain.dataflow.body_names import BodyNames
from ds_migrate.plain.dataflow.branches.jumps import Jumps
from ds_migrate.plain.dataflow.calls.returned_tuples import is_plain_tuple, returns_tuples
from ds_migrate.plain.dataflow.containers.mappings import literal_index, named_items
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.foreign_gradients import is_foreign_gradient
from ds_migrate.plain.dataflow.lookup.options import Options
from ds_migrate.plain.dataflow.values import Kind, Values, Variable, of_kind
from ds_migrate.syntax.nodes import children, dotted, indices_of, last_name, parameters, targets
from ds_migrate.syntax.source import SourceFile

_ROUNDS = 12
_Assignment = cst.Assign | cst.AnnAssign | cst.AugAssign | cst.NamedExpr
# Attributes and methods that are the same on each rank: shares have as many batches, of as many samples.
_SAME = frozenset({"shape", "device", "dtype", "ndim", "size", "dim", "numel", "batch_size", "dataset", "__class__"})
_SAME_CALLS = frozenset({"len", "isinstance", "type", "hasattr", "callable", "id"})
# These have separate state, which is followed elsewhere or equal on each rank.
_OWN_STATE = (Kind.INSTANCE, Kind.SCHEDULE, Kind.SCALER, Kind.OPTIMIZER, Kind.MODULE)
# Methods that keep nothing of their arguments: of progress bars, and those of tensors and texts that return new ones.
_KEEP_NOTHING = frozenset(
    {"set_description", "set_description_str", "set_postfix", "set_postfix_str", "expand", "expand_as", "view",
     "view_as", "reshape", "reshape_as", "repeat", "repeat_interleave", "gather", "index_select", "masked_fill",
     "masked_select", "matmul", "mm", "bmm", "mul", "div", "dot", "to", "type_as", "eq", "ne", "ge", "gt", "le", "lt",
     "new_tensor", "new_zeros", "new_ones", "forward", "format", "join"}
)  # fmt: skip
_CLOCKS = frozenset(
    {"time.time", "time.perf_counter", "time.monotonic", "time.process_time", "datetime.datetime.now"}
)  # fmt: skip


class RankValues:
    """The variables and expressions of a program that differ by rank.

    Args:
        flow: of the program.
        loaders: those of which each rank gets a share.
        modules: those that train on them: their running statistics differ.
        agreed: the conditions, by identity, that rank 0 decides for all.
    """

    def __init__(self, flow: Flow, loaders: Values, modules: Values, agreed: Collection[int] = ()) -> None:
        self._flow = flow
        self._loaders = loaders
        self._modules = modules
        self._agreed = agreed
        self._engine_modules = {value.key for value in modules}
        self._options = Options(flow)
        self._body_names = {id(file): BodyNames(file, flow.scopes(file)) for file in flow.files.values()}
        self._jumps = {id(file): Jumps(file) for file in flow.files.values()}
        self._known: set[Variable] = set(_unknown_inputs(flow)) if loaders else set()
        self._readers: dict[Variable, set[int]] = {}
        self._reader: int | None = None
        self._answers: dict[int, tuple[cst.CSTNode, bool]] = {}  # with the nodes, which keeps their ids
        self._settle([give for file in flow.files.values() for give in self._gives(file)])

    def _settle(self, gives: Sequence[Callable[[], Iterator[Variable]]]) -> None:
        """Find variables until nothing changes, each time with those nodes that have read one which changed since."""
        outdated = set(range(len(gives)))
        for _ in range(_ROUNDS):
            for number, give in enumerate(gives):
                if number in outdated:
                    outdated.remove(number)
                    self._reader = number
                    for variable in give():
                        if variable not in self._known:
                            self._known.add(variable)
                            outdated |= self._readers.pop(variable, set())
        self._reader = None

    def _are_known(self, *variables: Variable) -> bool:
        if not self._known.isdisjoint(variables):
            return True
        if self._reader is not None:
            for variable in variables:
                self._readers.setdefault(variable, set()).add(self._reader)
        return False

    def differs(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether an expression may have another value on another rank."""
        if self._reader is not None:
            return self._find_difference(node, file)
        if id(node) not in self._answers:
            self._answers[id(node)] = node, self._find_difference(node, file)
        return self._answers[id(node)][1]

    def _find_difference(self, node: cst.CSTNode, file: SourceFile) -> bool:
        if type(node) is cst.Name:  # as in dotted()
            owner, name = self._read(node, file)
            return self._are_known((owner, name), (owner, f"{name}[]")) or self.is_share(node, file)
        if type(node) is cst.Attribute:
            if node.attr.value in _SAME or self._is_of_library(node, file) or self._options.holds(node, file):
                return False
            if _is_data(node):
                return self.differs(node.value, file)
            if is_foreign_gradient(node, file, self._flow, self._engine_modules) and self._loaders:
                return True
            return self._are_known(_attribute(node)) or self.is_share(node, file) or self.differs(node.value, file)
        if type(node) is cst.Call:
            return self._call_differs(node, file)
        if type(node) is cst.Subscript and (key := _literal_key(node)) is not None:
            owner, name = self._read(key[0], file)
            return self._are_known((owner, name), (owner, f"{name}[{key[1]}]")) or self.is_share(node, file)
        if type(node) is cst.Lambda or (type(node) is cst.Comparison and self._asks_for_loader(node, file)):
            return False
        return any(self.differs(child, file) for child in children(node))

    def is_share(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is a loader of which each rank gets a share."""
        return self.are_shares(self._flow.values(node, file))

    def are_shares(self, values: Values) -> bool:
        """Return whether one of these is a loader of shares, or what a call of a function that makes one returns."""
        may_be_one = self._flow.copies.may_be_one
        return any(may_be_one(value, loader) for value in of_kind(values, Kind.LOADER) for loader in self._loaders)

    def _is_of_library(self, node: cst.Attribute, file: SourceFile) -> bool:
        """Return whether an attribute is a name of a library, such as ``np.sum``, and not of an object."""
        values = self._flow.values(node, file)
        return bool(values) and values == of_kind(values, Kind.EXTERNAL)

    def _asks_for_loader(self, node: cst.Comparison, file: SourceFile) -> bool:
        """Return whether an expression asks whether there is a loader, or a gradient: on each rank, or on none."""
        is_none = any(dotted(target.comparator) == "None" for target in node.comparisons)
        is_gradient = isinstance(node.left, cst.Attribute) and node.left.attr.value == "grad"
        return is_none and len(node.comparisons) == 1 and (is_gradient or self.is_share(node.left, file))

    def _call_differs(self, call: cst.Call, file: SourceFile) -> bool:
        if dotted(call.func) in _SAME_CALLS:
            return False
        if (name := _named_attribute(call, "getattr")) is not None and self._are_known((0, f".{name}")):
            return True
        if self.is_share(call, file):
            return True
        callees = self._flow.values(call.func, file)
        if any(c.kind is Kind.EXTERNAL and c.name in _CLOCKS for c in callees) or callees & self._modules:
            return True
        own = self._functions_of(call, file)
        if own:
            return any(self._are_known((key, "return")) for key in own)
        if any(c.kind is Kind.CLASS for c in callees):
            return False
        return any(self.differs(part, file) for part in (call.func, *(arg.value for arg in call.args)))

    def _functions_of(self, call: cst.Call, file: SourceFile) -> list[int]:
        """Return the functions of the program that a call may run."""
        return [key for c in self._flow.values(call.func, file) for key in self._function(c.kind, c.key, c.of)]

    def _function(self, kind: Kind, key: int, of: int) -> Iterator[int]:
        """Yield the function of the program that runs when a value is called."""
        if kind in (Kind.FUNCTION, Kind.METHOD):
            yield key
        owner, name = (key, "__call__") if kind is Kind.INSTANCE else (of, "forward")
        if kind is Kind.INSTANCE or (kind is Kind.MODULE and of):
            method = self._flow.classes.method(owner, name)
            if method is not None:
                yield method.key

    def _gives(self, file: SourceFile) -> Iterator[Callable[[], Iterator[Variable]]]:
        """Yield for each node of a file how to find the variables to which it gives what differs."""
        for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr):
            if node.value is not None:
                yield partial(self._assigned, node, file)
        for node in file.nodes(cst.For, cst.CompFor):
            yield partial(self._of_loop, node.target, node.iter, file)
        for node in file.nodes(cst.WithItem):
            if node.asname is not None:
                yield partial(self._entered, node.item, node.asname.name, file)
        for node in file.nodes(cst.Return):
            function = file.function(node)
            if node.value is not None and function is not None:
                yield partial(self._returned, node, function, file)
        for call in file.nodes(cst.Call):
            yield partial(self._passed, call, list(self._flow.passed(call, file)), file)
            if _named_attribute(call, "setattr") is not None:
                yield partial(self._set_by_name, call, file)

    def _assigned(self, node: _Assignment, file: SourceFile) -> Iterator[Variable]:
        assert node.value is not None
        depends = self.depends(node, file)
        given = depends or self.differs(node.value, file)
        for target in targets(node) if not isinstance(node, cst.NamedExpr) else [node.target]:
            parts = self._differing_items(target, node.value, file) if given and not depends else None
            if given or any(self.differs(index, file) for index in indices_of(target)):  # counts[label] += 1
                for part in [target] if parts is None else parts:
                    yield from self._set(part, node, file)

    def _differing_items(
        self, target: cst.BaseExpression, value: cst.BaseExpression, file: SourceFile
    ) -> list[cst.BaseExpression] | None:
        """Return the targets that get what differs of a tuple, or of one that functions return; None where unknown."""
        if not isinstance(target, cst.Tuple):
            return None
        names = [element.value for element in target.elements]
        if is_plain_tuple(value, len(names)):
            given = [element.value for element in value.elements]
            return [name for name, item in zip(names, given, strict=True) if self.differs(item, file)]
        functions = self._functions_of(value, file) if isinstance(value, cst.Call) else []
        if not functions or not all(returns_tuples(key, len(names), self._flow) for key in functions):
            return None
        return [
            name for index, name in enumerate(names)
            if self._are_known(*((key, f"return[{index}]") for key in functions))
        ]  # fmt: skip

    def _set_by_name(self, call: cst.Call, file: SourceFile) -> Iterator[Variable]:
        if self.differs(call.args[2].value, file) or self.depends(call, file):
            yield 0, f".{_named_attribute(call, 'setattr')}"

    def _entered(self, item: cst.BaseExpression, target: cst.CSTNode, file: SourceFile) -> Iterator[Variable]:
        if self.differs(item, file):
            yield from self._variables(target, file)

    def _returned(self, node: cst.Return, function: cst.FunctionDef, file: SourceFile) -> Iterator[Variable]:
        assert node.value is not None
        depends = self.depends(node, file)
        if not (depends or self.differs(node.value, file)):
            return
        yield id(function), "return"
        for index, element in enumerate(node.value.elements if isinstance(node.value, cst.Tuple) else ()):
            if depends or self.differs(element.value, file):
                yield id(function), f"return[{index}]"

    def _passed(
        self, call: cst.Call, passed: Sequence[tuple[Variable, cst.BaseExpression]], file: SourceFile
    ) -> Iterator[Variable]:
        yield from (variable for variable, given in passed if self.differs(given, file))
        if not passed and any(self.differs(part, file) for part in (*_indices(call), *(a.value for a in call.args))):
            yield from self._keepers(call, file)

    def _keepers(self, call: cst.Call, file: SourceFile) -> Iterator[Variable]:
        """Yield the receiver of an unknown method, which may keep its arguments: ``losses.append(loss)``."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value in _KEEP_NOTHING:
            return
        function = file.function(call)
        if function is not None and function.name.value == "forward" and not isinstance(file.parent(call), cst.Expr):
            return  # the forward pass of a part
        if not of_kind(self._flow.values(call.func.value, file), *_OWN_STATE):
            yield from self._variables(call.func.value, file)

    def _of_loop(self, target: cst.CSTNode, over: cst.BaseExpression, file: SourceFile) -> Iterator[Variable]:
        if not (self.differs(over, file) or self.is_share(over, file)):
            return
        parts = target.elements if isinstance(target, cst.Tuple) else ()
        if isinstance(over, cst.Call) and dotted(over.func) == "zip" and len(over.args) == len(parts):
            for element, arg in zip(parts, over.args, strict=True):
                yield from self._of_loop(element.value, arg.value, file)
            return
        if isinstance(target, cst.Tuple) and len(target.elements) == 2 and self._counts(over, file):
            target = target.elements[1].value
        yield from self._variables(target, file)

    def _counts(self, over: cst.BaseExpression, file: SourceFile, known: frozenset[str] = frozenset()) -> bool:
        """Return whether a loop counts what it runs over, by ``enumerate()``, in a progress bar or not."""
        if isinstance(over, cst.Call) and over.args:
            name = last_name(over.func)
            return name == "enumerate" or (name == "tqdm" and self._counts(over.args[0].value, file, known))
        if not isinstance(over, cst.Name) or over.value in known:
            return isinstance(over, cst.Name)
        scope = self._flow.scopes(file).owner(over.value, over)
        values = list(file.values_of({over.value}, scope))
        return bool(values) and all(self._counts(value, file, known | {over.value}) for value in values)

    def _read(self, name: cst.Name, file: SourceFile) -> Variable:
        """Return the variable that a name is where it is read: in the body of a loop, that of the loop alone."""
        return next(self._written(name, file))

    def _written(self, name: cst.Name, file: SourceFile) -> Iterator[Variable]:
        """Yield the variables that a name is where it is set or changed: in the body of a loop, both."""
        statement = self._body_names[id(file)].binding(name)
        if statement is not None:
            yield id(statement), name.value
        yield self._flow.scopes(file).variable(name.value, name)

    def _variables(self, target: cst.CSTNode, file: SourceFile) -> Iterator[Variable]:
        if isinstance(target, cst.Name):
            values = self._flow.values(target, file)
            is_definition = bool(of_kind(values, Kind.EXTERNAL, Kind.FILE, Kind.CLASS, Kind.FUNCTION))
            if not is_definition or self._flow.scopes(file).assigned(target):  # as loss = np.inf
                yield from self._written(target, file)
        elif isinstance(target, cst.Attribute):
            if _is_data(target):
                yield from self._variables(target.value, file)
            elif not self._is_of_library(target, file):
                yield _attribute(target)
        elif isinstance(target, (cst.Subscript, cst.StarredElement)):
            yield from self._variables(target.value, file)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                yield from self._variables(element.value, file)

    def _set(self, target: cst.CSTNode, node: _Assignment, file: SourceFile) -> Iterator[Variable]:
        """Yield what an assignment sets: of a dict with literal keys, the items that differ, and that some do."""
        items = named_items(node.value) if isinstance(target, cst.Name) else None
        key = _literal_key(target)
        if isinstance(target, cst.Name) and items is not None and not self.depends(node, file):
            owner, name = self._flow.scopes(file).variable(target.value, target)
            yield owner, f"{name}[]"
            yield from ((owner, f"{name}[{key}]") for key, value in items.items() if self.differs(value, file))
        elif key is not None:
            for owner, name in self._written(key[0], file):
                yield from ((owner, f"{name}[]"), (owner, f"{name}[{key[1]}]"))
        else:
            yield from self._variables(target, file)

    def depends(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a condition that differs decides if a statement runs."""
        conditions = (*_conditions(node, file), *self._jumps[id(file)].conditions(node))
        return any(self.differs(outer.test, file) for outer in conditions if id(outer) not in self._agreed)


def _unknown_inputs(flow: Flow) -> Iterator[Variable]:
    """Yield the arguments of ``forward()`` where no call is found, as of a part of ``nn.Sequential``: of batches."""
    given = {
        variable
        for file in flow.files.values() for call in file.nodes(cst.Call) for variable, _ in flow.passed(call, file)
    }  # fmt: skip
    for file in flow.files.values():
        for function in file.nodes(cst.FunctionDef):
            inputs = [(id(function), p.name.value) for p in parameters(function)[1:]]
            if function.name.value == "forward" and not given.intersection(inputs):
                yield from inputs


def _conditions(node: cst.CSTNode, file: SourceFile) -> Iterator[cst.If | cst.While | cst.IfExp]:
    for outer in file.ancestors(node):
        if isinstance(outer, cst.FunctionDef):
            return
        if isinstance(outer, (cst.If, cst.While, cst.IfExp)):
            yield outer


def _literal_key(node: cst.CSTNode) -> tuple[cst.Name, str] | None:
    """Return the variable and the key of an item: of ``state["epoch"]``."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name):
        return None
    key = literal_index(node)
    return (node.value, key) if isinstance(key, str) else None


def _indices(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the index of the item whose method is called: of ``lists[label].append(i)``."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    for element in owner.slice if isinstance(owner, cst.Subscript) else ():
        if isinstance(element.slice, cst.Index):
            yield element.slice.value


def _is_data(node: cst.Attribute) -> bool:
    """Return whether an attribute is the values of a tensor without its graph, and no attribute of another object."""
    return node.attr.value == "data" and dotted(node.value) != "self"


def _named_attribute(call: cst.Call, function: str) -> str | None:
    """Return the attribute that a call reads or sets by a literal name, as ``setattr(stopper, "stop", True)``."""
    if dotted(call.func) != function or len(call.args) < (3 if function == "setattr" else 2):
        return None
    name = call.args[1].value
    return str(name.evaluated_value) if isinstance(name, cst.SimpleString) else None


def _attribute(node: cst.Attribute) -> Variable:
    """Return an attribute of any object as a variable: objects are not distinguished."""
    return 0, f".{node.attr.value}"
