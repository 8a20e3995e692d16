"""Lines of logs that only rank 0 writes: on other ranks, logging leaves out what is less than a warning."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.edits.runtime_names import RuntimeNames
from ds_migrate.plain.ranks.rank_guards import asks_for_rank, is_guarded, negated
from ds_migrate.syntax.nodes import last_name, walk
from ds_migrate.syntax.source import SourceFile

_LINES = frozenset({"debug", "info"})
_LOGGERS = ("logging.getLogger", "logging.getLogger.getChild", "absl.logging.get_absl_logger")
# What a program decides by its levels may be more than lines of a log.
_ASKS = frozenset({"isEnabledFor", "getEffectiveLevel"})


def quiet_logging(files: Sequence[SourceFile], flow: Flow, entry: SourceFile, runtime: RuntimeNames) -> list[str]:
    """Return the statement with which other ranks log warnings and errors alone, if one is needed.

    None is where the program logs no information, decides about ranks itself where it sets its logging up, or does
    something else by its levels.

    Args:
        entry: the file of the statement.
    """
    if not any(_logs(call, file, flow) for file in files for call in file.nodes(cst.Call)):
        return []
    if any(name in file.attributes_by_name for file in files for name in _ASKS):
        return []
    if any(_is_set_by_rank(call, file, flow) for file in files for call in file.nodes(cst.Call)):
        return []
    logging = entry.imports.module("logging")
    return [f"if {negated(runtime.main_rank(entry))}:\n    {logging}.disable({logging}.INFO)"]


def _logs(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call logs information by the standard library, on all ranks."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _LINES or is_guarded(call, file):
        return False
    owner = call.func.value
    values = flow.values(owner, file)
    if any(value.name in ("logging", "absl.logging") for value in values):
        return True
    makers = [(flow.node(value), flow.file(value)) for value in values if value.key]
    if any(isinstance(node, cst.Call) and flow.is_call_of(node, home, _LOGGERS) for node, home in makers):
        return True
    is_named = last_name(owner).lower() in ("logger", "log", "_logger")
    return is_named and not values and any(b"logging" in other.data for other in flow.files.values())


def _is_set_by_rank(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether logging is set up by the rank: ``basicConfig(level=INFO if rank == 0 else WARN)``."""
    is_setup = flow.is_call_of(call, file, ("logging.basicConfig", "logging.disable")) or (
        isinstance(call.func, cst.Attribute) and call.func.attr.value in ("setLevel", "addHandler", "addFilter")
    )
    return is_setup and (
        is_guarded(call, file) or any(isinstance(n, cst.IfExp) and asks_for_rank(n.test) for n in walk(call))
    )
