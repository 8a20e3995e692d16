"""Expressions that a rank may leave out: nothing is missed when they are not evaluated."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.properties import properties_by_name
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.syntax.nodes import argument, called_name, dotted, last_name, targets, walk
from ds_migrate.syntax.source import SourceFile

_HARMLESS = frozenset(
    {"format", "item", "join", "len", "round", "str", "int", "float", "time", "get_last_lr", "get_lr", "strftime",
     "range", "sum", "max", "min", "numpy", "cpu", "tolist", "mean", "keys", "items", "values", "upper", "ljust",
     "rjust", "perf_counter", "array", "asarray", "detach", "dirname", "basename", "Path", "dumps", "exp", "log",
     "log2", "log10", "sqrt", "abs", "norm", "std", "var", "argmax", "squeeze", "size", "numel", "count", "get",
     "copy", "tanh", "sigmoid", "clock", "now", "title", "lower", "rstrip", "strip", "replace", "timedelta",
     "gmtime", "localtime", "asctime", "ctime", "today", "isoformat", "total_seconds", "parameters",
     "named_parameters", "zip", "enumerate", "sorted", "list", "dict", "tuple", "repr", "type", "vars",
     "is_available", "device_count", "get_device_name", "memory_allocated", "max_memory_allocated", "getcwd",
     "abspath", "floor", "ceil", "isfinite", "zfill", "split", "rsplit", "splitlines", "center", "startswith",
     "endswith", "isinstance", "hasattr", "bool", "divmod", "make_grid", "stack", "cat", "concatenate", "clip",
     "clamp", "astype", "reshape", "view", "permute", "transpose", "unsqueeze", "flatten", "set", "exists", "isfile",
     "isdir", "is_file", "is_dir", "pformat", "get_rank", "get_world_size", "fromarray", "to_pil_image", "data_ptr",
     "dim", "any", "all", "t", "to_dict", "timestamp", "fromtimestamp", "model_dump", "_asdict", "asdict",
     "_get_kwargs", "get_terminal_size", "median", "percentile", "cumsum", "state_dict", "deepcopy", "get_rng_state",
     "get_rng_state_all", "getstate", "get_state", "Namespace", "tensor", "as_tensor", "Tensor", "FloatTensor",
     "from_numpy", "arange", "zeros", "ones", "topk", "getpid", "gethostname", "format_exc", "format_exception",
     "format_tb", "format_stack", "exc_info", "DataFrame", "Series", "vstack", "hstack", "column_stack",
     "joinpath", "with_suffix", "with_name", "ToPILImage", "resize", "getenv", "absolute", "as_posix", "relative_to",
     "realpath", "getsize", "fileno", "byte", "concat", "isin", "reset_index", "sort_values"}
)  # fmt: skip
_PURE = frozenset({"ToPILImage"})  # classes whose objects only compute when they are called
# Functions of NumPy itself, without those of its packages: all but these only compute.
_OF_NUMPY = re.compile(r"numpy\.[a-z][a-z0-9_]*")
_NOT_COMPUTING = re.compile(
    r"numpy\.(save\w*|load\w*|genfromtxt|from(file|iter|function|pyfunc|regex|string)|memmap|open_memmap|put\w*|place|"
    r"copyto|fill_diagonal|set\w*|apply_\w+|vectorize|piecewise|nditer|errstate|printoptions|show_\w+|info|test|"
    r"random|linalg|fft)"
)
# What goes through all elements of its arguments: an iterator among them would be used up.
_CONSUMERS = frozenset(
    {"sum", "max", "min", "list", "dict", "tuple", "set", "sorted", "join", "zip", "enumerate", "any", "all",
     "reversed"}
)  # fmt: skip
_ONE_PASS = frozenset(
    {"iter", "map", "filter", "zip", "enumerate", "open", "reader", "reversed", "DictReader", "cycle"}
)  # fmt: skip
_OF_MODULES = frozenset(
    {"state_dict", "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children"}
)
_TEXTS = frozenset({"__str__", "__repr__", "__format__"})
_DEEPEST = 4  # calls of functions of the program within each other


class SkippableExpressions:
    """The expressions of a program that may be left out on some ranks.

    A call is one where its name promises that it only computes, or where it is of a function of the program that does
    no more. Forward passes, draws of random numbers, iterators that are used up and collective calls are none.

    Args:
        flow: of the program.
        collective: calls that become collective, by identity.
    """

    def __init__(self, flow: Flow, collective: Collection[int] = ()) -> None:
        self._flow = flow
        self._collective = collective
        self._open: list[int] = []
        self._known: dict[int, bool] = {}

    def is_skippable(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether nothing is missed when an expression, with all in it, is not evaluated."""
        for inner in walk(node):
            if isinstance(inner, (cst.NamedExpr, cst.Await, cst.Yield)):
                return False
            if isinstance(inner, cst.Call) and not self.is_harmless(inner, file):
                return False
            if isinstance(inner, cst.CompFor) and not self.can_be_iterated_again(inner.iter, file):
                return False
            if isinstance(inner, cst.Attribute) and not self._is_harmless_property(inner):
                return False
            if self._texts and isinstance(inner, (cst.Name, cst.Attribute)) and self.has_own_text(inner, file):
                return False
        return True

    def arguments_are_skippable(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether nothing is missed when what a call is given is not evaluated."""
        func = call.func.value if isinstance(call.func, cst.Attribute) else None
        parts = [*([func] if func is not None else []), *(arg.value for arg in call.args)]
        return all(self.is_skippable(part, file) for part in parts)

    def can_be_iterated_again(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether going through an expression changes nothing: it is no iterator, and no loader."""
        if isinstance(node, cst.Call):
            name = called_name(node)
            if of_kind(self._flow.values(node, file), Kind.LOADER) or name in _ONE_PASS - {
                "zip",
                "enumerate",
                "reversed",
            }:
                return False
            return name not in _CONSUMERS or all(self.can_be_iterated_again(arg.value, file) for arg in node.args)
        if isinstance(node, (cst.Name, cst.Attribute)):
            if of_kind(self._flow.values(node, file), Kind.LOADER):
                return False
            text = dotted(node)
            return not any(
                isinstance(value, cst.GeneratorExp) or (isinstance(value, cst.Call) and called_name(value) in _ONE_PASS)
                for line in file.nodes(cst.Assign) if any(dotted(target) == text for target in targets(line))
                for value in [line.value]
            )  # fmt: skip
        return not isinstance(node, cst.GeneratorExp) or self.is_skippable(node, file)

    def is_harmless(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether nothing is missed when a call is not made, as far as the call itself goes."""
        if id(call) in self._collective:
            return False
        values = self._flow.values(call.func, file)
        if of_kind(values, Kind.CLASS, Kind.MODULE, Kind.INSTANCE, Kind.LOADER):
            return False
        if self._is_of_module(call.func, file) and called_name(call) not in _OF_MODULES:
            return False
        own = of_kind(values, Kind.FUNCTION, Kind.METHOD)
        if own:
            return self._all_compute(own)
        name = called_name(call)
        made = [self._flow.node(value) for value in of_kind(values, Kind.OBJECT)]
        if any(isinstance(maker, cst.Call) and last_name(maker.func) in _PURE for maker in made):
            return True
        only_computes = bool(values) and all(_only_computes_arrays(value.name) for value in values)
        if only_computes and name not in _CONSUMERS and argument(call, None, "out") is None:
            return True
        if name not in _HARMLESS or (name == "get" and not call.args):  # a queue gives what it has once
            return False
        return name not in _CONSUMERS or all(self.can_be_iterated_again(arg.value, file) for arg in call.args)

    def _is_of_module(self, func: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is in a module: a part of it may be called as a function of torch."""
        while isinstance(func, (cst.Attribute, cst.Subscript)):
            func = func.value
            if of_kind(self._flow.values(func, file), Kind.MODULE):
                return True
        return False

    def _is_harmless_property(self, node: cst.Attribute) -> bool:
        """Return whether an attribute is none that the program computes by other than harmless code."""
        own = properties_by_name(self._flow).get(node.attr.value, ())
        return all(self._computes(function, other) for other, function in own)

    @cached_property
    def _texts(self) -> set[int]:
        """The classes of the program whose text does more than compute, by identity."""
        found = vars(self)["_texts"] = set[int]()  # none while these functions are read themselves
        for file, function in self._flow.nodes(cst.FunctionDef):
            if function.name.value in _TEXTS and not self._computes(function, file):
                found |= {id(outer) for outer in file.ancestors(function) if isinstance(outer, cst.ClassDef)}
        self._known.clear()
        return found

    def has_own_text(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether printing what a name holds runs code of the program that does more than compute."""
        values = of_kind(self._flow.values(node, file), Kind.INSTANCE, Kind.MODULE)
        return any(value.key in self._texts or value.of in self._texts for value in values)

    def _all_compute(self, functions: Values) -> bool:
        for value in functions:
            found = self._flow.node_of(value.key)
            if found is None or not isinstance(found[1], cst.FunctionDef) or not self._computes(found[1], found[0]):
                return False
        return True

    def _computes(self, function: cst.FunctionDef, file: SourceFile) -> bool:
        """Return whether a function does nothing but compute its result from its arguments."""
        key = id(function)
        if key in self._known:
            return self._known[key]
        if key in self._open or len(self._open) > _DEEPEST:
            return False
        self._open.append(key)
        bound = local_names(function, file)
        is_left = function.asynchronous is None and not file.edits.is_touched(function)  # ranks may decide there
        self._known[key] = is_left and all(
            self._only_computes(statement, file, bound) for statement in function.body.body
        )
        self._open.remove(key)
        return self._known[key]

    def _only_computes(self, node: cst.CSTNode, file: SourceFile, bound: frozenset[str]) -> bool:
        if isinstance(node, (cst.SimpleStatementLine, cst.IndentedBlock)):
            return all(self._only_computes(inner, file, bound) for inner in node.body)
        if isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign)):
            is_local = all(is_local_target(target, file, bound) for target in targets(node))
            return is_local and (node.value is None or self.is_skippable(node.value, file))
        if isinstance(node, cst.Return):
            return node.value is None or self.is_skippable(node.value, file)
        if isinstance(node, cst.Expr):
            is_text = isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString))
            return is_text or self._appends(node.value, file, bound)
        if isinstance(node, (cst.If, cst.For, cst.While)):
            head = node.iter if isinstance(node, cst.For) else node.test
            if isinstance(node, cst.For) and not self.can_be_iterated_again(node.iter, file):
                return False
            rest = node.orelse
            return (
                self.is_skippable(head, file)
                and self._only_computes(node.body, file, bound)
                and (rest is None or self._only_computes(rest, file, bound))
            )
        if isinstance(node, cst.Else):
            return self._only_computes(node.body, file, bound)
        return isinstance(node, (cst.Pass, cst.Break, cst.Continue))

    def _appends(self, value: cst.BaseExpression, file: SourceFile, bound: frozenset[str]) -> bool:
        """Return whether an expression adds to a container that the function has made itself."""
        if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
            return False
        is_own = isinstance(value.func.value, cst.Name) and value.func.value.value in bound
        adds = value.func.attr.value in ("append", "extend", "insert", "add")
        function = file.function(value)
        made = function is not None and is_made_in(value.func.value, function, file)
        return is_own and adds and made and all(self.is_skippable(arg.value, file) for arg in value.args)


def _only_computes_arrays(name: str) -> bool:
    """Return whether a name is of a function of NumPy that changes nothing but what ``out`` may name."""
    return _OF_NUMPY.fullmatch(name) is not None and _NOT_COMPUTING.fullmatch(name) is None


def local_names(function: cst.FunctionDef, file: SourceFile) -> frozenset[str]:
    """Return the names that a function assigns, and no other code sees."""
    assigned = {
        name.value
        for line in file.nodes(cst.Assign, cst.AugAssign, cst.AnnAssign, below=function)
        for target in targets(line) for name in ([target] if isinstance(target, cst.Name) else walk(target))
        if isinstance(name, cst.Name)
    }  # fmt: skip
    lent = {i.name.value for node in file.nodes(cst.Global, cst.Nonlocal, below=function) for i in node.names}
    return frozenset(assigned - lent)


def is_local_target(target: cst.BaseExpression, file: SourceFile, bound: frozenset[str]) -> bool:
    """Return whether an assignment sets local names, or items of a container that the function has made itself."""
    if isinstance(target, (cst.Tuple, cst.List)):
        return all(is_local_target(element.value, file, bound) for element in target.elements)
    if isinstance(target, cst.Subscript):
        function = file.function(target)
        return function is not None and is_made_in(target.value, function, file)
    return isinstance(target, cst.Name) and target.value in bound


def is_made_in(node: cst.BaseExpression, function: cst.FunctionDef, file: SourceFile) -> bool:
    """Return whether a name is only set to new containers in a function."""
    name = dotted(node)
    values = [
        line.value for line in file.nodes(cst.Assign, below=function) if any(dotted(t) == name for t in targets(line))
    ]
    new = (cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp)
    return bool(values) and all(
        isinstance(v, new) or (isinstance(v, cst.Call) and dotted(v.func) in ("list", "dict", "set")) for v in values
    )
