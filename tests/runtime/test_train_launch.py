"""ds-train as a command: how ranks are started, joined, stopped and started again. Their scripts need no torch."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from forked_python import forked_python
from ports import free_port
from trial_runtime._cluster_info import ENV_VAR
from trial_runtime.train.run import local_launcher
from trial_runtime.train.run.external_launcher import slurm_environment

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs the extra runtime")

CONFIG = """
name: exp
entrypoint: python3 train.py one "two words"
hyperparameters: {lr: 1e-4, width: {type: int, minval: 1, maxval: 8}}
searcher: {name: single, max_length: {batches: 3}}
reproducibility: {experiment_seed: 7}
environment: {environment_variables: [FROM_CONFIG=yes]}
"""
REPORT = """
import json, os, sys
from pathlib import Path
from determined import get_cluster_info
info = get_cluster_info()
report = {
    "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path[0], "env": os.environ.get("FROM_CONFIG"),
    "rank": os.environ.get("RANK"), "size": os.environ.get("WORLD_SIZE"), "hparams": info.trial.hparams,
    "seed": info.trial.trial_seed, "slots": info.slot_ids, "nodes": len(info.container_addrs),
    "node": info.container_rank, "latest": info.latest_checkpoint, "directory": info.run.directory,
}
(Path(info.run.directory) / f"report_{os.environ.get('RANK', 0)}.json").write_text(json.dumps(report))
print("trained")
"""
JOINED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print(int(ones), "of", dist.get_world_size())
dist.destroy_process_group()
"""


class Experiment:
    """A folder ``exp`` with a config and a script, and a working directory beside it.

    python: what its processes are started with; the stand-in saves them the import of torch.
    """

    def __init__(self, folder: Path, script: str, config: str = CONFIG, python: str = "") -> None:
        self.folder = folder
        self.python = python or forked_python()
        self.context = folder / "exp"
        self.context.mkdir()
        (self.context / "c.yaml").write_text(config)
        (self.context / "train.py").write_text(textwrap.dedent(script))

    def environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if name not in (ENV_VAR, "RANK", "WORLD_SIZE")}
        return {**mine, "OMP_NUM_THREADS": "1"}

    def start(
        self, *options: str, command: tuple[str, ...] = ("-m", "trial_runtime.train"), **variables: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, *command, "exp/c.yaml", "--hparam", "width=4", *options],
            cwd=self.folder,
            env={**self.environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_rank(self, rank: int, port: int) -> subprocess.Popen[str]:
        """One of two ranks, as the ``deepspeed`` launcher starts it."""
        return self.start(
            f"--local_rank={rank}", RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_SIZE="2",
            CROSS_RANK="0", CROSS_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip

    def run(self, *options: str, command: tuple[str, ...] = ("-m", "trial_runtime.train")) -> tuple[int, str, str]:
        child = self.start(*options, command=command)
        out, err = child.communicate(timeout=200)
        return child.returncode, out, err

    def reports(self, run: str = "exp-1") -> list[Any]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / "runs" / run).glob("report_*.json"))]

    def status(self, run: str = "exp-1") -> str:
        return str(json.loads((self.folder / "runs" / run / "run.json").read_text())["status"])


def test_a_script_runs_as_it_did_on_the_cluster(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, REPORT, python=sys.executable)

    code, out, err = experiment.run()

    assert (code, out) == (0, "trained\n"), err
    assert "finished; nothing was trained: no metrics were reported" in err
    assert experiment.reports() == [
        {
            "argv": ["train.py", "one", "two words"], "cwd": str(experiment.context), "path": str(experiment.context),
            "env": "yes", "rank": None, "size": None, "hparams": {"lr": 1e-4, "width": 4}, "seed": 7, "slots": [0],
            "nodes": 1, "node": 0, "latest": None, "directory": str(tmp_path / "runs" / "exp-1"),
        }
    ]  # fmt: skip
    run = tmp_path / "runs" / "exp-1"
    assert (run / "config.yaml").read_text() == CONFIG.replace("FROM_CONFIG=yes", "FROM_CONFIG=<masked>")
    assert (run / "log" / "rank_0.log").read_text() == "trained\n"
    assert experiment.status() == "completed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exp", "runs"]


