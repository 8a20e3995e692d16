"""Calls that start a function in other processes, as ``torch.multiprocessing.spawn`` does for each rank."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, Values
from ds_migrate.syntax.nodes import argument, receiver

SPAWN = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})
PROCESSES = frozenset({"torch.multiprocessing.Process", "multiprocessing.Process"})


def is_spawn(callees: Values) -> bool:
    """Return whether a call with these callees starts a function once for each rank."""
    return any(value.kind is Kind.EXTERNAL and value.name in SPAWN for value in callees)


def is_process(callees: Values) -> bool:
    """Return whether a call with these callees makes one process."""
    return any(value.kind is Kind.EXTERNAL and value.name in PROCESSES for value in callees)


def started(call: cst.Call, callees: Values) -> cst.BaseExpression | None:
    """Return the function that a call starts in other processes; None where it starts none."""
    given = None
    if is_spawn(callees):
        given = argument(call, 0, "fn")
    elif is_process(callees):
        given = argument(call, 1, "target")
    elif receiver(call, "Process") is not None:  # of get_context("spawn")
        given = argument(call, None, "target")
    return given.value if given is not None else None


def started_arguments(call: cst.Call, callees: Values) -> Sequence[cst.Arg]:
    """Return the arguments of the function that a call starts, without the index of the process."""
    given = argument(call, 1 if is_spawn(callees) else 3, "args")
    if given is None:
        return ()
    if not isinstance(given.value, (cst.Tuple, cst.List)):
        return [cst.Arg(given.value, star="*")]
    return [cst.Arg(e.value, star="*" if isinstance(e, cst.StarredElement) else "") for e in given.value.elements]
