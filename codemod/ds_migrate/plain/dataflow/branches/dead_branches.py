"""Branches that do not run: in any call of a function, or in one with certain arguments."""

from __future__ import annotations

import re
from types import MappingProxyType

import libcst as cst

from ds_migrate.plain.dataflow.branches.written_rounds import CONSTANTS, Bindings, constant_of
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.imported_modules import is_fallback
from ds_migrate.syntax.nodes import decorators, dotted, dotted_names, last_name, parameter, set_values, targets
from ds_migrate.syntax.source import SourceFile

_TEST_FILE = re.compile(r"test_\w*\.py|\w*_test\.py|conftest\.py")
# What unittest and pytest run around tests.
_SETUPS = frozenset({
    "setUp", "tearDown", "setUpClass", "tearDownClass", "setUpModule", "tearDownModule", "setup_method",
    "teardown_method", "setup_class", "teardown_class", "setup_module", "teardown_module",
})  # fmt: skip
_STARTS_OTHERS = re.compile(rb"distributed|multiprocessing|subprocess|torchrun|Popen|spawn")


def is_dead(node: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node is in a branch for a parameter that is None in every call of its function.

    So is what handles an import that does not fail; and a test, which is no training.
    """
    if is_fallback(node, file) or is_in_test(node, file, flow.callers):
        return True
    inner = node
    for outer in file.ancestors(node):
        if isinstance(outer, cst.If) and inner is outer.body:
            name = _wanted(outer.test)
            if name is not None and _is_always_none(name, file, flow):
                return True
        inner = outer
    return False


def is_test(function: cst.FunctionDef, file: SourceFile) -> bool:
    """Return whether pytest runs a function, by its name and that of its file."""
    return function.name.value.startswith("test_") and is_test_file(file)


def is_test_file(file: SourceFile) -> bool:
    """Return whether pytest collects a file, or reads it for what its tests need, by its name."""
    return _TEST_FILE.fullmatch(file.path.name) is not None


def is_in_test(node: cst.CSTNode, file: SourceFile, callers: Callers) -> bool:
    """Return whether a node is in a function that pytest alone runs."""
    function = _outermost(node, file)
    return function is not None and is_test(function, file) and not callers.of(function)


def runs_in_tests(node: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node of a test file is in a function that pytest runs, or in one that such functions alone call.

    pytest runs one process, unless the file starts others itself.
    """
    function = _outermost(node, file) if is_test_file(file) else None
    return function is not None and flow.once(_runs_in_tests, function, file)


def _runs_in_tests(flow: Flow, function: cst.FunctionDef, file: SourceFile) -> bool:
    ahead, seen = [(function, file)], {function}
    while ahead:
        function, file = ahead.pop()
        calls = flow.callers.of(function)
        if not is_test_file(file) or _STARTS_OTHERS.search(file.data) is not None:
            return False
        if not calls and not _is_run_by_pytest(function):
            return False
        for at, call in calls:
            above = _outermost(call, at)
            if above is None:
                return False
            if above not in seen:
                seen.add(above)
                ahead.append((above, at))
    return True


def _is_run_by_pytest(function: cst.FunctionDef) -> bool:
    name = function.name.value
    return name.startswith("test_") or name in _SETUPS or "fixture" in map(last_name, decorators(function))


def _outermost(node: cst.CSTNode, file: SourceFile) -> cst.FunctionDef | None:
    """Return the function around a node, or that it is, that is in no other."""
    functions = [outer for outer in (node, *file.ancestors(node)) if isinstance(outer, cst.FunctionDef)]
    return functions[-1] if functions else None


def leaves_out(
    call: cst.Call,
    caller: SourceFile,
    function: cst.FunctionDef,
    node: cst.CSTNode,
    file: SourceFile,
    flow: Flow,
    bindings: Bindings = MappingProxyType({}),
) -> bool:
    """Return whether literal arguments of a call, as ``train=False``, keep a node in the function from running.

    So do those of the call that made the function, which is defined in another one: ``get_step_fn(train=False)``.

    Args:
        bindings: what names are in one round of a loop around the call.
    """
    inner = node
    for outer in file.ancestors(node):
        if outer is function:
            return False
        if isinstance(outer, cst.If) and inner is not outer.test:
            holds = _holds_in(outer.test, call, caller, function, file, flow, bindings)
            if holds is not None and holds is (inner is not outer.body):
                return True
        inner = outer
    return False


def _holds_in(
    test: cst.BaseExpression,
    call: cst.Call,
    caller: SourceFile,
    function: cst.FunctionDef,
    file: SourceFile,
    flow: Flow,
    bindings: Bindings,
) -> bool | None:
    """Return whether a condition on parameters holds in a call; None where that is unknown."""
    if isinstance(test, cst.BooleanOperation):
        sides = [_holds_in(side, call, caller, function, file, flow, bindings) for side in (test.left, test.right)]
        deciding = isinstance(test.operator, cst.Or)
        return deciding if deciding in sides else None if None in sides else not deciding
    if isinstance(test, cst.Name) and (named := _named_test(test, function, file)) is not None:
        return _holds_in(named, call, caller, function, file, flow, bindings)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = _holds_in(test.expression, call, caller, function, file, flow, bindings)
        return None if inner is None else not inner
    wanted, is_equal = "True", True
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        (target,) = test.comparisons
        if not isinstance(target.operator, (cst.Equal, cst.Is, cst.IsNot, cst.NotEqual)):
            return None
        is_equal = isinstance(target.operator, (cst.Equal, cst.Is))
        test, wanted = test.left, constant_of(target.comparator, {}, file, flow)
    scope = flow.scopes(file).owner(test.value, test) if isinstance(test, cst.Name) else function
    if scope is not function and isinstance(scope, cst.FunctionDef):
        made = _maker_of(call.func, scope, caller, flow)
        if made is None:
            return None
        call, function, bindings = made, scope, {}
    param = parameter(function, dotted(test))
    if param is None or file.values_of({param.name.value}, function):
        return None
    arg = flow.given(call, function, param.name.value, caller)
    value = param.default if arg is None else arg.value
    is_known = value is not None and not (arg is not None and arg.star)
    held = constant_of(value, bindings, caller, flow) if value is not None and is_known else ""
    if not held or not wanted or (wanted == "True" and held not in CONSTANTS):
        return None
    return (held == wanted) is is_equal


def _named_test(name: cst.Name, function: cst.FunctionDef, file: SourceFile) -> cst.BaseExpression | None:
    """Return the condition that a name of a function keeps: ``is_training = optimizer is not None``."""
    values = file.values_of({name.value}, function)
    is_test = len(values) == 1 and isinstance(values[0], (cst.Comparison, cst.UnaryOperation, cst.BooleanOperation))
    if not is_test or parameter(function, name.value) is not None:
        return None
    return None if file.values_of(dotted_names(values[0]), function) else values[0]  # these are parameters alone


def _maker_of(callee: cst.BaseExpression, function: cst.FunctionDef, file: SourceFile, flow: Flow) -> cst.Call | None:
    """Return the one call of a function that returned what a name holds; None where it may hold something else."""
    if not isinstance(callee, cst.Name):
        return None
    lines = flow.scopes(file).nodes(callee, cst.Assign, cst.AnnAssign)
    assigned = [value for line in lines for target, value in set_values(line) if dotted(target) == callee.value]
    made = assigned[0] if len(assigned) == 1 else None
    if not isinstance(made, cst.Call) or all(value.key != id(function) for value in flow.values(made.func, file)):
        return None
    return made


def _wanted(test: cst.BaseExpression) -> cst.Name | None:
    """Return the name that a test needs not to be None."""
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        (target,) = test.comparisons
        if isinstance(target.operator, cst.IsNot) and dotted(target.comparator) == "None":
            test = test.left
    return test if isinstance(test, cst.Name) else None


def _is_always_none(name: cst.Name, file: SourceFile, flow: Flow) -> bool:
    function = flow.scopes(file).function_of_parameter(name)
    param = parameter(function, name.value) if function is not None else None
    if function is None or param is None or dotted(param.default) != "None" or flow.values(name, file):
        return False
    bound = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For, cst.AsName, below=function)
    if any(dotted(t) == name.value for n in bound for t in (*targets(n), getattr(n, "target", None))):
        return False
    given = [flow.given(call, function, name.value, at) for at, call in flow.callers.of(function)]
    return bool(given) and all(arg is None or (not arg.star and dotted(arg.value) == "None") for arg in given)