def test_several_slots_are_as_many_ranks(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, REPORT)

    code, out, err = experiment.run("--slots", "2")

    assert code == 0, err
    assert sorted(out.splitlines()) == ["[rank 0] trained", "[rank 1] trained"]
    assert [(report["rank"], report["size"], report["slots"]) for report in experiment.reports()] == [
        ("0", "2", [0, 1]),
        ("1", "2", [0, 1]),
    ]


@pytest.mark.parametrize(
    ("nodes", "python"), [(1, ""), (2, ""), pytest.param(1, sys.executable, marks=pytest.mark.slow, id="new processes")]
)
def test_under_torchrun_the_ranks_found_are_joined(nodes: int, python: str, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, REPORT, python=python)
    launcher = (
        "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{free_port()}", "-m", "trial_runtime.train",
    )  # fmt: skip

    agents = [experiment.start(command=launcher) for _ in range(nodes)]
    ends = [(agent.communicate(timeout=200)[1], agent.returncode) for agent in agents]

    assert [code for _, code in ends] == [0] * nodes, ends
    reports = experiment.reports()
    assert [report["rank"] for report in reports] == ["0", "1"]
    assert sorted(report["node"] for report in reports) == list(range(nodes)) * (2 // nodes)
    assert {report["nodes"] for report in reports} == {nodes}
    assert {(report["cwd"], report["path"]) for report in reports} == {(str(experiment.context),) * 2}
    assert {report["directory"] for report in reports} == {str(tmp_path / "runs" / "exp-1")}
    assert sum("run directory" in err for err, _ in ends) == 1
    assert experiment.status() == "completed"


def test_ranks_of_a_launcher_without_a_store_agree_too(tmp_path: Path) -> None:
    """The deepspeed launcher's variables, and the argument that it appends; the script makes a process group."""
    experiment = Experiment(tmp_path, REPORT + JOINED)
    port = free_port()

    ranks = [experiment.start_rank(rank, port) for rank in range(2)]
    ends = [(rank.communicate(timeout=200), rank.returncode) for rank in ranks]

    assert [code for _, code in ends] == [0, 0], ends
    assert ["2 of 2" in out for (out, _), _ in ends] == [True, True]
    assert [(report["rank"], report["slots"]) for report in experiment.reports()] == [("0", [0, 1]), ("1", [0, 1])]


def test_a_port_that_is_taken_is_one_clear_error(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, REPORT)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        rank = experiment.start_rank(0, port)
        _, err = rank.communicate(timeout=200)

    assert rank.returncode == 2
    assert f"rank 0: MASTER_ADDR=127.0.0.1 MASTER_PORT={port}: " in err
    assert "address already in use; choose a free port" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, {}),  # a batch script
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, {}),
        (
            {
                "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
                "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "gpu[07-08,11]",
                "SLURM_JOB_ID": "30042",
            },
            {
                "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
                "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "gpu07", "MASTER_PORT": "15042",
            },
        ),
    ],
)  # fmt: skip
def test_tasks_of_srun_are_ranks(given: dict[str, str], expected: dict[str, str]) -> None:
    assert slurm_environment(given) == expected


def test_a_config_error_under_a_launcher_is_reported_once_and_ends_all_ranks(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, REPORT)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trial_runtime.train")

    code, _, err = experiment.run("--config", "scheduling_unit=0", command=launcher)

    assert code != 0
    assert err.count("scheduling_unit: 0 is not allowed") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("slots", ["1", "2"])
