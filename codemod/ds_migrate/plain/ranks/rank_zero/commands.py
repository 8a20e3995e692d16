"""Commands of the shell that every rank of a program would run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

RUNS = (
    "os.system", "os.spawnlp", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen",
    "subprocess.getoutput", "subprocess.getstatusoutput",
)  # fmt: skip


def commands_of_all_ranks(files: Sequence[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield the commands whose result a program does not use: they may write what another rank writes too."""
    for file in files:
        for call in file.nodes(cst.Call):
            is_statement = isinstance(file.parent(call), cst.Expr)
            if is_statement and flow.is_call_of(call, file, RUNS) and not is_guarded(call, file):
                message = "every rank runs this command, at the same time"
                advice = "run it on rank 0 alone (if is_main_rank(): ...), and call wait_for_all_ranks() behind it"
                yield Note(Code.PLAIN_RANK_ZERO, file, call, message, advice)
