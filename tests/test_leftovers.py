"""What a test starts ends with it."""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked_python import start_forked
from leftovers import end_leftovers, process_ids

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")

LEAVE = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"


def test_a_process_that_a_test_left_behind_is_found_and_killed() -> None:
    before = process_ids()
    with subprocess.Popen(["sleep", "600"]) as child:
        (command,) = end_leftovers(before, grace=0.1)
    assert command == f"{child.pid}: sleep 600 "
    assert child.returncode == -9


def test_an_orphan_is_found_too() -> None:
    before = process_ids()
    subprocess.run([sys.executable, "-c", LEAVE], check=True, timeout=60)
    (command,) = end_leftovers(before, grace=0.1)
    assert "time.sleep(600)" in command
    assert os.waitpid(int(command.partition(":")[0]), 0)[1] == 9


def test_processes_that_have_ended_or_belong_to_others_are_no_leftovers() -> None:
    before = process_ids()
    subprocess.run(["true"], check=True, timeout=60)
    assert end_leftovers(before) == []
    assert str(os.getpid()) in before and Path(f"/proc/{os.getpid()}").exists()


def test_a_signal_that_the_shell_ignores_reaches_what_tests_start(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_default.py").write_text(
        "import signal, subprocess, sys\n"
        "def test_default():\n"
        "    code = 'import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)'\n"
        "    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)\n"
        "    assert done.stdout == 'True\\n'\n"
    )
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "pytest", "-q", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs pip install 'ds-migrate[runtime]'")
def test_what_a_fork_server_started_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    wait = "import time; print('ready', flush=True); time.sleep(600)"
    before = process_ids()

    left = start_forked(["-c", wait], environment=os.environ, directory=tmp_path, log=log)
    while not log.read_text():  # until then it has the server's name
        time.sleep(0.02)

    assert [line.partition(":")[0] for line in end_leftovers(before, grace=0.1)] == [str(left.pid)]
    assert left.wait(60) == -signal.SIGKILL