def test_a_failing_rank_ends_the_run_with_its_code(slots: str, tmp_path: Path) -> None:
    trained = "json.load(open(os.environ['DS_TRAIN_CLUSTER_INFO']))['run']['directory'] + '/metrics.jsonl'"
    experiment = Experiment(
        tmp_path,
        "import json, os\n"
        f"if os.environ.get('RANK', '0') == '0': open({trained}, 'a').write('{{}}\\n'); raise ValueError('no data')",
    )

    code, _, err = experiment.run("--slots", slots)

    assert code == 1
    assert err.count("ValueError: no data") == int(slots)  # of several ranks it is the last line, too
    assert "runpy" not in err
    assert "ds-train: failed with exit code 1" in err
    assert f"continue with: ds-train exp/c.yaml --hparam width=4 --slots {slots} --run-dir runs/exp-1" in err
    assert experiment.status() == "failed"
    assert "ValueError: no data" in (tmp_path / "runs" / "exp-1" / "log" / "rank_0.log").read_text()


def test_max_restarts_starts_from_the_latest_checkpoint(tmp_path: Path) -> None:
    script = """
    from pathlib import Path
    from trial_runtime import get_cluster_info
    info = get_cluster_info()
    folder = Path(info.run.checkpoint_directory)
    print("from", info.latest_checkpoint and Path(info.latest_checkpoint).name)
    number = len(list(folder.iterdir()))
    (folder / f"step{number}").mkdir()
    (folder / "latest").write_text(f"step{number}")
    if number < 3: raise SystemExit(3)
    """
    experiment = Experiment(tmp_path, script, CONFIG + "max_restarts: 1\n")

    code, out, err = experiment.run()

    assert (code, out.splitlines()) == (3, ["from None", "from step0"])
    assert "(restart 1 of max_restarts 1)" in err
    code, out, _ = experiment.run("--run-dir", "runs/exp-1")
    assert (code, out.splitlines()) == (0, ["from step2"])
    assert experiment.status() == "completed"


def test_ranks_that_torchrun_starts_again_continue_the_same_run(tmp_path: Path) -> None:
    script = """
    import os
    from pathlib import Path
    from trial_runtime import get_cluster_info
    info = get_cluster_info()
    print("from", info.latest_checkpoint and Path(info.latest_checkpoint).name)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "0":
            (Path(info.run.checkpoint_directory) / "step1").mkdir()
            (Path(info.run.checkpoint_directory) / "latest").write_text("step1")
            raise SystemExit(1)
        import signal
        signal.pause()
    """
    experiment = Experiment(tmp_path, script)
    launcher = (
        "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{free_port()}", "-m", "trial_runtime.train",
    )  # fmt: skip

    code, out, err = experiment.run(command=launcher)

    assert code == 0, err
    assert out.count("from step1") == 2
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [".gitignore", "exp-1"]
    assert experiment.status() == "completed"


WAITING = """
import os, signal, sys
from trial_runtime import get_cluster_info
def leave(number, frame):
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
try:
    print("ready", os.getpid(), flush=True)
    while True:
        signal.pause()
except SystemExit:
    print("left", flush=True)
    raise
"""


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_every_rank_once(slots: int, number: signal.Signals, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, WAITING, python=sys.executable if number == signal.SIGINT else "")
    child = experiment.start("--slots", str(slots))
    assert child.stdout is not None
    for _ in range(slots):
        assert "ready" in child.stdout.readline()

    child.send_signal(number)
    out, err = child.communicate(timeout=200)

    assert child.returncode == 128 + number, err
    assert out.count("left") == slots
    assert f"stopped by {number.name}" in err
    assert "death signal" not in err  # torch's launcher says so in its own way
    assert experiment.status() == "stopped"


