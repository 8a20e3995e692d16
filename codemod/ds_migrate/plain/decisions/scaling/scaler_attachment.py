"""The place where an engine is given the program's GradScaler: after the statement that makes it."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import block_path
from ds_migrate.plain.dataflow.branches.equal_tests import is_set_once
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import SCALERS
from ds_migrate.plain.dataflow.values import Values
from ds_migrate.plain.decisions.plan import Attachment
from ds_migrate.plain.decisions.scaling.scaler_branches import InexactScalingError, branch_of
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile

_Held = tuple[SourceFile, cst.Call, str | None]  # the call that makes a scaler, or its owner; the name of the scaler
_DEPTH = 3


def find_makers(own: Values, flow: Flow) -> list[tuple[SourceFile, cst.Call]]:
    """Return the calls that make a scaler.

    Raises:
        InexactScalingError: it is none of torch's.
    """
    found: list[tuple[SourceFile, cst.Call]] = []
    for file, call in flow.nodes(cst.Call):
        for value in flow.values(call, file):
            if value in own and value.key == id(call):
                if value.name not in SCALERS:
                    raise InexactScalingError(
                        f"{value.name} is no GradScaler of torch", file, call, "use torch.amp.GradScaler"
                    )
                found.append((file, call))
    return found


def place_attachments(makers: list[tuple[SourceFile, cst.Call]], site: Site, flow: Flow) -> list[Attachment]:
    """Return where the engine is given the scaler: after each call that makes it, or after the engine.

    Nothing where no one name leads to it in the function that makes the engine.
    """
    found: list[Attachment] = []
    names = set()
    calls = [held for file, call in makers for held in _held(file, call, site, flow)]
    calls = list({(id(call), name): (file, call, name) for file, call, name in calls}.values())
    for file, call, name in calls:
        statement = file.statement(call)
        names.add(name)
        own, there = block_path(call, file), block_path(site.statement, site.file)
        is_near = file is site.file and file.function(call) is site.function
        if name is None or not is_near:
            break
        if file.position(statement) > site.file.position(site.statement):
            if own[: len(there)] != there:
                break
            found.append(Attachment(site, file, statement, name))
        elif there[: len(own)] == own:
            found.append(Attachment(site, file, site.statement, name))
        elif there[: len(own) - 1] == own[:-1] and (condition := _condition(file, call)) is not None:
            found.append(Attachment(site, file, site.statement, name, condition))
        else:
            break
    if len(found) != len(calls) or len(names) != 1:
        return []
    if len(found) > 1 and any(each.statement is site.statement for each in found):
        return [each for each in found if each.statement is site.statement][:1] + [
            each for each in found if each.statement is not site.statement
        ]
    return found


def _held(file: SourceFile, call: cst.Call, site: Site, flow: Flow, depth: int = _DEPTH) -> list[_Held]:
    """Return the calls that make a scaler, or the objects that keep it, as near to an engine as constructors lead."""
    name, function = _name_of(file, call), file.function(call)
    if function is None or (file is site.file and function is site.function) or function.name.value != "__init__":
        return [(file, call, name)]
    owner, _, attribute = (name or "").partition(".")
    is_own = attribute and owner == next((p.name.value for p in function.params.params), None)
    if depth == 0 or not is_own or not _is_always_set(name, file, function):
        return [(file, call, None)]
    found: list[_Held] = []
    for caller, made in flow.callers.of(function):
        for outer_file, outer, held in _held(caller, made, site, flow, depth - 1):
            found.append((outer_file, outer, f"{held}.{attribute}" if held is not None else None))
    return found or [(file, call, None)]


def _name_of(file: SourceFile, call: cst.Call) -> str | None:
    """Return the one name that is assigned what a call returns."""
    around = file.parent(call)
    while isinstance(around, (cst.IfExp, cst.BooleanOperation)):
        around = file.parent(around)
    held = [dotted(t) for t in targets(around)] if isinstance(around, (cst.Assign, cst.AnnAssign)) else []
    return held[0] if len(held) == 1 else None


def _is_always_set(name: str | None, file: SourceFile, function: cst.FunctionDef) -> bool:
    """Return whether a constructor sets an attribute on every way through it."""
    return any(
        not block_path(node, file) and any(dotted(target) == name for target in targets(node))
        for node in file.nodes(cst.Assign, cst.AnnAssign, below=function)
    )


def _condition(file: SourceFile, call: cst.Call) -> str | None:
    """Return the name that decides whether a scaler is made, as it still has the value behind that."""
    branch = branch_of(file, call)
    name = dotted(branch.test) if branch is not None else None
    is_elif = branch is not None and isinstance(file.parent(branch), cst.If)
    return name if name is not None and not is_elif and is_set_once(name, file) else None
