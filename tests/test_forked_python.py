"""Forks of a server are what new Python processes would be."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked_python import forked_python
from forking import ForkedProcess, ForkServer


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(["json.tool", "no_such_module"]) as server:
        yield server


class Forked:
    """A fork whose output is a file."""

    def __init__(self, server: ForkServer, folder: Path, *arguments: str, **variables: str) -> None:
        self._output = folder / "output"
        with self._output.open("wb") as output:
            streams = (0, output.fileno(), output.fileno())
            self.process: ForkedProcess = server.start(
                arguments, environment={**os.environ, **variables}, directory=str(folder), streams=streams
            )

    @property
    def printed(self) -> str:
        return self._output.read_text()

    def until_it_prints(self) -> None:
        deadline = time.monotonic() + 60
        while not self.printed:
            assert time.monotonic() < deadline
            time.sleep(0.01)


WAIT = "import signal; print('ready', flush=True); signal.pause()"
SHOW = """
import os, sys
print(__name__, sys.argv[1:], os.environ["COLOUR"], os.getcwd(), sys.path[0], 'json.tool' in sys.modules)
"""


@pytest.mark.parametrize("form", ["code", "module", "script"])
def test_a_command_line_runs_as_python_runs_it(form: str, server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "elsewhere/shown.py"
    script.write_text(SHOW)
    (tmp_path / "shown.py").write_text(SHOW)
    arguments = {"code": ["-c", SHOW], "module": ["-m", "shown"], "script": [str(script)]}[form]

    forked = Forked(server, tmp_path, *arguments, "one", "two words", COLOUR="red")

    assert forked.process.wait(60) == 0, forked.printed
    first = {"code": "", "module": tmp_path, "script": script.parent}[form]
    assert forked.printed == f"__main__ ['one', 'two words'] red {tmp_path} {first} True\n"
    real = subprocess.run(
        [sys.executable, *arguments, "one", "two words"],
        env={**os.environ, "COLOUR": "red"}, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert real.stdout.split()[:-1] == forked.printed.split()[:-1]


@pytest.mark.parametrize(
    ("code", "expected", "printed"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("1 / 0", 1, 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nZeroDivisionError'),
        ("import atexit; atexit.register(print, 'at its end')", 0, "at its end\n"),
    ],
)
def test_a_fork_ends_as_python_ends(code: str, expected: int, printed: str, server: ForkServer, tmp_path: Path) -> None:
    forked = Forked(server, tmp_path, "-c", code)

    assert forked.process.wait(60) == expected
    assert forked.process.poll() == expected
    assert forked.printed.startswith(printed)


def test_variables_of_python_itself_are_obeyed(server: ForkServer, tmp_path: Path) -> None:
    code = "import sys; print(sys.path[1:3], sys.dont_write_bytecode); print(__import__('random').random())"
    variables = {"PYTHONPATH": "/one:/two", "PYTHONDONTWRITEBYTECODE": "1"}

    forked = Forked(server, tmp_path, "-c", code, **variables)
    assert forked.process.wait(60) == 0
    first, number = forked.printed.splitlines()
    other = Forked(server, tmp_path, "-c", code, **variables)
    assert other.process.wait(60) == 0

    assert first == "['/one', '/two'] True"
    assert other.printed.splitlines()[1] != number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_fork(number: signal.Signals, server: ForkServer, tmp_path: Path) -> None:
    forked = Forked(server, tmp_path, "-c", WAIT)
    forked.until_it_prints()

    with pytest.raises(subprocess.TimeoutExpired):
        forked.process.wait(0.05)
    forked.process.send_signal(number)

    assert forked.process.wait(60) == -number


def test_a_killed_fork_takes_its_group_along(server: ForkServer, tmp_path: Path) -> None:
    code = "import os, signal; os.fork() or print(os.getpid(), flush=True); signal.pause()"
    forked = Forked(server, tmp_path, "-c", code)
    forked.until_it_prints()

    forked.process.close()

    assert forked.process.returncode == -signal.SIGKILL
    assert_ends(int(forked.printed))


def test_the_end_of_the_server_ends_its_forks(tmp_path: Path) -> None:
    with ForkServer([]) as server:
        forked = Forked(server, tmp_path, "-c", WAIT)
        forked.until_it_prints()

    assert_ends(forked.process.pid)
    with pytest.raises(ConnectionError):
        forked.process.wait(60)


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


needs_runtime = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs pip install 'ds-migrate[runtime]'")


@needs_runtime
def test_the_stand_in_for_python_is_what_its_processes_start() -> None:
    start = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
    code = "import sys; print('torch._dynamo' in sys.modules); sys.exit(7)"

    done = subprocess.run([forked_python(), "-c", start, code], capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout, done.stderr) == (7, "True\n", "")


@needs_runtime
def test_the_stand_in_for_python_passes_signals_on_and_ends_with_its_process() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [forked_python(), "-c", WAIT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            child.send_signal(number)
            assert child.wait(60) == -number
            assert child.stdout.read() == b""  # which the process itself held open
