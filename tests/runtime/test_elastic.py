"""Runs whose machines come and go: torchrun's agents on this machine, added and killed while ds-train trains."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import elastic_trial
import psutil
import pytest
from forked_python import forked_python
from ports import free_port
from trial_runtime._run_metrics import read_reports

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's end on Linux only")


class Nodes:
    """Agents of one elastic run of ds-train, all in one folder.

    Args:
        folder: has ``exp``, and gets ``runs/elastic``.
        port: of the rendezvous, which the first node serves.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.agents: list[psutil.Popen] = []
        self.seconds_to_recover: list[float] = []

    def start(self, *options: str) -> psutil.Popen:
        """Start a node; its worker's output goes to a file.

        The first one, which is never killed, and its workers are forked: of a forked worker nobody is the parent.
        """
        command = [
            sys.executable if self.agents else forked_python(), "-m", "torch.distributed.run", "--nnodes=1:2",
            "--nproc-per-node=1", "--max-restarts=9",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{self.port}", "--rdzv-id=elastic",
            "--rdzv-conf=last_call_timeout=2", "--monitor-interval=0.5", *options,
            "-m", "trial_runtime.train", "exp/c.yaml", "--run-dir", "runs/elastic",
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        environment |= {
            "PYTHONPATH": str(Path(elastic_trial.__file__).parent),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "SECONDS_A_BATCH": "0.3",
            # docs/machines.md: else a node that joins later may become rank 0 of another store than the others'
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with (self.folder / f"node{len(self.agents)}.log").open("wb") as log:
            agent = psutil.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.agents.append(agent)
        return agent

    def reports(self) -> list[Any]:
        """Return the training reports so far."""
        return read_reports(self.folder / "runs" / "elastic" / "metrics.jsonl", "training")

    def sizes(self) -> list[int]:
        """Return how many ranks trained each batch."""
        return [int(each["ranks"]) for report in self.reports() for each in report.batch_metrics or []]

    def wait_for(self, condition: Callable[[], bool], limit: float = 240) -> None:
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < limit, self.logs()
            assert self.agents[0].poll() is None, self.logs()
            time.sleep(0.2)
        self.seconds_to_recover.append(time.monotonic() - start)

    def logs(self) -> str:
        files = sorted(self.folder.glob("node*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def end(self) -> None:
        for agent in self.agents:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*agent.children(recursive=True), agent]:
                    process.kill()
            agent.wait(30)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "c.yaml").write_text(elastic_trial.CONFIG)
    shutil.copy(elastic_trial.__file__, tmp_path / "exp")
    made = Nodes(tmp_path, free_port())
    try:
        yield made
    finally:
        made.end()


def losses_alone(folder: Path, batches: int) -> list[float]:
    """Return the losses of an undisturbed run on one rank."""
    command = [
        forked_python(), "-m", "trial_runtime.train", "exp/c.yaml", "--run-dir", "runs/alone",
        "--config", f"searcher.max_length.batches={batches}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(elastic_trial.__file__).parent), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=240)
    reports = read_reports(folder / "runs" / "alone" / "metrics.jsonl", "training")
    return [float(each["loss"]) for report in reports for each in report.batch_metrics or []]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_nodes_come_and_go(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start()
    nodes.wait_for(lambda: len(nodes.sizes()) >= 6)

    for kill_worker in (False, True):
        start = len(nodes.sizes())
        other = nodes.start("--local-addr=127.0.0.1")  # sorts before the first one's name, so it becomes rank 0
        # Further than a checkpoint: what was trained since the last one is trained again.
        nodes.wait_for(lambda start=start: nodes.sizes()[start:].count(2) > 5)  # type: ignore[misc]
        workers = other.children(recursive=True)
        assert workers
        other.kill()
        for worker in workers if kill_worker else ():
            worker.kill()
        start = len(nodes.sizes())
        nodes.wait_for(lambda start=start: nodes.sizes()[-1] == 1 and len(nodes.sizes()) > start)  # type: ignore[misc]
        _, alive = psutil.wait_procs(workers, 30)
        assert not alive, "a worker trains on without its agent"

    nodes.agents[0].send_signal(signal.SIGTERM)
    nodes.agents[0].wait(60)
    steps = [report.batches for report in nodes.reports()]
    assert steps == sorted(set(steps)), "a batch is reported twice"
    each = [metrics for report in nodes.reports() for metrics in report.batch_metrics or []]
    assert len(each) == steps[-1]
    sizes = [int(metrics["ranks"]) for metrics in each]
    assert [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before] == [1, 2, 1, 2, 1]
    alone = losses_alone(tmp_path, len(each))
    assert max(abs(float(one["loss"]) - other) for one, other in zip(each, alone, strict=True)) < 1e-6
    print("seconds to train on after a change:", [round(seconds) for seconds in nodes.seconds_to_recover])
    status = json.loads((tmp_path / "runs" / "elastic" / "run.json").read_text())["status"]
    assert status == "stopped"
