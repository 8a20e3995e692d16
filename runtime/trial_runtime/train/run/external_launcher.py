"""Join ranks that ``torchrun ... -m trial_runtime.train CONFIG.yaml``, ``deepspeed`` or ``srun`` started.

Each rank reads the config itself; what only one of them can decide (the run directory, a drawn seed) is decided by
rank 0 and passed on through a key-value store, because there is no process group yet and a script may make its own.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.run.supervision import terminate_with

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_TIMEOUT = timedelta(minutes=5)
_POLL_SECONDS = 0.05
_KEY = "ds-train/run"
_open_stores: list[Store] = []  # ends with the process, as torchrun's ends with its agent


def is_launched(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher started this process as a rank."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def leave_with_launcher() -> None:
    """Have this rank save and leave when the process that started it is killed alone, and would not end it any more.

    Of ``torchrun`` that is its agent; of ``deepspeed`` its node's launcher, and the command itself. ``srun`` ends its
    tasks itself, and nobody else is known to be a launcher: a shell that started a rank may well end before it.
    """
    if not {"TORCHELASTIC_RUN_ID", "CROSS_RANK"} & os.environ.keys():
        return
    launcher = os.getppid()
    command = _parent_of(launcher)
    is_deepspeed = command is not None and "deepspeed" in _command_line(command)
    terminate_with(str(launcher), str(command) if is_deepspeed else None)


def _parent_of(process: int) -> int | None:
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux, or it has ended
        return None
    return int(status.rpartition(")")[2].split()[1])


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def slurm_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's variables, when ``srun`` started this process as one of several tasks; else none.

    Raises:
        ConfigError: the nodes have different numbers of tasks.
    """
    # A batch script itself has SLURM_PROCID too, but is no step.
    size = environment.get("SLURM_STEP_NUM_TASKS")
    if is_launched(environment) or size is None or int(size) < 2 or "SLURM_STEP_ID" not in environment:
        return {}
    per_node = environment.get("SLURM_STEP_TASKS_PER_NODE", size)
    counted = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", per_node)
    if counted is None:
        raise ConfigError(f"srun: {per_node} tasks on the nodes; every node needs as many: use --ntasks-per-node")
    host = environment.get("MASTER_ADDR") or _first_host(environment.get("SLURM_STEP_NODELIST", "127.0.0.1"))
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": size,
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": counted[1],
        "GROUP_RANK": environment.get("SLURM_NODEID", "0"),
        "GROUP_WORLD_SIZE": counted[2] or "1",
        "MASTER_ADDR": host,
        "MASTER_PORT": environment.get("MASTER_PORT") or str(15000 + int(environment.get("SLURM_JOB_ID", "0")) % 15000),
    }


def _first_host(nodes: str) -> str:
    """Return the first of ``node[01-04,07],other``: ``node01``."""
    found = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


def complete_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables that ``environment`` lacks, from those that the ``deepspeed`` launcher sets
    instead."""
    size = environment["WORLD_SIZE"]
    local_size = environment.get("LOCAL_WORLD_SIZE") or environment.get("LOCAL_SIZE") or size
    nodes = str(max(1, int(size) // int(local_size)))
    found = {
        "LOCAL_RANK": str(int(environment["RANK"]) % int(local_size)),
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": environment.get("CROSS_RANK", str(int(environment["RANK"]) // int(local_size))),
        "GROUP_WORLD_SIZE": environment.get("CROSS_SIZE", nodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    return {name: value for name, value in found.items() if name not in environment}


def share_decision(decide: Callable[[str | None], str]) -> tuple[str, list[str]]:
    """Let rank 0 decide, and share its decision with the others.

    Under torchrun the store outlives the ranks, so that ranks it starts again after a crash find the first decision
    there and continue the same run. Of other launchers' ranks, rank 0 serves the store at ``MASTER_PORT``, the one port
    that is known to be this run's, and the environment declares, as torchrun's does, that process groups are to use it.

    Args:
        decide: called on rank 0 only, with its decision of the first start if this is not the first.

    Returns:
        Rank 0's decision, and one address a node, ordered by node rank.

    Raises:
        ConfigError: another process listens at ``MASTER_PORT``, or no rank 0 is found there.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = PrefixStore("ds-train", _store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), rank, shared))
    if rank == 0:
        earlier = store.get(_KEY).decode() if store.check([_KEY]) else None
        decision = decide(earlier)
        if earlier is None:
            store.set(_KEY, decision)
        addresses = _answer(store, size, decision)
    else:
        decision, addresses = _ask(store, rank)
    if not shared:
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")
    return decision, addresses


def _introduction() -> dict[str, str]:
    several = int(os.environ["GROUP_WORLD_SIZE"]) > 1
    address = socket.gethostname() if several else "127.0.0.1"
    return {"node": os.environ["GROUP_RANK"], "address": address, "token": secrets.token_hex(8)}


def _answer(store: Store, size: int, decision: str) -> list[str]:
    """Hand the decision to the ranks of this start; the addresses of the nodes.

    A store that outlives the ranks holds the words of earlier starts too, and agents that joined at different times
    count starts differently. So rank 0 asks with a new token, and each rank takes the answer that has its own token.
    """
    question = secrets.token_hex(8)
    store.set(f"{_KEY}/question", question)
    ranks = [_introduction()]
    ranks += [json.loads(store.get(f"{_KEY}/{question}/{other}").decode()) for other in range(1, size)]
    addresses = {int(each["node"]): each["address"] for each in ranks}
    answer = {
        "decision": decision,
        "addresses": [addresses[node] for node in sorted(addresses)],
        "tokens": [each["token"] for each in ranks],
    }
    store.set(f"{_KEY}/{question}/answer", json.dumps(answer))
    # The process that serves the store may be this one: it stays until every rank has read from it.
    store.wait([f"{_KEY}/{question}/read/{other}" for other in range(1, size)])
    return list(answer["addresses"])


def _ask(store: Store, rank: int) -> tuple[str, list[str]]:
    """Return rank 0's decision and the addresses of the nodes; see :func:`_answer`."""
    me, asked = _introduction(), ""
    deadline = time.monotonic() + _TIMEOUT.total_seconds()
    while time.monotonic() < deadline:
        question = store.get(f"{_KEY}/question").decode()
        if question != asked:
            store.set(f"{_KEY}/{question}/{rank}", json.dumps(me))
            asked = question
        if store.check([f"{_KEY}/{question}/answer"]):
            answer = json.loads(store.get(f"{_KEY}/{question}/answer").decode())
            if me["token"] in answer["tokens"]:
                # The last word: a store answers no set, and may go away after it.
                store.set(f"{_KEY}/{question}/read/{rank}", "1")
                return str(answer["decision"]), list(answer["addresses"])
        time.sleep(_POLL_SECONDS)
    raise ConfigError(f"rank {rank}: rank 0 has not answered for {_TIMEOUT.total_seconds():.0f} s")


def _store(host: str, port: int, rank: int, shared: bool) -> Store:
    from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore(host, port, None, not shared and rank == 0, _TIMEOUT)
    except DistNetworkError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"rank {rank}: MASTER_ADDR={host} MASTER_PORT={port}: {reason}; choose a free port") from None
    _open_stores.append(store)
    return store
