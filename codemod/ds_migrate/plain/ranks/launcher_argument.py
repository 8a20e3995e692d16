"""The argument with which the deepspeed launcher starts a converted script."""

from __future__ import annotations

import re

import libcst as cst

from ds_migrate.plain.dataflow.calls import is_called
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, code, dotted
from ds_migrate.syntax.source import SourceFile

_PARSERS = ("argparse.ArgumentParser", "configargparse.ArgumentParser", "configargparse.ArgParser")


def add_arguments(facts: LoopFacts, files: list[SourceFile], runtime: RuntimeNames, converted: Converted) -> None:
    """Let parsers take ``--local_rank``, which the deepspeed launcher gives, and torchrun only as a variable."""
    starts_ranks = facts.options.runtime and is_called(INIT, facts.flow)
    for file in files:
        for call in file.nodes(cst.Call):
            default = _default_of_local_rank(call) if starts_ranks else None
            if default is not None:
                file.replace(default.value, f"{runtime.name(file, 'local_rank')}({code(default.value)})")
                converted(Code.PLAIN_ARGUMENTS, file, call, "torchrun gives the rank by LOCAL_RANK, no argument")
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


def _default_of_local_rank(call: cst.Call) -> cst.Arg | None:
    """Return the number that ``--local_rank`` has where the launcher gives none."""
    is_added = isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"
    names = {str(a.value.evaluated_value) for a in call.args if isinstance(a.value, cst.SimpleString) and not a.keyword}
    default = argument(call, None, "default") if is_added and names & {"--local_rank", "--local-rank"} else None
    return default if default is not None and re.fullmatch(r"-?\d+", code(default.value)) else None
