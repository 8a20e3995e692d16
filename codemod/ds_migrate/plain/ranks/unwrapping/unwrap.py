"""The removal of DistributedDataParallel and DataParallel, with what was saved and loaded through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED, WRAPPERS
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note, Review
from ds_migrate.plain.edits.expressions import keep_argument, keep_part
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.unwrapping.weight_copies import weight_copies
from ds_migrate.plain.ranks.unwrapping.wrapped_values import Wrapped
from ds_migrate.plain.ranks.unwrapping.wrappers import Wrappers
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, code, dotted
from ds_migrate.syntax.source import SourceFile

_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def unwrap(
    facts: LoopFacts, beside: Iterable[SourceFile], runtime: RuntimeNames, converted: Converted, review: Review
) -> None:
    """Remove the wrappers, and keep the names of weights in files as they were.

    Where the program copies weights, all ranks have rank 0's from where DistributedDataParallel gave them to all.

    Args:
        beside: the files that may run in one process with the loop.
    """
    wrappers = Wrappers(facts)
    for file, call, wrapped in wrappers.states():
        _keep_keys(file, call, wrapped, converted, review)
        if isinstance(call.func, cst.Attribute) and call.args and wrappers.stay_around(call.func.value, file):
            message = "a module that keeps its wrapper may be loaded here too: its names of weights begin with module."
            review(Note(Code.PLAIN_CHECKPOINT, file, call, message, "load them into what the wrapper holds"))
    for file, call in wrappers.named():
        file.change(call, lambda updated: updated.with_changes(args=[_prefix("module")]))
        message = "names begin with module., as in the wrapper"
        converted(Code.PLAIN_DISTRIBUTED, file, call, message)
    for file, node, has_others in wrappers.inner_modules():
        around = file.parent(node)
        if has_others and not isinstance(around, cst.AssignTarget):
            owner = code(node.value)
            file.replace(node, f'getattr({owner}, "module", {owner})')
        elif isinstance(around, cst.IfExp) and around.body is node and dotted(around.orelse) == dotted(node.value):
            keep_part(file, around, "orelse")
        else:
            keep_part(file, node, "value")
    for file, node in wrappers.forwards():
        keep_part(file, node, "value")
    removed = wrappers.calls
    for file, call in _left(facts, beside, [call for _, call, _ in removed]):
        if facts.options.runtime and facts.flow.is_call_of(call, file, WRAPPERS - DISTRIBUTED):
            file.change(call, _on_one_gpu(f"[{runtime.name(file, 'local_rank')}()]"))
            converted(Code.PLAIN_DEVICE, file, call, f"{code(call.func)} takes this rank's GPU alone")
            continue
        message = "DataParallel stays around what no engine has as a whole, and takes the GPUs of the other ranks"
        review(Note(Code.PLAIN_DEVICE, file, call, message, "remove it: each rank has one GPU"))
    for file, call in _around_parts(facts, [call for _, call, _ in removed]):
        message = (
            "DistributedDataParallel averaged the gradients of this part of the module alone, "
            "and the engine averages those of all its other parameters too"
        )
        help_text = "wrap the whole module, or keep what ranks do not share out of it"
        review(Note(Code.PLAIN_DISTRIBUTED, file, call, message, help_text))
    modules = frozenset(value for site in facts.sites for value in site.of)
    is_copied = any(True for _ in weight_copies(modules, facts.flow))
    for file, call, module in removed:
        message = f"{code(call.func)} is removed: the engine averages gradients"
        converted(Code.PLAIN_DISTRIBUTED, file, call, message)
        index = list(call.args).index(module)
        if is_copied and facts.flow.is_call_of(call, file, DISTRIBUTED):
            keep_argument(file, call, index, runtime.name(file, "share_weights"))
        else:
            keep_argument(file, call, index)


def _left(
    facts: LoopFacts, files: Iterable[SourceFile], removed: list[cst.Call]
) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Yield the calls that spread what no engine has as a whole: a teacher, a part of the model, or what holds it."""
    wrappers = WRAPPERS - DISTRIBUTED
    for file in files:
        for call in file.nodes(cst.Call):
            classes = of_kind(facts.flow.values(call.func, file), Kind.CLASS)
            is_own = any(wrappers.intersection(facts.flow.classes.external_bases(cls.key)) for cls in classes)
            if call not in removed and (is_own or facts.flow.is_call_of(call, file, wrappers)):
                yield file, call


def _on_one_gpu(device_ids: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    """Return the change of a call of DataParallel that leaves it the GPU of the rank: names of weights stay."""

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        module = argument(updated, 0, "module")
        dim = argument(updated, 3, "dim")
        given = cst.Arg(cst.parse_expression(device_ids), cst.Name("device_ids"), equal=_EQUAL)
        kept = [] if dim is None else [dim.with_changes(keyword=cst.Name("dim"), equal=_EQUAL)]
        args = [one.with_changes(comma=cst.MaybeSentinel.DEFAULT) for one in (module, given, *kept) if one is not None]
        return updated.with_changes(args=args)

    return change


def _around_parts(facts: LoopFacts, removed: list[cst.Call]) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Yield the calls of DistributedDataParallel around parts of modules of which an engine trains the whole."""
    modules = frozenset(value for site in facts.sites if not site.parts for value in site.of)
    for file, call in facts.flow.nodes(cst.Call):
        module = argument(call, 0, "module")
        if module is None or call in removed or not facts.flow.is_call_of(call, file, DISTRIBUTED):
            continue
        owner = module.value
        while isinstance(owner, (cst.Attribute, cst.Subscript)):
            owner = owner.value
            if facts.flow.values(owner, file) & modules:
                yield file, call
                break


def _is_looked_up(call: cst.Call, file: SourceFile) -> bool:
    """Return whether single weights are all that is taken of a call's result, as an average of weights takes them."""
    line = file.parent(call)
    target = line.targets[0].target if isinstance(line, cst.Assign) and len(line.targets) == 1 else None
    if not isinstance(target, cst.Name):
        return False
    used = [n for n in file.spelled(target.value, below=file.function(call) or file.module) if n is not target]
    return all(isinstance(above := file.parent(n), cst.Subscript) and above.value is n for n in used)


def _prefix(text: str) -> cst.Arg:
    return cst.Arg(cst.SimpleString(f'"{text}"'), cst.Name("prefix"), equal=_EQUAL)


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
        file.change(call, lambda updated: updated.with_changes(args=[_prefix("module.")]))
        converted(Code.PLAIN_CHECKPOINT, file, call, "names of weights begin with module., as in the wrapper")
    elif not _is_looked_up(call, file):
        message = "names of weights are saved without module., which the original wrote where it wrapped the model"
        advice = "load them into the model without its wrapper"
        review(Note(Code.PLAIN_CHECKPOINT, file, call, message, advice))
