"""What a fork does to be a new Python process."""

from __future__ import annotations

import atexit
import os
import random
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn


def become(environment: Mapping[str, str], directory: str, streams: Sequence[int], executable: str) -> None:
    """Take what belongs to a process, in a session of its own: the arguments are those of ForkedProcess."""
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.executable = executable or sys.executable
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    torch, threads = sys.modules.get("torch"), environment.get("OMP_NUM_THREADS", "")
    if torch and threads.isdecimal() and int(threads) != torch.get_num_threads():
        torch.set_num_threads(int(threads))


def run(arguments: Sequence[str]) -> NoReturn:
    """Run a command line of ``python`` in this process and end it.

    Modules are not torn down: that would copy every page which the fork shares with the server.
    """
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    while arguments[0] == "-u":
        unbuffered, arguments = True, arguments[1:]
    _open_streams(unbuffered)
    code = _exit_code(arguments)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _open_streams(unbuffered: bool) -> None:
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.stdout.reconfigure(write_through=unbuffered)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _exit_code(arguments: Sequence[str]) -> int:
    try:
        _execute(list(arguments))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and Path(trace.tb_frame.f_code.co_filename) == Path(__file__):
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _execute(arguments: list[str]) -> None:
    main_module = ModuleType("__main__")
    sys.modules["__main__"] = main_module
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    if arguments[0] == "-m":
        sys.argv = ["-m", *arguments[2:]]
        sys.path.insert(0, str(Path.cwd()))
        sys.modules.pop(arguments[1], None)  # runpy warns of one that was imported before
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        exec(compile(arguments[1], "<string>", "exec"), vars(main_module))
    else:
        script = Path(arguments[0])
        sys.argv = arguments
        sys.path.insert(0, str(script.resolve().parent))
        main_module.__file__ = arguments[0]
        exec(compile(script.read_bytes(), arguments[0], "exec"), vars(main_module))
