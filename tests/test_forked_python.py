"""The stand-in for ``sys.executable`` is what the processes that it starts take for Python, too."""

from __future__ import annotations

import signal
import subprocess
from importlib.util import find_spec

import pytest
from forked_python import forked_python

WAIT = "import signal; print('ready', flush=True); signal.pause()"

needs_runtime = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs pip install 'ds-migrate[runtime]'")


@needs_runtime
def test_the_stand_in_for_python_is_what_its_processes_start() -> None:
    start = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
    code = "import sys; print('torch._dynamo' in sys.modules); sys.exit(7)"

    done = subprocess.run([forked_python(), "-c", start, code], capture_output=True, text=True, timeout=200)

    assert (done.returncode, done.stdout, done.stderr) == (7, "True\n", "")


@needs_runtime
def test_the_stand_in_for_python_passes_signals_on_and_ends_with_its_process() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [forked_python(), "-c", WAIT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            child.send_signal(number)
            assert child.wait(200) == -number
            assert child.stdout.read() == b""  # which the process itself held open
