"""Commands that every rank would run, messages that each would send, and questions that each would ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, dotted, walk
from ds_migrate.syntax.source import SourceFile

RUNS = (
    "os.system", "os.spawnlp", "subprocess.run", "subprocess.call", "subprocess.check_call",
    "subprocess.check_output", "subprocess.Popen", "subprocess.getoutput", "subprocess.getstatusoutput",
)  # fmt: skip

# Those that change something elsewhere: a message to a channel, an issue, a record of results.
_SENDS = (
    "requests.post", "requests.put", "requests.patch", "requests.delete", "httpx.post", "httpx.put", "httpx.patch",
    "httpx.delete", "smtplib.SMTP", "smtplib.SMTP_SSL",
)  # fmt: skip
# Those of clients of storage and of the hub, whatever makes the client.
_UPLOADS = frozenset(
    {"push_to_hub", "upload_file", "upload_folder", "upload_fileobj", "upload_from_filename", "upload_blob"}
)
_ASKS = ("getpass.getpass", "click.confirm", "click.prompt")


def commands_of_all_ranks(files: Sequence[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield questions on the terminal, what is sent elsewhere, and commands whose result a program does not use.

    Such a command may write what another rank writes too.
    """
    for file in files:
        for call in file.nodes(cst.Call):
            if asks(call, file, flow) and not is_guarded(call, file):
                message = "every rank waits for an answer on the terminal, and each line is read by one of them"
                yield Note(Code.PLAIN_RANK_ZERO, file, call, message, "give the answer by an argument of the script")
            if (flow.is_call_of(call, file, _SENDS) or _uploads(call, file, flow)) and not is_guarded(call, file):
                message = "every rank sends this, and it arrives n times from n ranks"
                yield Note(Code.PLAIN_RANK_ZERO, file, call, message, "send it on rank 0 alone: if is_main_rank(): ...")
            is_statement = isinstance(file.parent(call), cst.Expr)
            if is_statement and flow.is_call_of(call, file, RUNS) and not is_guarded(call, file):
                message = "every rank runs this command, at the same time"
                advice = "run it on rank 0 alone (if is_main_rank(): ...), and call wait_for_all_ranks() behind it"
                yield Note(Code.PLAIN_RANK_ZERO, file, call, message, advice)


def _uploads(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call sends files to a storage, or a model to the hub, by the name of the method."""
    is_own = of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD, Kind.CLASS)
    return called_name(call) in _UPLOADS and bool(call.args) and not is_own


def asks(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call waits for an answer on the terminal; other objects are called input, too."""
    asked = call.args[0].value if call.args else None
    is_text = asked is None or any(isinstance(part, cst.BaseString) for part in walk(asked))
    is_input = dotted(call.func) == "input" and is_text and not flow.values(call.func, file)
    return is_input or flow.is_call_of(call, file, _ASKS)
