"""The place where an engine is given the program's GradScaler: after the statement that makes it."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.blocks import block_path
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import SCALERS
from ds_migrate.plain.dataflow.values import Values
from ds_migrate.plain.decisions.plan import Attachment
from ds_migrate.plain.decisions.scaler_branches import branch_of, is_set_once
from ds_migrate.plain.decisions.scaler_errors import InexactScalingError
from ds_migrate.plain.recognition.facts import Place, Site
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile


def find_makers(own: Values, flow: Flow) -> list[tuple[SourceFile, cst.Call]]:
    """Return the calls that make a scaler.

    Raises:
        InexactScalingError: it is none of torch's.
    """
    found: list[tuple[SourceFile, cst.Call]] = []
    for file in flow.files.values():
        for call in file.nodes(cst.Call):
            for value in flow.values(call, file):
                if value in own and value.key == id(call):
                    if value.name not in SCALERS:
                        raise InexactScalingError(
                            f"{value.name} is no GradScaler of torch", file, call, "use torch.amp.GradScaler"
                        )
                    found.append((file, call))
    return found


def place_attachments(makers: list[tuple[SourceFile, cst.Call]], site: Site, first: Place) -> list[Attachment]:
    """Return where the engine is given the scaler: after each call that makes it, or after the engine.

    Raises:
        InexactScalingError: no one name leads to it where the engine is made.
    """
    found: list[Attachment] = []
    names = set()
    for file, call in makers:
        statement = file.statement(call)
        assign = next((a for a in file.ancestors(call) if isinstance(a, (cst.Assign, cst.AnnAssign))), None)
        held = [dotted(t) for t in targets(assign)] if assign is not None else []
        name = held[0] if len(held) == 1 else None
        names.add(name)
        own, there = block_path(call, file), block_path(site.statement, site.file)
        is_near = file is site.file and file.function(call) is site.function
        if name is None or not is_near:
            break
        if file.position(statement) > site.file.position(site.statement):
            if own[: len(there)] != there:
                break
            found.append(Attachment(file, statement, name))
        elif there[: len(own)] == own:
            found.append(Attachment(file, site.statement, name))
        elif there[: len(own) - 1] == own[:-1] and (condition := _condition(file, call)) is not None:
            found.append(Attachment(file, site.statement, name, condition))
        else:
            break
    if len(found) != len(makers) or len(names) != 1 or not found:
        raise InexactScalingError(
            "the engine cannot get the GradScaler: it is not made under one name in the function of the optimizer",
            first.file, first.node, "make one GradScaler in the function that makes the optimizer",
        )  # fmt: skip
    if len(found) > 1 and any(each.statement is site.statement for each in found):
        return [each for each in found if each.statement is site.statement][:1] + [
            each for each in found if each.statement is not site.statement
        ]
    return found


def _condition(file: SourceFile, call: cst.Call) -> str | None:
    """Return the name that decides whether a scaler is made, as it still has the value behind that."""
    branch = branch_of(file, call)
    name = dotted(branch.test) if branch is not None else None
    is_elif = branch is not None and isinstance(file.parent(branch), cst.If)
    return name if name is not None and not is_elif and is_set_once(name, file) else None
