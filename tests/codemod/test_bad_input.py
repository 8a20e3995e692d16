"""What a first user gets wrong: each mistake is named with what to do, and no file that was not read is counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ds_migrate.cli import main
from fixture_folders import FIXTURES

IMPORT = b"from determined.pytorch import PyTorchTrial\n"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out + err


def test_path_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, str(tmp_path / "nosuch"))
    assert code == 2
    assert "nosuch DSM001 error: cannot be read: no such file or directory" in text
    assert "No PyTorchTrial in 0 files.\n1 error." in text


def test_file_in_another_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_bytes(IMPORT + b"name = '\xe9 '\n")
    code, text = run(capsys, str(tmp_path))
    assert code == 2
    assert "a.py:2 DSM001 error: does not parse: " in text
    assert "help: save it as UTF-8, or name its encoding in line 1: # -*- coding: latin-1 -*-" in text


def test_file_with_a_syntax_error_is_not_counted_as_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_bytes(IMPORT + b"class T(PyTorchTrial)\n    pass\n")
    (tmp_path / "b.py").write_bytes(b"x = 1\n")
    code, text = run(capsys, str(tmp_path))
    assert code == 2
    assert "a.py:2:22 DSM001 error: does not parse: expected ':'\n" in text and "UTF-8" not in text
    assert "    help: see `class T(PyTorchTrial)`\n" in text
    assert "No PyTorchTrial in 1 file.\n1 error." in text


def test_trial_with_a_comment_in_another_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (FIXTURES / "guide/before/model_def.py").read_bytes()
    (tmp_path / "a.py").write_bytes(b"# \xe9\n" + before)
    code, text = run(capsys, str(tmp_path))
    assert code == 2
    assert "a.py DSM001 error: is not text in its encoding: invalid or missing encoding declaration" in text
    assert "help: save it as UTF-8, or name its encoding in line 1: # -*- coding: latin-1 -*-" in text


def test_folder_without_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, str(tmp_path)) == (0, f"No Python file in {tmp_path}.\n")
    code, text = run(capsys, "--check", str(tmp_path))
    assert code == 2 and "nothing was checked" in text


def test_rule_that_does_not_exist_gets_no_silly_guess(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "--explain", "DSM999")
    assert code == 2
    assert text == "ds-migrate: no rule is called 'DSM999'; --list-rules names them all\n"


def test_words_of_a_message_lead_to_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "--explain", "auto_zero_grads=False keeps gradients")
    assert code == 2
    assert text.endswith("; these words are on the pages of DSM302\n")


def test_stage_that_a_trial_cannot_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = shutil.copytree(FIXTURES / "gan/before", tmp_path / "project")
    code, text = run(capsys, "--zero", "2", str(project))
    assert code == 0  # a preview
    assert "ZeRO stage 2 would change the numbers: the trial calls its models directly, not through an engine" in text
    assert "leave out --zero" in text
