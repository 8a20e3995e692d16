"""Calls of autograd functions: ``Scale.apply(x, factor)`` gives ``forward()`` its inputs behind the context."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Variable, of_kind
from ds_migrate.syntax.nodes import parameters, receiver
from ds_migrate.syntax.source import SourceFile

_AUTOGRAD = "torch.autograd.Function"


def applied_inputs(call: cst.Call, file: SourceFile, flow: Flow) -> Iterator[tuple[Variable, cst.BaseExpression]]:
    """Yield the inputs of ``forward()`` that a call of ``apply()`` gives values to, and the expressions of these."""
    if isinstance(call.func, cst.Attribute) and receiver(call, "apply") is not None:
        for function in _functions(call.func, file, flow):
            names = [(id(function), parameter.name.value) for parameter in parameters(function)[1:]]
            yield from zip(names, (arg.value for arg in call.args), strict=False)


def functions_with_other_calls(flow: Flow) -> set[int]:
    """Return the functions ``forward()``, by identity, whose inputs are not all known from calls of ``apply()``."""
    found = set[int]()
    for file, node in flow.attributes("apply"):
        call = file.parent(node)
        is_call = isinstance(call, cst.Call) and call.func is node
        is_plain = is_call and isinstance(call, cst.Call) and not any(a.star or a.keyword for a in call.args)
        for function in _functions(node, file, flow):
            if not is_plain or isinstance(function.params.star_arg, cst.Param):
                found.add(id(function))
    return found


def _functions(node: cst.Attribute, file: SourceFile, flow: Flow) -> Iterator[cst.FunctionDef]:
    """Yield the functions ``forward()`` that an attribute ``apply`` runs, which take a context first."""
    for owner in of_kind(flow.values(node.value, file), Kind.CLASS):
        method = flow.classes.method(owner.key, "forward")
        function = flow.node(method) if method is not None else None
        has_context = flow.classes.method(owner.key, "setup_context") is None
        if (
            isinstance(function, cst.FunctionDef)
            and has_context
            and _AUTOGRAD in flow.classes.external_bases(owner.key)
        ):
            yield function
