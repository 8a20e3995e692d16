"""The fork server: its children are as fresh processes are, and nothing outlives the process that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ds_verify.fork_server import ForkServer, ServerError
from ds_verify.launchers import PRELOAD, FreshProcesses, Launcher
from trial_runtime._ranks import Process


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer(preload=["decimal"])
    yield made
    made.close()


@pytest.fixture(scope="module")
def torch_server() -> Iterator[ForkServer]:
    made = ForkServer(preload=["torch"])
    yield made
    made.close()


def start(launcher: Launcher, folder: Path, source: str, *arguments: str, **variables: str) -> Process:
    """Run ``source`` as the module ``job`` in ``folder``, its output in the file ``log``."""
    (folder / "job.py").write_text(textwrap.dedent(source))
    command, environment = ["-m", "job", *arguments], {**os.environ, **variables}
    return launcher.start(command, environment=environment, directory=folder, log=folder / "log")


def ended(launcher: Launcher, process: Process, seconds: float = 200) -> int:
    deadline = time.monotonic() + seconds
    while (code := process.poll()) is None:
        assert time.monotonic() < deadline, "still running"
        launcher.wait(0.5)
    return code


def output(launcher: Launcher, folder: Path, source: str, *arguments: str, **variables: str) -> str:
    code = ended(launcher, start(launcher, folder, source, *arguments, **variables))
    text = (folder / "log").read_text()
    assert code == 0, text
    return text


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def written(path: Path, seconds: float = 200) -> list[int]:
    """Return the numbers in the first line of a file, once it is there."""
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.02)
    return [int(word) for word in path.read_text().split()]


def assert_all_end(pids: list[int], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"still running: {alive}"
        time.sleep(0.02)


DESCRIBE = """
    import json, os, signal, sys, threading
    ignored = {"_", "OLDPWD", "SHLVL"}
    print(json.dumps({
        "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "name": __name__, "spec": __spec__.name,
        "main": sys.modules["__main__"].__dict__ is globals(),
        "environment": {name: value for name, value in os.environ.items() if name not in ignored},
        "own session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "signals": [str(signal.getsignal(number)).partition(" at ")[0] for number in range(1, 32)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "wakeup": signal.set_wakeup_fd(-1),
        "stdin": sys.stdin.read(), "streams": [stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "buffering": [sys.stdout.line_buffering, sys.stderr.line_buffering],
        "files": sorted(number for number in map(int, os.listdir("/proc/self/fd")) if number < 3),
        "threads": threading.active_count(),
    }))
    """


def test_a_child_finds_what_a_fresh_process_finds(server: ForkServer, tmp_path: Path) -> None:
    both = []
    for name, launcher in (("fresh", FreshProcesses()), ("forked", server)):
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        variables = {"ONLY_HERE": "1", "PYTHONPATH": f"{tmp_path}/one:{tmp_path}/two", "PYTHONUNBUFFERED": ""}
        both.append(json.loads(output(launcher, folder, DESCRIBE, "a", "b c", **variables)))
        assert both[-1]["argv"][1:] == ["a", "b c"], name
    assert both[0] == both[1]
    assert "ONLY_HERE" not in os.environ


@pytest.mark.parametrize("form", ["code", "script", "unbuffered"])
def test_a_command_line_runs_as_python_runs_it(form: str, server: ForkServer, tmp_path: Path) -> None:
    source = "import os, sys; print(__name__, sys.argv, sys.path[:2], os.getcwd(), 'spec' in globals())"
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "elsewhere/shown.py"
    script.write_text(source)
    command = {"code": ["-c", source], "script": [str(script)], "unbuffered": ["-u", "-c", source]}[form]
    printed = []
    for launcher in (FreshProcesses(), server):
        environment, log = {**os.environ, "PYTHONPATH": "/one"}, tmp_path / "log"
        process = launcher.start([*command, "one", "two words"], environment=environment, directory=tmp_path, log=log)
        assert ended(launcher, process) == 0
        printed.append(log.read_text())
    assert printed[0] == printed[1]


def test_a_child_obeys_the_variables_of_python(server: ForkServer, tmp_path: Path) -> None:
    source = "import sys; print(sys.dont_write_bytecode)"
    assert output(server, tmp_path, source, PYTHONDONTWRITEBYTECODE="1") == "True\n"
    assert output(server, tmp_path, source, PYTHONDONTWRITEBYTECODE="") == "False\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_child_alone(number: signal.Signals, server: ForkServer, tmp_path: Path) -> None:
    source = "import os, signal; open('pids', 'w').write(f'{os.getpid()}\\n'); signal.pause()"
    forked = server.start(["-c", source], environment=os.environ, directory=tmp_path, log=tmp_path / "log")
    with pytest.raises(TimeoutError):
        forked.wait(0.05)
    written(tmp_path / "pids")
    forked.send_signal(number)
    assert forked.wait(200) == -number


def test_a_childs_modules_are_imported_in_it_alone(server: ForkServer, tmp_path: Path) -> None:
    for value in ("1", "22"):
        (tmp_path / "own.py").write_text(f"VALUE = {value}")
        assert output(server, tmp_path, "import own; print(own.VALUE)") == f"{value}\n"


def test_what_was_preloaded_is_there_from_the_start(server: ForkServer, tmp_path: Path) -> None:
    assert output(server, tmp_path, "import sys; print('decimal' in sys.modules, 'fractions' in sys.modules)") == (
        "True False\n"
    )


def test_modules_where_the_client_is_are_not_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "colorsys.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    server = ForkServer(["colorsys"])
    (tmp_path / "job").mkdir()
    assert output(server, tmp_path / "job", "import colorsys; print(colorsys.rgb_to_hsv(0, 0, 0))") == "(0.0, 0.0, 0)\n"
    server.close()


def test_only_finalizers_that_a_child_made_are_called_at_its_end(tmp_path: Path) -> None:
    source = "import weakref; weakref.finalize(weakref.finalize, print, 'end of', __name__)"
    (tmp_path / "preloaded.py").write_text(source)
    server = ForkServer(["preloaded"], {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert output(server, tmp_path, source) == "end of __main__\n"
    server.close()


@pytest.mark.parametrize(
    ("source", "code", "text"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("raise ValueError('no such batch')", 1, "ValueError: no such batch"),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_how_a_child_ended_is_reported(server: ForkServer, tmp_path: Path, source: str, code: int, text: str) -> None:
    assert ended(server, start(server, tmp_path, source)) == code
    assert text in (tmp_path / "log").read_text()


def test_the_end_of_a_child_is_noticed_at_once(server: ForkServer, tmp_path: Path) -> None:
    sleeping = start(server, tmp_path, "import time; time.sleep(600)")
    os.kill(sleeping.pid, signal.SIGKILL)
    server.wait(200)
    assert sleeping.poll() == -signal.SIGKILL


def test_children_draw_different_random_numbers(torch_server: ForkServer, tmp_path: Path) -> None:
    source = "import random, numpy; print(random.random(), numpy.random.rand())"
    drawn = [output(torch_server, tmp_path, source).split() for _ in range(2)]
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]


def test_a_child_has_as_many_threads_as_its_environment_asks_for(torch_server: ForkServer, tmp_path: Path) -> None:
    source = "import torch; torch.ones(9999).sum(); print(torch.get_num_threads())"
    assert [output(torch_server, tmp_path, source, OMP_NUM_THREADS=n) for n in ("1", "3")] == ["1\n", "3\n"]


def test_importing_what_a_training_needs_changes_nothing_of_torch_and_deepspeed(
    torch_server: ForkServer, tmp_path: Path
) -> None:
    """The original side runs in a process where DeepSpeed and the runtime are imported, and must not notice."""
    source = """
        import importlib, random, signal, sys, types, warnings
        import numpy, torch
        import torch._dynamo, torch.utils.tensorboard
        from ds_verify.launchers import PRELOAD
        warnings.simplefilter("ignore")

        def members():
            found = {}
            for name, module in list(sys.modules.items()):
                for key, value in list(vars(module).items()) if isinstance(module, types.ModuleType) else ():
                    found[name, key] = value
                    if isinstance(value, type) and value.__module__ == name:
                        found |= {(name, key, inner): held for inner, held in vars(value).items()}
            return found

        def state():
            return {
                "filters": list(warnings.filters), "hooks": (sys.excepthook, sys.displayhook, warnings.showwarning),
                "signals": [signal.getsignal(number) for number in range(1, 32)], "path": list(sys.path),
                "finders": list(sys.meta_path), "seeds": (torch.initial_seed(), torch.get_rng_state().tolist()),
                "random": (random.getstate(), str(numpy.random.get_state())), "grad": torch.is_grad_enabled(),
                "dtype": torch.get_default_dtype(), "threads": torch.get_num_threads(),
                "deterministic": torch.are_deterministic_algorithms_enabled(),
            }

        random.seed(1), numpy.random.seed(1)
        constants = (int, float, str, bytes)
        after, state_after = members(), state()
        for module in PRELOAD:
            before, state_before = after, state_after
            importlib.import_module(module)
            after, state_after = members(), state()
            changed = [key for key, value in before.items() if key[0] != "__main__" and after.get(key) is not value
                       and not (isinstance(value, constants) and after.get(key) == value)]
            parted = [name for name, value in state_after.items() if value != state_before[name]]
            print(module, len(before) > 50_000, changed, parted)
        """
    printed = output(torch_server, tmp_path, source).splitlines()
    assert [line for line in printed if line.endswith("]")] == [
        # rich draws from Python's generator, which each fork seeds anew
        f"{module} True [] {['random'] if module.startswith('rich.') else []}"
        for module in PRELOAD
    ]


LEAVES_A_CHILD = """
    import os, pathlib, subprocess, sys, time
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path("pids").write_text(f"{os.getpid()} {left.pid}\\n")
    """


def test_killing_a_child_kills_what_it_started(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, LEAVES_A_CHILD + "time.sleep(600)")
    pids = written(tmp_path / "pids")
    process.kill()
    assert process.poll() == -signal.SIGKILL
    assert_all_end(pids)


def test_what_an_ended_child_leaves_behind_is_killed(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, LEAVES_A_CHILD)
    assert ended(server, process) == 0
    assert_all_end(written(tmp_path / "pids"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, None], ids=["SIGTERM", "SIGKILL", "exit"])
def test_nothing_outlives_the_process_that_started_the_server(tmp_path: Path, number: int | None) -> None:
    (tmp_path / "job.py").write_text(textwrap.dedent(LEAVES_A_CHILD) + "time.sleep(600)")
    source = f"""
        import os, pathlib, time
        from ds_verify.fork_server import ForkServer
        folder = pathlib.Path({str(tmp_path)!r})
        server = ForkServer([])
        server.start(["-m", "job"], environment=os.environ, directory=folder, log=folder / "log")
        while not (folder / "pids").exists():
            time.sleep(0.02)
        children = pathlib.Path(f"/proc/self/task/{{os.getpid()}}/children").read_text()
        (folder / "server").write_text(children + "\\n")
        {"time.sleep(600)" if number is not None else ""}
        """
    client = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)])
    try:
        pids = [*written(tmp_path / "server"), *written(tmp_path / "pids")]
        if number is not None:
            client.send_signal(number)
        client.wait(200)
        assert_all_end(pids)
    finally:
        client.kill()
        client.wait()


def test_what_a_child_put_into_another_session_ends_with_the_server(tmp_path: Path) -> None:
    server = ForkServer(preload=["decimal"])
    source = "import subprocess; print(subprocess.Popen(['sleep', '100'], start_new_session=True).pid, flush=True)"
    pid = int(output(server, tmp_path, source))
    assert is_alive(pid)
    server.close()
    assert not is_alive(pid)


def test_children_end_with_a_server_that_is_killed(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, "import os, time; open('pids', 'w').write(f'{os.getppid()}\\n'); time.sleep(600)")
    (parent,) = written(tmp_path / "pids")
    os.kill(parent, signal.SIGKILL)
    assert ended(server, process) == -signal.SIGKILL
    assert_all_end([process.pid])
    with pytest.raises(ServerError, match="was killed"):
        start(server, tmp_path, "")


def test_children_end_with_a_server_that_is_closed(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, "import time; time.sleep(600)")
    server.close()
    assert_all_end([process.pid])
    with pytest.raises(ServerError, match="is closed"):
        start(server, tmp_path, "")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise ImportError('libfoo is missing')", "libfoo is missing"),
        ("import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()", "1 threads"),
    ],
)
def test_imports_that_cannot_be_forked_are_an_error_with_the_reason(tmp_path: Path, source: str, problem: str) -> None:
    (tmp_path / "unfit.py").write_text(source)
    server = ForkServer(["unfit"], {**os.environ, "PYTHONPATH": str(tmp_path)})
    with pytest.raises(ServerError, match=problem):
        start(server, tmp_path, "")
    server.close()
