"""A SLURM of one node, this machine, with its own keys, ports and folders; it needs root and Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_CONFIG = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=requeue_delay=1
SelectType=select/cons_tres
ReturnToService=2
KillWait=30
MinJobAge=600
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""


def why_not() -> str | None:
    """Return why no SLURM can be started here; None when it can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    if missing := [program for program in PROGRAMS if shutil.which(program, path=path) is None]:
        return f"needs SLURM (apt install slurmctld slurmd slurm-client munge): {', '.join(missing)}"
    return None if os.geteuid() == 0 else "needs root: slurmd starts steps as other users"


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Run it while entered; provide the environment in which ``sbatch`` and ``srun`` find it."""
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = os.uname().nodename
    (folder / "slurm.conf").write_text(
        _CONFIG.format(host=host, folder=folder, controller=free_port(), node=free_port(), cpus=os.cpu_count())
    )
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
    for name in ("RANK", "WORLD_SIZE", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    files = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket", *files],
        ["slurmctld", "-D", "-i"],
        ["slurmd", "-D"],
    ]
    daemons = []
    try:
        for command in commands:
            log = (folder / f"{command[0]}.out").open("wb")
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            time.sleep(1)
        _wait_until_idle(environment, folder)
        yield environment
    finally:
        subprocess.run(["scancel", "--user=root", "--signal=KILL", "--full"], env=environment, timeout=60, check=False)
        time.sleep(1)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shown = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, check=False
        )
        if shown.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = "\n".join(file.read_text(errors="replace")[-2000:] for file in folder.glob("*.log"))
    raise AssertionError(f"SLURM does not start: {shown.stdout}{shown.stderr}\n{logs}")
