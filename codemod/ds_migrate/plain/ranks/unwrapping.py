"""The removal of DistributedDataParallel and DataParallel, with what was saved and loaded through them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED, WRAPPERS
from ds_migrate.plain.decisions.plan import Note, Review
from ds_migrate.plain.edits.removal import remove_statement
from ds_migrate.plain.edits.runtime_names import Converted
from ds_migrate.plain.ranks.wrappers import Wrapped, Wrappers
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import code, dotted, targets
from ds_migrate.syntax.source import SourceFile


def unwrap(facts: LoopFacts, converted: Converted, review: Review) -> None:
    """Remove the wrappers, and keep the names of weights in files as they were."""
    wrappers = Wrappers(facts)
    for file, call, wrapped in wrappers.states():
        _keep_keys(file, call, wrapped, converted, review)
    for file, node in wrappers.inner_modules():
        around = file.parent(node)
        if isinstance(around, cst.IfExp) and around.body is node and dotted(around.orelse) == dotted(node.value):
            file.change(around, lambda updated: updated.orelse)  # type: ignore[attr-defined]
        else:
            file.change(node, lambda updated: updated.value)  # type: ignore[attr-defined]
    removed = list(wrappers.calls())
    for file, call in _left(facts, [call for _, call, _ in removed]):
        message = "DataParallel stays around what no engine has as a whole, and takes the GPUs of the other ranks"
        review(Note(Code.PLAIN_DEVICE, file, call, message, "remove it: each rank has one GPU"))
    for file, call, module in removed:
        message = f"{code(call.func)} is removed: the engine averages gradients"
        converted(Code.PLAIN_DISTRIBUTED, file, call, message)
        around, index = file.parent(call), list(call.args).index(module)
        if isinstance(around, cst.Assign) and [dotted(t) for t in targets(around)] == [dotted(module.value)]:
            remove_statement(file, around)
        else:
            file.change(call, lambda updated, index=index: updated.args[index].value)  # type: ignore[misc]


def _left(facts: LoopFacts, removed: list[cst.Call]) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Yield the calls beside the loops that spread another module over all GPUs: a teacher, or a part of the model."""
    beside = [*(step.file for step in facts.operations.steps), *(site.file for site in facts.sites)]
    for file in dict.fromkeys(beside):
        for call in file.nodes(cst.Call):
            if call not in removed and facts.flow.is_call_of(call, file, WRAPPERS - DISTRIBUTED):
                yield file, call


def _keep_keys(file: SourceFile, call: cst.Call, wrapped: Wrapped, converted: Converted, review: Review) -> None:
    """Write and read the names of weights as the wrapper had them, which puts ``module.`` before each."""
    if call.args:
        pairs = 'key.removeprefix("module."): value for key, value in'

        def strip(updated: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(updated, cst.Arg)
            return updated.with_changes(value=cst.parse_expression(f"{{{pairs} {code(updated.value)}.items()}}"))

        file.change(call.args[0], strip)
        converted(Code.PLAIN_CHECKPOINT, file, call, "names of weights are read as the wrapper wrote them")
    elif wrapped is Wrapped.ALWAYS:
        prefix = cst.parse_expression('f(prefix="module.")')
        assert isinstance(prefix, cst.Call)
        file.change(call, lambda updated: updated.with_changes(args=prefix.args))
        converted(Code.PLAIN_CHECKPOINT, file, call, "names of weights begin with module., as in the wrapper")
    else:
        message = "names of weights are saved without module., which the original wrote where it wrapped the model"
        advice = "load them into the model without its wrapper"
        review(Note(Code.PLAIN_CHECKPOINT, file, call, message, advice))
