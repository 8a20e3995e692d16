"""The argument with which the deepspeed launcher starts a converted script."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.edits.runtime_names import Converted
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile

_PARSERS = ("argparse.ArgumentParser", "configargparse.ArgumentParser", "configargparse.ArgParser")


def add_arguments(facts: LoopFacts, files: list[SourceFile], converted: Converted) -> None:
    """Let parsers take ``--local_rank``, which the deepspeed launcher gives."""
    for file in files:
        for call in file.nodes(cst.Call):
            if not facts.flow.is_call_of(call, file, _PARSERS):
                continue
            assign = file.parent(call)
            target = dotted(assign.targets[0].target) if isinstance(assign, cst.Assign) else None
            if target is None or b"local_rank" in file.data or b"local-rank" in file.data:
                continue
            text = (
                f'{target}.add_argument("--local_rank", type=int, default=-1, help="given by the deepspeed launcher")'
            )
            file.after(file.statement(call), text)
            converted(
                Code.PLAIN_ARGUMENTS, file, call, "the parser takes --local_rank, which the deepspeed launcher gives"
            )
