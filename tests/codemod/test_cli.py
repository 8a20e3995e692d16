"""The command line: exit codes, what goes to which stream, and what is not imported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ds_migrate.pipeline
import pytest
from ds_migrate.cli import main
from ds_migrate.cli.arguments import Arguments
from ds_migrate.cli.parser import make_parser
from ds_migrate.files.discovery import Source
from ds_migrate.findings import FileKind, FileResult, FileStatus, Report, Severity, TrialResult, TrialStatus
from ds_migrate.options import Options
from shell_samples import TRIAL, changed, created, finding, git, report_of

HEAVY = {"torch", "deepspeed", "libcst", "rich", "pygments", "ruamel.yaml", "pathspec"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a trial in it."""
    root = Path(os.path.realpath(tmp_path)) / "here"
    root.mkdir()
    (root / "trial.py").write_bytes(TRIAL)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder."""
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


class Engine:
    """Answers with the report it was given, and remembers what it was asked."""

    def __init__(self) -> None:
        self.report = Report()
        self.sources: Sequence[Source] = []
        self.options = Options()

    def migrate(self, sources: Sequence[Source], options: Options, jobs: int | None = None) -> Report:
        assert jobs is None
        self.sources, self.options = sources, options
        return self.report


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr(ds_migrate.pipeline, "migrate", fake.migrate)
    return fake


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "ds_migrate", *map(str, arguments)]


def trial_file(status: TrialStatus, *severities: Severity) -> FileResult:
    """trial.py with a trial that stays as it is."""
    findings = [finding(severity) for severity in severities]
    trials = [TrialResult("Trial", 4, status)]
    return FileResult(Path("trial.py"), status=FileStatus.BLOCKED, before=TRIAL, trials=trials, findings=findings)


def to_convert() -> FileResult:
    return changed(Path("trial.py"), TRIAL, b"converted\n", finding(Severity.CONVERTED), finding(Severity.REVIEW))


ERROR = FileResult(Path("bad.py"), status=FileStatus.ERROR, findings=[finding(Severity.ERROR)])


# -- exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "preview", "check", "write"),
    [
        ([], 0, 0, 0),
        ([to_convert], 0, 1, 0),
        ([lambda: trial_file(TrialStatus.BLOCKED, Severity.BLOCKED)], 0, 1, 1),
        ([lambda: trial_file(TrialStatus.UNSUPPORTED_API, Severity.REVIEW)], 0, 1, 1),
        ([lambda: trial_file(TrialStatus.ALREADY_DEEPSPEED)], 0, 0, 0),
        ([lambda: trial_file(TrialStatus.ALREADY_DEEPSPEED, Severity.REVIEW)], 0, 0, 0),
        ([to_convert, lambda: ERROR], 2, 2, 2),
        ([lambda: trial_file(TrialStatus.BLOCKED, Severity.BLOCKED), lambda: ERROR], 2, 2, 2),
        ([lambda: FileResult(Path("helper.py"), findings=[finding(Severity.BLOCKED)])], 0, 1, 1),
        ([lambda: created(Path("ds_config.json"), b"{}")], 0, 1, 0),
    ],
)
def test_exit_codes(files: list, preview: int, check: int, write: int, here: Path, engine: Engine) -> None:  # type: ignore[type-arg]
    for arguments, code in (([], preview), (["--check"], check), (["--write"], write)):
        engine.report = report_of(*(make() for make in files))
        assert main(["trial.py", *arguments]) == code
        assert (here / "trial.py").read_bytes() == (
            b"converted\n" if to_convert in files and "--write" in arguments else TRIAL
        )


@pytest.mark.parametrize("mode", ["--check", "--write", "--format=json", "--color=never"])
def test_a_path_that_is_not_there_is_2_and_the_others_are_still_done(mode: str, here: Path, engine: Engine) -> None:
    engine.report = report_of(to_convert())
    assert main(["missing.py", "trial.py", mode]) == 2
    assert [source.path.name for source in engine.sources] == ["trial.py"]
    assert (here / "trial.py").read_bytes() == (b"converted\n" if mode == "--write" else TRIAL)


def test_a_leftover_marker_fails_a_check_and_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "trial.py").write_bytes(b"x = 1\ny = 2  # TODO(ds-migrate DSM204): look at this\n")
    assert main(["--check", "trial.py"]) == 1
    assert (
        "trial.py:2:8 DSM005 review: a marker is left: # TODO(ds-migrate DSM204): look at this"
        in capsys.readouterr().out
    )
    assert main(["trial.py"]) == 0
    assert main(["--write", "trial.py"]) == 0


def test_a_marker_in_a_string_is_none(here: Path) -> None:
    (here / "trial.py").write_bytes(b'TEXT = "# TODO(ds-migrate DSM204): quoted"\n')
    assert main(["--check", "trial.py"]) == 0


def test_a_marker_in_an_experiment_config_counts(here: Path) -> None:
    (here / "trial.py").unlink()
    (here / "const.yaml").write_bytes(b"a: 1  # TODO(ds-migrate DSM404): check\n")
    assert main(["--check", "const.yaml"]) == 1


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(ds_migrate.pipeline, "migrate", interrupted)
    assert main(["--write", "trial.py"]) == 130


def test_a_fault_of_the_tool_is_2_and_not_taken_for_work_that_remains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> Report:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(ds_migrate.pipeline, "migrate", broken)
    assert main(["--check", "trial.py"]) == 2
    assert "no such luck" in capsys.readouterr().err


# -- arguments --------------------------------------------------------------------------------------------------------


def test_every_option_has_a_default_in_one_place() -> None:
    actions = [action for action in make_parser()._actions if action.dest not in ("help", "version")]
    assert {action.dest for action in actions} <= vars(Arguments()).keys()
    assert not [action.dest for action in actions if action.default]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name at least one PATH"),
        (["--write", "--check", "x"], "not allowed with argument"),
        (["--chek", "x"], "did you mean --check?"),
        (["--formatt=json", "x"], "did you mean --format?"),
        (["--wri", "x"], "did you mean --write?"),
        (["--zero", "4", "x"], "argument --zero: invalid choice: "),
        (["--target", "ray", "x"], "invalid choice: 'ray'"),
        (["--undo", "a", "b"], "one PATH at most"),
        (["--list-rules", "--format", "html"], "--format html is for"),
    ],
)
def test_wrong_usage_is_2_and_reports_what_is_right(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert output.out == ""


def test_options_may_stand_between_paths(here: Path, engine: Engine) -> None:
    (here / "b.py").write_bytes(TRIAL)
    assert main(["trial.py", "--target", "determined", "b.py", "--zero=1"]) == 0
    assert [str(source.path) for source in engine.sources] == ["trial.py", "b.py"]
    assert engine.options == Options("determined", 1)


def test_a_path_like_an_option_can_follow_two_dashes(here: Path, engine: Engine) -> None:
    (here / "--write").mkdir()
    (here / "--write/t.py").write_bytes(TRIAL)
    assert main(["--check", "--", "--write"]) == 0
    assert [str(source.path) for source in engine.sources] == ["--write/t.py"]


def test_help_and_version_are_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "exit codes:" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert re.fullmatch(r"ds-migrate \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_every_rule_is_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"DSM\d{3}  [a-z0-9-]+ +\S", line) for line in lines)
    codes = [line.split()[0] for line in lines]
    assert {"DSM001", "DSM004", "DSM005", "DSM201"} <= set(codes)
    for code in codes:
        assert main(["--explain", code.lower()]) == 0
        assert capsys.readouterr().out.startswith(code)


def test_a_rule_can_be_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain", "wrap-model"]) == 0
    assert capsys.readouterr().out.startswith("DSM201 wrap-model")


def test_an_unknown_rule_is_2_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain", "DSM20"]) == 2
    assert "did you mean DSM" in capsys.readouterr().err


# -- output -----------------------------------------------------------------------------------------------------------


def test_a_preview_prints_the_patch_alone_on_stdout(engine: Engine, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    engine.report = report_of(changed(Path("trial.py"), TRIAL, b"\xff\r\n", finding(Severity.REVIEW, "look")))
    assert main(["trial.py"]) == 0
    output = capfdbinary.readouterr()
    assert output.out.startswith(b"--- a/trial.py\n+++ b/trial.py\n@@ ")
    assert output.out.endswith(b"+\xff\r\n")
    assert b"trial.py:3:5 DSM204 review: look\n" in output.err
    assert b"ds-migrate --write trial.py" in output.err


def test_colour_wanted_by_the_environment_does_not_spoil_the_patch(
    engine: Engine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    engine.report = report_of(to_convert())
    assert main(["trial.py"]) == 0
    assert capfd.readouterr().out.startswith("--- a/trial.py\n")


def test_colour_that_was_asked_for_shows_the_terminal_view(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    engine.report = report_of(to_convert())
    assert main(["trial.py", "--color=always"]) == 0
    output = capfd.readouterr().out
    assert "\x1b[" in output
    assert "to review" in output


def test_a_check_prints_what_stands_in_its_way(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.report = report_of(to_convert(), created(Path("ds_config.json"), b"{}"))
    assert main(["--check", "trial.py"]) == 1
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "trial.py:4 Trial is a PyTorchTrial that --write converts",
        "ds_config.json would be created",
        "trial.py:3:5 DSM204 review: said",
    ]
    assert "to apply it   ds-migrate --write trial.py" in output.err


def test_writing_prints_the_files_it_wrote(here: Path, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.report = report_of(to_convert(), created(Path("ds_config.json"), b"{}"))
    assert main(["--write", "trial.py"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["changed trial.py", "created ds_config.json"]
    assert (here / "ds_config.json").read_bytes() == b"{}"


def test_json_is_the_only_thing_on_stdout(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.report = report_of(trial_file(TrialStatus.BLOCKED, Severity.BLOCKED))
    assert main(["--check", "--format", "json", "trial.py"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["summary"]["blocked"] == 1
    assert output.err == ""


def test_json_counts_every_file_searched(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "trial.py").unlink()
    for name in ("a.py", "b.py", "c.yaml"):
        (here / name).write_bytes(b"x: 1\n")
    assert main(["--format=json", "."]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["files"] == 3
    assert document["files"] == []


def test_the_next_command_repeats_what_decides_the_result(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.report = report_of(to_convert())
    main(["trial.py", "--target=determined", "--zero=0"])
    assert "ds-migrate --write --target determined --zero 0 trial.py\n" in capsys.readouterr().err


def test_uncommitted_work_is_reported_before_it_is_written_over(
    here: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    git(here, "init", "-q")
    (here / "other.py").write_bytes(b"not of this run")
    engine.report = report_of(to_convert())
    assert main(["--write", "trial.py"]) == 0
    note = capsys.readouterr().err.splitlines()[0]
    assert note == "note: writing to a file that has changes not committed to git: trial.py"


def test_files_elsewhere_get_a_patch_for_their_project(
    here: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    engine.report = report_of(changed(Path("../trial.py"), TRIAL, b"converted\n"))
    assert main(["../trial.py"]) == 0
    output = capsys.readouterr()
    assert "+++ b/trial.py\n" in output.out
    assert f"note: names in the patch are relative to {here}" in output.err


# -- undo -------------------------------------------------------------------------------------------------------------


def test_undo_puts_back_what_write_wrote(here: Path, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.report = report_of(to_convert(), created(Path("ds_config.json"), b"{}"))
    main(["--write", "trial.py"])
    capsys.readouterr()
    assert main(["--undo"]) == 0
    assert capsys.readouterr().out.splitlines() == ["restored trial.py", "removed ds_config.json"]
    assert {path.name: path.read_bytes() for path in here.iterdir()} == {"trial.py": TRIAL}


def test_undo_of_nothing_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--undo"]) == 2
    assert "nothing to undo in" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["../b", "nosuch", "sub", "/"])
def test_undo_of_a_path_never_undoes_what_was_written_elsewhere(
    named: str, here: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    (here.parent / "b").mkdir(exist_ok=True)
    (here / "sub").mkdir()
    engine.report = report_of(to_convert())
    main(["--write", "trial.py"])
    written = (here / "trial.py").read_bytes()
    assert main(["--undo", named]) == 2
    assert ("no such file" if named == "nosuch" else "nothing to undo in") in capsys.readouterr().err
    assert (here / "trial.py").read_bytes() == written


def test_undo_names_the_project_the_run_and_the_time(
    here: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.report = report_of(to_convert())
    main(["--write", "trial.py"])
    assert main(["--undo", "trial.py"]) == 0
    assert re.search(
        rf"Undone: run 1 in {re.escape(str(here))}, of \d{{4}}-\d\d-\d\d \d\d:\d\d", capsys.readouterr().err
    )


def test_undo_of_a_path_undoes_the_last_run_that_wrote_there(here: Path, engine: Engine) -> None:
    for name in ("one", "two"):
        (here / name).mkdir()
        (here / name / "trial.py").write_bytes(TRIAL)
        engine.report = report_of(changed(Path(name, "trial.py"), TRIAL, b"new"))
        main(["--write", name])
    assert main(["--undo", "one"]) == 0
    assert [(here / name / "trial.py").read_bytes() for name in ("one", "two")] == [TRIAL, b"new"]


def test_undo_of_a_file_changed_since_is_2_and_names_it(
    here: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.report = report_of(to_convert())
    main(["--write", "trial.py"])
    (here / "trial.py").write_bytes(b"edited\n")
    assert main(["--undo", "trial.py"]) == 2
    assert f"{here / 'trial.py'} changed since" in capsys.readouterr().err
    assert (here / "trial.py").read_bytes() == b"edited\n"


# -- as a process -----------------------------------------------------------------------------------------------------


def imported(*arguments: str | Path, cwd: Path) -> set[str]:
    """The heavy modules that a run imports."""
    line = [sys.executable, "-X", "importtime", "-m", "ds_migrate", *map(str, arguments)]
    done = subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=True)
    modules = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "ds_migrate.cli" in modules
    return {module for module in modules if module in HEAVY or module.partition(".")[0] in HEAVY}


def test_help_imports_nothing_heavy(empty: Path) -> None:
    assert imported("--help", cwd=empty) == set()


@pytest.mark.parametrize("arguments", [["."], ["--check", "a.py"], ["--write", "."], ["--format=json", "."]])
def test_a_tree_without_a_trial_imports_nothing_heavy(arguments: list[str], empty: Path) -> None:
    git(empty, "init", "-q")
    (empty / "a.py").write_bytes(b"import os\n")
    (empty / "compose.yaml").write_bytes(b"entrypoint: /bin/sh\n")
    assert imported(*arguments, cwd=empty) == set()


def test_words_that_only_look_like_a_trial_import_nothing_heavy(empty: Path) -> None:
    (empty / "a.py").write_bytes(b"# Trial and error, as determined by PyTorchTrial\n")
    assert imported("--check", ".", cwd=empty) == set()


@pytest.mark.parametrize("view", [["--format", "json"], ["--color", "always"], ["--check"], []])
def test_a_reader_that_left_is_no_error(view: list[str], empty: Path) -> None:
    (empty / "trial.py").write_bytes(b"class T(determined.pytorch.PyTorchTrial:\n")
    with subprocess.Popen(command(*view, "."), cwd=empty, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        talk = process.stderr.read().decode()
    assert process.returncode == 2, talk
    assert "BrokenPipe" not in talk
    assert "Traceback" not in talk


def test_closed_streams_are_no_error(empty: Path) -> None:
    (empty / "a.py").write_bytes(b"x = 1\n")
    line = 'exec "$0" -m ds_migrate --format json . >&- 2>&-'
    assert subprocess.run(["sh", "-c", line, sys.executable], cwd=empty, check=False).returncode == 0


def test_a_locale_without_the_characters_is_no_error(empty: Path) -> None:
    (empty / "trïal.py").write_bytes(b"class T(determined.pytorch.PyTorchTrial: # \xff\n")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        command("--color", "always", "."), cwd=empty, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"tr\\xefal.py" in done.stdout
    assert b"Traceback" not in done.stderr


def test_a_signal_in_the_middle_of_a_run_ends_it_with_130(empty: Path) -> None:
    code = (
        "import os, signal, ds_migrate.pipeline, ds_migrate.cli\n"
        "ds_migrate.pipeline.migrate = lambda *_, jobs: os.kill(os.getpid(), signal.SIGINT)\n"
        "raise SystemExit(ds_migrate.cli.main(['--write', '.']))\n"
    )
    (empty / "trial.py").write_bytes(TRIAL)
    done = subprocess.run([sys.executable, "-c", code], cwd=empty, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"
    assert done.returncode != -signal.SIGINT


def test_kinds_of_files_keep_their_order(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    config = FileResult(Path("const.yaml"), FileKind.EXPERIMENT, FileStatus.CHANGED, b"a: 1\n", b"a: 2\n")
    engine.report = report_of(to_convert(), config)
    main(["trial.py"])
    assert re.findall(r"^\+\+\+ b/(.*)$", capsys.readouterr().out, re.MULTILINE) == ["trial.py", "const.yaml"]


# -- with the engine itself -------------------------------------------------------------------------------------------


def test_a_preview_a_patch_a_write_and_an_undo_agree(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def tree() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in empty.iterdir() if path.is_file()}

    monkeypatch.chdir(empty)
    for path in (Path(__file__).parents[2] / "fixtures/guide/before").iterdir():
        if path.is_file():
            (empty / path.name).write_bytes(path.read_bytes())
    before = tree()

    assert main(["."]) == 0
    patch = capfdbinary.readouterr().out
    assert main(["--check", "."]) == 1
    assert tree() == before
    subprocess.run(["git", "apply", "-"], cwd=empty, input=patch, check=True)
    patched = tree()
    assert patched.keys() - before.keys() == {"ds_config.json"}
    subprocess.run(["git", "apply", "-R", "-"], cwd=empty, input=patch, check=True)
    assert tree() == before

    assert main(["--write", "."]) == 0
    assert tree() == patched
    assert main(["--check", "."]) == 0
    assert main(["--write", "."]) == 0
    assert tree() == patched
    assert main(["--undo"]) == 0
    assert tree() == before
