"""``ds-verify fixtures/<each>/before`` says same, on one rank and on two."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ds_verify.cli import main
from ds_verify.exit_codes import DIFFERENT, NOT_RUN, SAME
from fixture_folders import FIXTURES

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# A trial of two models, a script, and one with callbacks, schedules and clipping. All fixtures are trained and compared
# by the equivalence tests, through the same modules.
SLOW = ("mnist_script", "schedule_clip_reducers")


@pytest.mark.parametrize("name", ["gan", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_fixture_and_its_conversion_are_the_same(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    shutil.copytree(FIXTURES / name / "before", project, ignore=shutil.ignore_patterns("__pycache__"))
    before = sorted(project.iterdir())

    code = main([str(project), "--steps", "12", "--device", "cpu", "--report", "report.html"])

    printed = capsys.readouterr()
    assert code == SAME, printed.out + printed.err
    assert printed.out.splitlines()[-1].startswith("same: 12 batches with 1 and 2 ranks")
    assert printed.err.splitlines()[-1] == "next: ds-migrate --write project"
    page = Path("report.html").read_text()
    assert "<svg" in page and "src=" not in page and "://" not in page.replace("http://www.w3.org", "")
    assert sorted(project.iterdir()) == before, "the sources were written to"


def test_every_stage_is_compared_and_one_that_the_trial_refuses_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [str(FIXTURES / "gan/before"), "--steps", "4", "--ranks", "1", "--zero-sweep", "1,2", "--no-report",
         "--device", "cpu"]
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert code == SAME, printed
    assert "1 rank, ZeRO 1 " in printed
    (refused,) = [line for line in printed.splitlines() if "did not train" in line]
    assert refused.startswith("converted, ZeRO 2, 1 rank did not train: ") and "EngineModule" in refused


def test_the_original_can_be_trained_on_determined_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [str(FIXTURES / "schedule_clip_reducers/before"), "--steps", "8", "--oracle", "determined", "--no-report",
         "--device", "cpu"]
    )  # fmt: skip
    assert code == SAME, capsys.readouterr().out


def git(*words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True, capture_output=True, timeout=200
    )


def with_secrets(config: Path, note: str) -> None:
    service = '  service: {api_key: KEY-1, url: "https://me:KEY-2@host/x"}\n' + f"  note: {note}\n"
    text = config.read_text().replace("hyperparameters:\n", f"hyperparameters:\n{service}")
    assert "KEY-1" in text
    config.write_text(
        f"{text}environment: {{environment_variables: [A=KEY-3], registry_auth: {{password: KEY-4}}}}\n"
        "data: {password: KEY-5}\n"
    )


def test_converted_files_are_compared_with_what_git_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    shutil.copytree(FIXTURES / "guide/before", project)
    with_secrets(project / "const.yaml", "before")
    git("init", "-q", str(project))
    git("-C", str(project), "add", ".")
    git("-C", str(project), "commit", "-qm", "before")
    shutil.copytree(FIXTURES / "guide/after", project, dirs_exist_ok=True)
    with_secrets(project / "const.yaml", "after")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    arguments = [str(project), "--steps", "4", "--ranks", "1", "--device", "cpu"]
    assert main([*arguments, "--report", str(tmp_path / "report.html")]) == SAME, capsys.readouterr().out
    shown = capsys.readouterr()
    assert "KEY-" not in shown.out + shown.err
    assert "service" in (tmp_path / "report.html").read_text()
    written = [path for path in tmp_path.rglob("*") if path.is_file() and project not in path.parents]
    assert [path for path in written if b"KEY-" in path.read_bytes()] == []
    arguments.append("--no-report")

    source = project / "model_def.py"
    source.write_text(source.read_text().replace("lr=self.args.learning_rate", "lr=2 * self.args.learning_rate"))
    assert main(arguments) == DIFFERENT
    printed = capsys.readouterr().out
    assert "HEAD" in printed
    *_, verdict, step = printed.strip().splitlines()
    assert verdict.startswith("different: with 1 rank from batch 1: learning rates by ")
    assert step == "next: look at the optimizer's learning rate, and where its schedule steps"


def test_an_original_that_does_not_train_gives_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    shutil.copytree(FIXTURES / "guide/before", project)
    source = project / "model_def.py"
    source.write_text(source.read_text().replace("learning_rate", "no_such_hparam"))
    code = main([str(project), "--steps", "4", "--ranks", "1", "--device", "cpu", "--no-report"])
    printed = capsys.readouterr().out
    assert code == NOT_RUN, printed
    assert "the original does not train with 1 rank" in printed and "no_such_hparam" in printed


def test_a_trial_that_does_not_convert_is_reported_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    shutil.copytree(FIXTURES / "guide/before", project)
    source = project / "model_def.py"
    source.write_text(source.read_text().replace("backward(loss)", "backward(loss, create_graph=True)"))
    assert main([str(project), "--no-report"]) == NOT_RUN
    assert "create_graph" in capsys.readouterr().err


def processes_with(variable: str) -> list[int]:
    """Return the ids of the processes that were started with an environment variable, zombies aside."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("number", "code", "reported"),
    [
        (signal.SIGINT, 130, "ds-verify: interrupted; both sides are stopped"),
        pytest.param(
            signal.SIGTERM, 143, "ds-verify: terminated; both sides are stopped", marks=pytest.mark.slow
        ),  # SIGINT's way
        # That nothing outlives a killed process which started a server is shown with the server alone, too.
        pytest.param(signal.SIGKILL, -9, "", marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_both_sides(tmp_path: Path, number: int, code: int, reported: str) -> None:
    command = [
        sys.executable, "-c", "from trial_runtime.commands import verify; raise SystemExit(verify())",
        str(FIXTURES / "guide/before"), "--steps", "1000000", "--device", "cpu", "--no-report", "--ranks", "2",
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 240
        while not list(tmp_path.glob("ds-verify-*/records/*.progress")):  # until it trains
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        assert len(processes_with(f"TMPDIR={tmp_path}")) >= 4  # itself, a server, two ranks
        process.send_signal(number)
        _, printed = process.communicate(timeout=200)
        assert process.returncode == code, printed
        assert reported in printed
        if number != signal.SIGKILL:
            assert not list(tmp_path.glob("ds-verify-*")), "its working copies stay behind"
        deadline = time.monotonic() + 60
        while left := processes_with(f"TMPDIR={tmp_path}"):
            assert time.monotonic() < deadline, f"still running: {left}"
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
        for left_behind in processes_with(f"TMPDIR={tmp_path}"):
            os.kill(left_behind, signal.SIGKILL)
