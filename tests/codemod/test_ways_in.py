"""Ways to tell the tool what to work on: standard input, pyproject.toml, patterns, completion."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ds_migrate.cli import main
from ds_migrate.cli.settings import SettingsError, settings_for
from ds_migrate.files.discovery import discover
from ds_migrate.files.patterns import Selection
from shell_samples import git
from test_inline import TRIAL

SOURCE = TRIAL.format(hook="", above="", on="", step="").encode()
BLOCKED = SOURCE.replace(b"self.optimizer)", b"self.optimizer, auto_zero_grads=False)")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = Path(os.path.realpath(tmp_path))
    monkeypatch.chdir(root)
    return root


def names(*paths: str, **patterns: list[str]) -> list[str]:
    chosen = Selection(os.path.realpath("."), **patterns)
    return [source.name for source in discover(paths or ["."], chosen)]


def touch(*paths: str) -> None:
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x = 1\n")


# -- standard input ---------------------------------------------------------------------------------------------------


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> object:
    def run(data: bytes, *arguments: str) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", Stdin(data))
        code = main(["-", *arguments])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


def test_the_converted_source_comes_out(piped) -> None:  # type: ignore[no-untyped-def]
    Path("trial.py").write_bytes(SOURCE)
    code, out, err = piped(SOURCE, "--stdin-filename", "trial.py")
    assert code == 0
    assert b"class Trial(DeepSpeedTrial):" in out
    assert Path("trial.py").read_bytes() == SOURCE
    assert "DSM350 review" in err
    assert "note: the conversion needs ds_config.json too" in err
    main(["--write", "trial.py"])
    assert Path("trial.py").read_bytes() == out


@pytest.mark.parametrize("data", [b"", b"x = 1", b"x = '\xff'\r\n", b"def (: Trial"])
def test_what_holds_no_trial_comes_out_as_it_went_in(data: bytes, piped) -> None:  # type: ignore[no-untyped-def]
    assert piped(data) == (0, data, "")


def test_a_blocked_trial_comes_out_as_it_went_in_and_is_1(piped) -> None:  # type: ignore[no-untyped-def]
    code, out, err = piped(BLOCKED, "--stdin-filename", "trial.py")
    assert (code, out) == (1, BLOCKED)
    assert "trial.py:28:9 DSM302 blocked" in err


def test_a_trial_built_on_one_in_the_project_is_not_converted_alone(piped) -> None:  # type: ignore[no-untyped-def]
    derived = b"from trial import Trial\n\n\nclass Derived(Trial):\n    pass\n"
    Path("trial.py").write_bytes(SOURCE)
    Path("derived.py").write_bytes(derived)
    code, out, err = piped(derived, "--stdin-filename", "derived.py")
    assert (code, out) == (1, derived)
    assert "DSM014" in err


@pytest.mark.parametrize(
    ("arguments", "expected", "starts"),
    [
        (("--diff",), 0, b"--- a/trial.py\n+++ b/trial.py\n"),
        (("--check",), 1, b"trial.py:10 Trial is a PyTorchTrial that --write converts\n"),
        (("--format", "json"), 0, b"{"),
    ],
)
def test_reports_are_those_of_a_file(arguments: tuple[str, ...], expected: int, starts: bytes, piped) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = piped(SOURCE, "--stdin-filename", "trial.py", *arguments)
    assert code == expected
    assert out.startswith(starts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-", "x.py"], "name nothing beside it"),
        (["-", "--write"], "has no file to write"),
        (["x.py", "--stdin-filename", "y.py"], "ds-migrate - --stdin-filename"),
        (["--interactive", "--format", "json", "x.py"], "--interactive asks on the terminal"),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


# -- pyproject.toml ---------------------------------------------------------------------------------------------------


def configure(text: str, folder: str = ".") -> None:
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "pyproject.toml").write_text(f"[tool.ds-migrate]\n{text}\n")


def test_the_nearest_table_decides_and_the_command_line_wins(capsys: pytest.CaptureFixture[str]) -> None:
    configure('target = "determined"')
    Path("pkg").mkdir()
    Path("pkg/pyproject.toml").write_text("[project]\nname = 'ds-migrate-user'\n")
    Path("pkg/trial.py").write_bytes(SOURCE)
    main(["pkg"])
    assert "+from determined.pytorch.deepspeed import" in capsys.readouterr().out
    main(["pkg", "--target", "runtime"])
    assert "+from trial_runtime.pytorch.deepspeed import" in capsys.readouterr().out


def test_what_engines_are_like_is_a_setting_and_is_repeated_when_typed(capsys: pytest.CaptureFixture[str]) -> None:
    configure('precision = "bf16"\noffload = "optimizer"\noptimizer-in-config = true')
    Path("trial.py").write_bytes(SOURCE)

    main(["trial.py", "--offload", "none", "--no-optimizer-in-config"])

    output = capsys.readouterr()
    assert '+  "bf16": {' in output.out
    assert "offload_optimizer" not in output.out and '"optimizer"' not in output.out
    assert "ds-migrate --write --offload none --no-optimizer-in-config trial.py" in output.err


def test_a_table_above_the_repository_is_another_projects() -> None:
    configure("zero = 0")
    touch("repository/a.py")
    git(Path("repository"), "init", "-q")
    assert settings_for(["repository/a.py"]) is None
    configure("zero = 1", "repository")
    settings = settings_for(["repository/a.py"])
    assert settings is not None and settings.values == {"zero": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exlude = []", "has no key 'exlude' (did you mean exclude?)"),
        (
            "write = true",
            "has no key 'write'; it can have plain, target, zero, precision, offload, optimizer-in-config,",
        ),
        ('target = "ray"', "target in [tool.ds-migrate] is 'ray'; it can be 'runtime', 'determined'"),
        ("zero = true", "zero in [tool.ds-migrate] is True; it can be 0, 1, 2, 3"),
        ("offload = true", "offload in [tool.ds-migrate] is True; it can be 'none', 'optimizer', 'parameters'"),
        ("jobs = 0", "jobs in [tool.ds-migrate] is 0; it can be a number from 1 on"),
        ("jobs = true", "jobs in [tool.ds-migrate] is True; it can be a number from 1 on"),
        ('exclude = "a"', "exclude in [tool.ds-migrate] must be a list of strings, not 'a'"),
        ("zero = ", "is not TOML"),
    ],
)
def test_what_cannot_be_understood_is_2_and_reports_what_is_right(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(text)
    with pytest.raises(SettingsError):
        settings_for(["."])
    assert main(["--check", "."]) == 2
    assert said in capsys.readouterr().err


def test_a_pyproject_without_the_table_is_nobodys_business() -> None:
    Path("pyproject.toml").write_text("not toml at all")
    assert settings_for(["."]) is None


# -- patterns ---------------------------------------------------------------------------------------------------------


def test_patterns_are_those_of_gitignore() -> None:
    touch("a.py", "old/a.py", "old/keep.py", "src/old/b.py", "src/c.yaml")
    assert names(exclude=["old/"]) == ["a.py", "src/c.yaml"]
    assert names(exclude=["/old/*", "!keep.py"]) == ["a.py", "old/keep.py", "src/c.yaml", "src/old/b.py"]
    assert names(include=["src/"], exclude=["*.yaml"]) == ["src/old/b.py"]


def test_files_named_themselves_are_left_out_too_and_that_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    configure('exclude = ["old/"]')
    touch("old/a.py")
    Path("old/trial.py").write_bytes(SOURCE)
    assert main(["--check", "old/a.py", "old/trial.py"]) == 0
    assert "note: old/trial.py is left out by --include, --exclude or [tool.ds-migrate]" in capsys.readouterr().err


def test_patterns_of_the_command_line_take_the_place_of_those_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure('exclude = ["sub/a.py"]')
    for name in ("sub/a.py", "sub/b.py"):
        touch(name)
        Path(name).write_bytes(SOURCE)
    monkeypatch.chdir("sub")
    for arguments, found in (([], "b.py"), (["--exclude", "b.py"], "a.py")):
        main([".", *arguments])
        output = capsys.readouterr()
        assert [line for line in output.out.splitlines() if line.startswith("+++") and "json" not in line] == [
            f"+++ b/{found}"
        ]
        assert ("--exclude b.py" in output.err) == bool(arguments)


def test_gitignore_holds_without_git() -> None:
    touch("a.py", "build/b.py", "src/c.py", "src/d.py", "src/deep/d.py", "src/deep/e.py", ".gitignore")
    Path(".gitignore").write_text("build/\nd.py\n")
    Path("src/deep/.gitignore").write_text("!d.py\n/e.py\n")
    found = [str(source.path) for source in discover(["."])]
    assert found == ["a.py", "src/c.py", "src/deep/d.py"]
    git(Path(), "init", "-q")
    assert [str(source.path) for source in discover(["."])] == found


def test_without_patterns_nothing_is_imported_for_them() -> None:
    touch("a.py")
    Path("pyproject.toml").write_text("[tool.other]\n")
    line = [sys.executable, "-X", "importtime", "-m", "ds_migrate", "."]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "ds_migrate.cli.settings" in done.stderr.split()
    assert not {"pathspec", "tomllib", "ds_migrate.files.patterns"} & set(done.stderr.split())


# -- completion -------------------------------------------------------------------------------------------------------


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    pytest.importorskip("shtab")
    assert main(["--completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_options_values_codes_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    touch("train.py", "other.py")
    text = script("bash", capsys)

    def completed(*words: str) -> list[str]:
        """What bash offers for the last word."""
        function = re.search(r"-F (\w+) ds-migrate", text)
        assert function is not None
        call = f'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); {function[1]} ds-migrate "${{@: -1}}" "${{@: -2:1}}"'
        code = f'{text}\n{call}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", code, "bash", *words], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("ds-migrate", "--ta") == ["--target"]
    assert {"--write", "-i", "--explain"} <= set(completed("ds-migrate", "-"))
    assert completed("ds-migrate", "--target", "") == ["runtime", "determined"]
    assert completed("ds-migrate", "--explain", "DSM20") == ["DSM201", "DSM202", "DSM203", "DSM204", "DSM205"]
    assert completed("ds-migrate", "tr") == ["train.py"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_option_with_its_help(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for word in ("write", "explain", "interactive", "runtime determined", "apply the conversion", "DSM204"):
        assert word in text


def test_without_shtab_the_way_to_install_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
