"""The calls of ``backward()`` and ``step()`` beside a converted loop that nothing has decided on.

Each of them is converted, is a function of the program or of a schedule, cannot run, or gets a review: one that stays
by mistake would train without the other ranks, and without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.findings import Severity
from ds_migrate.plain.dataflow.branches.dead_branches import is_dead
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_beside
from ds_migrate.plain.dataflow.torch_names import is_of_other_framework
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.parts.part import Part
from ds_migrate.plain.recognition.steps.operations import is_of_wrapper
from ds_migrate.plain.recognition.steps.stepping_classes import is_stand_in
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.module_start import asks_for_main
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_NO_OPTIMIZER = re.compile(r"sched|env|prof|simulat", re.IGNORECASE)


def review_undecided(parts: Sequence[Part], flow: Flow) -> None:
    """Add a review to the loops that are converted for each call beside them that stays, and may train."""
    decided = {id(node) for part in parts for node in _decided(part)}
    attacks = {id(step.call) for part in parts if part.operations is not None for step in part.operations.attacks}
    for part in parts:
        beside = files_beside(part.files, flow) if not part.stays else []
        for file in beside:
            for node in _calls(file, flow):
                if id(node) in decided:
                    continue
                is_of_other = any(map(asks_for_main, file.ancestors(node)))  # of another script
                if file in part.files or not (is_of_other or _is_unused(node, file, beside)):
                    decided.add(id(node))
                    is_attack = id(node) in attacks
                    part.notes.append((Severity.REVIEW, _attack(node, file) if is_attack else _note(node, file)))


def _decided(part: Part) -> Iterator[cst.CSTNode]:
    yield from (refusal.node for refusal in part.refusals)
    if part.operations is not None:
        yield from (step.call for step in part.operations.steps)
        yield from (backward.call for backward in part.operations.backwards)


def _calls(file: SourceFile, flow: Flow) -> Iterator[cst.Call | cst.Attribute]:
    """Yield what may be a backward pass, or the step of an optimizer."""
    for node in (*file.attributes_by_name.get("backward", ()), *file.attributes_by_name.get("step", ())):
        around = file.parent(node)
        call = around if isinstance(around, cst.Call) and around.func is node else None
        if any(is_of_other_framework(value.name) for value in flow.values(node.value, file)):
            continue
        may_train = _may_pass_backward(node, call, file, flow) if node.attr.value == "backward" else (
            call is not None and _may_step(node.value, call, file, flow)
        )  # fmt: skip
        if may_train and not is_dead(node, file, flow):
            yield node if call is None else call


def _may_pass_backward(node: cst.Attribute, call: cst.Call | None, file: SourceFile, flow: Flow) -> bool:
    """Return whether this is a backward pass, or a loss's that is handed on; flags may have that name too."""
    if of_kind(flow.values(node, file), Kind.FUNCTION, Kind.METHOD, Kind.CLASS, Kind.INSTANCE):
        return False
    owners = flow.values(node.value, file)
    is_other = bool(of_kind(owners, Kind.EXTERNAL, Kind.INSTANCE, Kind.CLASS))
    return call is not None or (isinstance(file.parent(node), (cst.Arg, cst.Assign, cst.Return)) and not is_other)


def _may_step(owner: cst.BaseExpression, call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call may step an optimizer: one with arguments other than a closure does not."""
    closures = (Kind.FUNCTION, Kind.METHOD, Kind.OPTIMIZER)
    values = flow.values(owner, file)
    takes = [
        arg.star or isinstance(arg.value, cst.Lambda) or of_kind(flow.values(arg.value, file), *closures)
        for arg in call.args
    ]
    is_known = bool(of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD, Kind.CLASS, Kind.INSTANCE))
    is_of_torch = any(value.name.startswith("torch.") for value in of_kind(values, Kind.OBJECT))
    is_other = bool(of_kind(values, Kind.SCHEDULE, Kind.LOADER)) or _NO_OPTIMIZER.search(dotted(owner) or "")
    is_inside = is_of_wrapper(call, file, flow) or is_stand_in(file.class_around(call))
    return all(takes) and not (is_known or is_of_torch or is_other or is_inside)


def _is_unused(node: cst.CSTNode, file: SourceFile, files: Sequence[SourceFile]) -> bool:
    """Return whether a node is in a function or class that none of these files names, but to import it."""
    around = [a for a in file.ancestors(node) if isinstance(a, (cst.FunctionDef, cst.ClassDef))]
    outer = around[-1] if around else None
    if outer is None or outer.decorators:
        return False
    name = outer.name.value
    quoted = re.compile(rb"[\"']%s[\"']" % name.encode())
    return not any(
        quoted.search(one.data) or any(used is not outer.name for used in _names_used(one, name)) for one in files
    )


def _names_used(file: SourceFile, name: str) -> Iterator[cst.Name]:
    """Yield where a file has a name, but in an import."""
    for node in file.nodes(cst.Name) if name.encode() in file.data else ():
        if node.value == name and not any(isinstance(a, cst.ImportAlias) for a in file.ancestors(node)):
            yield node


def _attack(node: cst.Call | cst.Attribute, file: SourceFile) -> Note:
    return Note(
        Code.PLAIN_STEP, file, node,
        f"{expression_text(node)} stays as it is: it moves a tensor that is made from each batch, and no module; each "
        "rank moves that of its share",
        "compare the ranks with ds-verify --plain, as a mean over the batch is one over the share",
    )  # fmt: skip


def _note(node: cst.Call | cst.Attribute, file: SourceFile) -> Note:
    text = expression_text(node)
    method = node.func if isinstance(node, cst.Call) else node
    if isinstance(method, cst.Attribute) and method.attr.value == "backward":
        return Note(
            Code.PLAIN_BACKWARD, file, node,
            f"{text} stays as it is, as no step() is known to use its gradients; ranks may not average them",
            "call it in the function that calls step(), if a converted loop steps with its gradients",
        )  # fmt: skip
    return Note(
        Code.PLAIN_STEP, file, node,
        f"{text} stays as it is, as it is unknown what it steps; ranks would not average what an optimizer trains",
        "if it is an optimizer, make it in this program, and pass it on as an argument or an attribute",
    )  # fmt: skip
