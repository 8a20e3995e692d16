"""Libraries that own parameters, gradients or their precision themselves, as an engine does."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.plain.recognition.facts import Refusal
from ds_migrate.plain.recognition.libraries.frameworks import Framework, framework_of, message_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, imported_names, last_name
from ds_migrate.syntax.source import SourceFile

_PARALLEL = {
    "fairscale.": "fairscale",
    "torch.distributed.fsdp": "FullyShardedDataParallel",
    "torch.distributed._composable": "torch.distributed._composable",
    "torch.distributed.tensor.": "tensor parallelism",
    "torch.distributed.rpc": "RPC",
    "torch.distributed.pipelin": "pipelining",
    "torch.distributed.optim": "torch.distributed.optim",
    "apex.parallel": "apex.parallel",
    "apex.amp": "apex.amp",
    "apex.fp16_utils": "apex.fp16_utils",
    "horovod": "Horovod",
    "torch_xla": "PyTorch/XLA",
    "colossalai": "Colossal-AI",
    "opacus": "Opacus",
    "torchdp": "torchdp",  # as Opacus was called
}
_INNER = {name.rstrip(".") for name in _PARALLEL if "." in name.rstrip(".")} | {
    "fairscale.nn", "fairscale.optim", "torch.distributed.pipelining",
}  # fmt: skip


def foreign_engines(file: SourceFile) -> Iterator[Refusal]:
    """Yield that a file with a loop imports such a library, a framework that trains, or DeepSpeed."""
    for node, names in (*((node, imported_names(node)) for node in file.names.import_nodes), *_taken(file)):
        for name in names:
            framework = framework_of(name)
            if framework is not None and framework.owns_loops:
                yield Refusal(Code.PLAIN_FRAMEWORK, file, node, message_of(framework), framework.way_out)
                return
            library = _library_of(name)
            if library is not None:
                yield _owned(file, node, library)
                return
            if name == "deepspeed" or name.startswith("deepspeed."):
                yield Refusal(
                    Code.PLAIN_ON_DEEPSPEED, file, node, "the file uses DeepSpeed already, beside a plain loop",
                    "convert the rest by hand, or move the plain loop to another file",
                )  # fmt: skip
                return


def foreign_owners(values: Collection[Value], flow: Flow) -> Iterator[Refusal]:
    """Yield the calls that give one of these modules and optimizers to such a library, in any file of the program."""
    for file, call, library in flow.once(_calls):
        given = (call, *(arg.value for arg in call.args[:1]))
        if any(not flow.values(node, file).isdisjoint(values) for node in given):
            yield _owned(file, call, library)
    for file, call, framework in flow.once(_prepared):
        if any(not flow.values(arg.value, file).isdisjoint(values) for arg in call.args):
            yield Refusal(Code.PLAIN_FRAMEWORK, file, call, message_of(framework), framework.way_out)


def _prepared(flow: Flow) -> list[tuple[SourceFile, cst.Call, Framework]]:
    """Return the calls that give an object of Accelerate what they are given, whoever made that object."""
    return [
        (file, call, framework)
        for file, call in flow.nodes(cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "prepare"
        and last_name(call.func.value) == "accelerator" and (framework := framework_of("accelerate.Accelerator"))
        and not of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
    ]  # fmt: skip


def _calls(flow: Flow) -> list[tuple[SourceFile, cst.Call, str]]:
    """Return the calls of such libraries in a program, with the library."""
    last = {name.rstrip(".").rpartition(".")[2].encode() for name in _PARALLEL}
    found = []
    for file in flow.files.values():
        for call in file.nodes(cst.Call) if any(name in file.data for name in last) else ():
            names = sorted(value.name for value in of_kind(flow.values(call.func, file), Kind.EXTERNAL))
            library = next(filter(None, map(_library_of, names)), None)
            if library is not None:
                found.append((file, call, library))
    return found


def _library_of(name: str) -> str | None:
    return next((library for prefix, library in _PARALLEL.items() if name.startswith(prefix)), None)


def _owned(file: SourceFile, node: cst.CSTNode, library: str) -> Refusal:
    message = f"{library} owns parameters, gradients or their precision, as an engine does"
    return Refusal(Code.PLAIN_FRAMEWORK, file, node, message, f"train without {library} first")


def _taken(file: SourceFile) -> Iterator[tuple[cst.Attribute, list[str]]]:
    """Yield what a file takes of packages that it imports whole, as ``apex.amp`` after ``import apex``."""
    if not any(name.rpartition(".")[2].encode() in file.data for name in _INNER):
        return
    bound = {
        alias.evaluated_alias or alias.evaluated_name.partition(".")[0]: alias.evaluated_name
        if alias.asname
        else alias.evaluated_name.partition(".")[0]
        for node in file.names.import_nodes if isinstance(node, cst.Import) for alias in node.names
    }  # fmt: skip
    for node in file.nodes(cst.Attribute):
        first, _, rest = (dotted(node) or "").partition(".")
        name = f"{bound[first]}.{rest}" if first in bound else ""
        if name in _INNER:
            yield node, [name]
