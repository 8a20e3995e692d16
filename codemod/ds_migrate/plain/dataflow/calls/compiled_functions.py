"""Functions that TorchScript compiles: a call of a helper in them, which it cannot compile, would end the program."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value
from ds_migrate.syntax.source import SourceFile

_COMPILERS = frozenset(
    {"torch.jit.script", "torch.jit.export", "torch.jit.script_method", "torch.jit.script_if_tracing"}
)
_LEFT_OUT = frozenset({"torch.jit.ignore", "torch.jit.unused"})
_Function = tuple[SourceFile, cst.FunctionDef]


def is_compiled(node: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node is in a function that TorchScript compiles."""
    found = flow.once(_compiled)
    return bool(found) and any(id(outer) in found for outer in (node, *file.ancestors(node)))


def _compiled(flow: Flow) -> frozenset[int]:
    todo = [one for file in flow.files.values() if b"jit" in file.data for one in _begun(file, flow)]
    found = set[int]()
    for file, function in todo:  # grows
        if id(function) in found or _decorators(function, file, flow) & _LEFT_OUT:
            continue
        found.add(id(function))
        for call in file.nodes(cst.Call, below=function.body):
            todo += (one for value in flow.values(call.func, file) for one in _run_by(value, flow))
    return frozenset(found)


def _begun(file: SourceFile, flow: Flow) -> Iterator[_Function]:
    """Yield the functions that a file has compiled, and those of it that ask whether they are."""
    for function in file.nodes(cst.FunctionDef):
        if _decorators(function, file, flow) & _COMPILERS:
            yield file, function
    for call in file.nodes(cst.Call):
        around = file.function(call)
        if around is not None and flow.is_call_of(call, file, ("torch.jit.is_scripting",)):
            yield file, around
        if call.args and flow.is_call_of(call, file, ("torch.jit.script",)):
            for value in flow.values(call.args[0].value, file):
                yield from _run_by(value, flow)


def _decorators(function: cst.FunctionDef, file: SourceFile, flow: Flow) -> set[str]:
    return {value.name for one in function.decorators for value in flow.values(one.decorator, file)}


def _run_by(value: Value, flow: Flow) -> Iterator[_Function]:
    """Yield the function of the program that a call of a value runs: of a module, ``forward()``."""
    called: Value | None = value if value.kind in (Kind.FUNCTION, Kind.METHOD) else None
    if value.kind is Kind.INSTANCE or (value.kind is Kind.MODULE and value.of):
        called = flow.classes.method(value.of if value.kind is Kind.MODULE else value.key, "forward")
    known = flow.function_of(called.key) if called is not None else None
    if known is not None:
        yield known