@pytest.mark.parametrize("slots", [1, 2])
def test_a_scheduler_signal_that_a_script_handles_does_not_stop_the_run(slots: int, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, WAITING.replace("SIGINT", "SIGUSR1"))
    child = experiment.start("--slots", str(slots))
    assert child.stdout is not None
    for _ in range(slots):
        assert "ready" in child.stdout.readline()

    child.send_signal(signal.SIGUSR1)
    out, err = child.communicate(timeout=200)

    assert child.returncode == 0, err
    assert out.count("left") == slots
    assert experiment.status() == "completed"


BUSY = """
import ctypes, signal
signal.signal(signal.SIGTERM, lambda *_: None)  # Python runs it once the call below has returned
mutex = ctypes.create_string_buffer(64)
library = ctypes.CDLL(None)
library.pthread_mutex_lock(mutex)
print("ready", flush=True)
library.pthread_mutex_lock(mutex)  # for ever, whatever signals come
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the library and its call are Linux's")
@pytest.mark.parametrize("slots", [1, 2])
def test_a_second_signal_ends_ranks_that_are_inside_a_long_call(slots: int, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, BUSY)
    child = experiment.start("--slots", str(slots))
    assert child.stdout is not None
    for _ in range(slots):
        assert "ready" in child.stdout.readline()

    child.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(2)
    second = time.monotonic()
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=200)  # ends when no rank holds the pipe any more

    assert time.monotonic() - second < 90  # the first signal alone leaves them 600 seconds
    assert child.returncode == 128 + signal.SIGTERM, err
    assert "stopped by SIGTERM" in err


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a child of its parent's end on Linux only")
@pytest.mark.parametrize("slots", [1, 2])
def test_no_rank_outlives_a_killed_ds_train(slots: int, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, WAITING, python=sys.executable)
    child = experiment.start("--slots", str(slots))
    assert child.stdout is not None
    for _ in range(slots):
        assert "ready" in child.stdout.readline()

    child.kill()
    out, _ = child.communicate(timeout=200)  # ends when no rank holds the pipe any more

    assert out.count("left") == slots


def test_a_second_run_in_a_used_directory_is_refused(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, WAITING)
    child = experiment.start()
    assert child.stdout is not None
    ready = child.stdout.readline()
    try:
        code, _, err = experiment.run("--run-dir", "runs/exp-1")
        status = experiment.status()
    finally:
        child.terminate()
        child.communicate(timeout=200)

    assert code == 2
    assert f"the process {ready.split()[1]} is training there" in err
    assert status == "running"


def test_the_ranks_of_one_machine_are_reached_from_there_only(tmp_path: Path) -> None:
    experiment = Experiment(
        tmp_path,
        """
        import json, os, psutil, torch, torch.distributed as dist
        from pathlib import Path
        from determined import get_cluster_info
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        sockets = [s for p in (psutil.Process(), psutil.Process().parent()) for s in p.net_connections("tcp")]
        listening = sorted({s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN})
        Path(get_cluster_info().run.directory, f"report_{dist.get_rank()}.json").write_text(json.dumps(listening))
        dist.barrier()
        dist.destroy_process_group()
        """,
    )
    code, _, err = experiment.run("--slots", "2")
    assert code == 0, err
    assert experiment.reports() == [["127.0.0.1"], ["127.0.0.1"]]


class Ended:
    """A rank: the exit codes that looks at it find, one after the other."""

    def __init__(self, *codes: int | None) -> None:
        self._codes = list(codes)

    def poll(self) -> int | None:
        return self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]

    def send_signal(self, number: int) -> None:
        """Take the signal."""

    kill = wait = poll


def test_rank_that_was_killed_is_reported_also_where_another_ended_before(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = iter([Ended(None, None, -signal.SIGKILL), Ended(1)])
    monkeypatch.setattr(local_launcher, "PythonProcess", lambda *_: next(ranks))
    said: list[str] = []
    assert local_launcher.run_ranks([], 2, {}, 0, lambda: None, said.append) == 128 + signal.SIGKILL
    assert said == ["rank 0 was ended by SIGKILL"]
