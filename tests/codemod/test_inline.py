"""Comments that steer the tool, and the markers that it leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ds_migrate.cli import main
from ds_migrate.project.control_comments import read_comments

TRIAL = """\
import torch
from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial


class Saved(PyTorchCallback):
    def on_checkpoint_end(self, checkpoint_dir):{hook}
        print(checkpoint_dir)


{above}class Trial(PyTorchTrial):{on}
    def __init__(self, context):
        self.context = context
        self.model = self.context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_callbacks(self):
        return {{"saved": Saved()}}

    def build_training_data_loader(self):
        return DataLoader(range(8), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return DataLoader(range(8), batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer){step}
        return {{"loss": loss}}

    def evaluate_batch(self, batch):
        return {{"loss": self.model(batch).mean()}}
"""
BLOCKING = ", auto_zero_grads=False)"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(blocked: bool = False, **places: str) -> bytes:
    """trial.py, with text at the named places."""
    text = TRIAL.format(**{"hook": "", "above": "", "on": "", "step": "", **places})
    if blocked:
        text = text.replace("step_optimizer(self.optimizer)", "step_optimizer(self.optimizer, auto_zero_grads=False)")
    Path("trial.py").write_text(text)
    return text.encode()


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["trial.py", *arguments])
    output = capsys.readouterr()
    return code, output.out + output.err


# -- markers ----------------------------------------------------------------------------------------------------------


def test_a_review_that_asks_for_an_action_leaves_one_marker_that_fails_a_check_until_it_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write()
    assert run("--write", capsys=capsys)[0] == 0
    converted = Path("trial.py").read_text()
    (marker,) = re.findall(
        r"^ *# TODO\(ds-migrate DSM\d+\): .*\n *#     .*\n(?= *def on_checkpoint_end)", converted, re.M
    )
    assert run("--check", capsys=capsys)[0] == 1
    assert run("--write", capsys=capsys)[0] == 0
    assert Path("trial.py").read_text() == converted
    Path("trial.py").write_text(converted.replace(marker, ""))
    assert run("--check", capsys=capsys)[0] == 0


@pytest.mark.parametrize(
    ("hook", "encoded"),
    [
        ("def on_checkpoint_end(self, d): pass", {}),
        ("@staticmethod\n    def on_checkpoint_end(d):\n        pass", {}),
        ("# before\n    async def on_checkpoint_end(self, d):  # after\n        pass", {}),
        ("def on_checkpoint_end(self, d):\r\n        pass", {"newline": ""}),
        ("name = 'é'\n\n    def on_checkpoint_end(self, d):\n        pass", {"encoding": "latin-1"}),
    ],
)
def test_a_marker_stands_above_its_statement_whatever_that_looks_like(
    hook: str, encoded: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = TRIAL.format(hook="", above="", on="", step="")
    before = before.replace("def on_checkpoint_end(self, checkpoint_dir):\n        print(checkpoint_dir)", hook)
    if "encoding" in encoded:
        before = "# -*- coding: latin-1 -*-\n" + before
    if "newline" in encoded:
        before = before.replace("\r\n", "\n").replace("\n", "\r\n")
    Path("trial.py").write_text(before, **encoded)
    assert run("--write", capsys=capsys)[0] == 0
    after = Path("trial.py").read_bytes().decode(encoded.get("encoding", "utf-8")).replace("\r\n", "\n")
    first = hook.replace("\r\n", "\n").split("\n")
    above = first[0] if first[0].startswith(("def", "@")) else next(line for line in first if "def " in line).strip()
    (line,) = [number for number, text in enumerate(after.split("\n")) if "TODO(ds-migrate DSM350)" in text]
    assert after.split("\n")[line + 2].strip() == above
    compile(after, "trial.py", "exec")


def test_a_blocked_trial_gets_no_marker_and_no_byte(capsys: pytest.CaptureFixture[str]) -> None:
    before = write(blocked=True)
    assert run("--write", capsys=capsys)[0] == 1
    assert Path("trial.py").read_bytes() == before


# -- ignore -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["  # ds-migrate: ignore[DSM350]", "  # mine. ds-migrate: ignore[DSM204, dsm350]"])
def test_an_ignored_review_is_not_reported_and_leaves_no_marker(hook: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(hook=hook.replace("# mine. ds", "# mine # ds"))
    code, said = run("--write", capsys=capsys)
    assert code == 0
    assert "DSM350" not in re.sub(r"DSM006.*", "", said)
    assert "1 finding ignored" in said
    assert "TODO" not in Path("trial.py").read_text()


def test_a_comment_of_its_own_is_about_the_next_line_of_code() -> None:
    text = b"# ds-migrate: ignore[DSM350]\n# more\n\nx = 1\ny = 2  # ds-migrate: skip\n"
    first, second = read_comments(text).controls
    assert (first.line, first.target, second.line, second.target) == (1, 4, 5, 5)


def test_a_comment_in_a_string_is_none() -> None:
    assert read_comments(b'x = "# ds-migrate: skip"\n').controls == ()


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("ignore[DSM340]", "this ignore[DSM340] ignores nothing"),
        ("ignore[DSM35]", "no rule is called 'DSM35' (did you mean DSM3"),
        ("ignore", "this ignore names no code"),
        ("ignroe[DSM350]", "'ignroe' is not a word that ds-migrate knows (did you mean ignore?)"),
        ("ignore[DSM302]", "DSM302 is converted here with the same numbers"),
        ("skip", "this skip skips no trial"),
    ],
)
def test_a_comment_without_effect_is_reported(comment: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(step=f"  # ds-migrate: {comment}")
    code, output = run(capsys=capsys)
    assert code == 0
    assert f"DSM006 review: {said}" in output


def test_a_blocked_finding_cannot_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    before = write(blocked=True, step="  # ds-migrate: ignore[DSM302]")
    code, output = run("--write", capsys=capsys)
    assert code == 1
    assert Path("trial.py").read_bytes() == before
    assert "DSM006 review: DSM302 is blocked here, which cannot be ignored" in output


def test_findings_of_an_experiment_config_can_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    write()
    config = "entrypoint: trial:Trial\nhyperparameters:\n  global_batch_size: 4\n{comment}searcher:\n  name: single\n"
    for comment in ("", "# ds-migrate: ignore[DSM350]\n"):
        Path("const.yaml").write_text(config.format(comment=comment))
        main(["."])
        assert ("this ignore[DSM350] ignores nothing" in capsys.readouterr().err) == bool(comment)


# -- skip -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "places",
    [
        {"on": "  # ds-migrate: skip"},
        {"above": "# ds-migrate: skip\n"},
        {"above": "# ds-migrate: skip\n@decorated\n"},
        {"above": "@decorated  # ds-migrate: skip\n"},
    ],
)
@pytest.mark.parametrize("blocked", [False, True])
def test_a_skipped_trial_is_left_as_it_is_and_passes_a_check(
    places: dict[str, str], blocked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write(blocked=blocked, **places)
    for mode in ("--check", "--write"):
        code, output = run(mode, capsys=capsys)
        assert code == 0, output
        assert "1 skipped by a comment" in output
        assert "DSM006" not in output
    assert Path("trial.py").read_bytes() == before


def test_a_trial_built_on_a_skipped_one_is_blocked_until_it_is_skipped_too(capsys: pytest.CaptureFixture[str]) -> None:
    write(on="  # ds-migrate: skip")
    derived = "from trial import Trial\n\n\nclass Derived(Trial):{}\n    pass\n"
    for comment, expected in (("", 1), ("  # ds-migrate: skip", 0)):
        Path("derived.py").write_text(derived.format(comment))
        assert main(["--check", "."]) == expected
        assert ("DSM015 blocked: Derived is built on a trial that is skipped" in capsys.readouterr().out) == bool(
            expected
        )


def test_a_skip_in_a_notebook_is_found_in_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    def cell(source: str) -> dict[str, object]:
        return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}

    text = write(on="  # ds-migrate: skip").decode() + "x = 1  # ds-migrate: skip\n"
    cells = [cell("y = 2"), cell(text)]
    Path("trial.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    assert main(["--check", "trial.ipynb"]) == 0
    output = capsys.readouterr()
    assert re.findall(r"\S*cell \d+:\d+:\d+ DSM006", output.out) == [
        f"trial.ipynb:cell 2:{text.count(chr(10))}:8 DSM006"
    ]


def test_a_marker_in_a_notebook_is_found_in_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    source = "x = 1\n# TODO(ds-migrate DSM350): look\ny = 2"
    cell: dict[str, Any] = {
        "cell_type": "code",
        "source": source,
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    text = {"cell_type": "markdown", "source": "Trial", "metadata": {}}
    notebook = {"cells": [text, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    Path("trial.ipynb").write_text(json.dumps(notebook))
    assert main(["--check", "trial.ipynb"]) == 1
    line = "trial.ipynb:cell 2:2:1 DSM005 review: a marker is left: # TODO(ds-migrate DSM350): look"
    assert line in capsys.readouterr().out


def test_markers_of_a_file_that_does_not_tokenize_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    text = 'x = 1  # TODO(ds-migrate DSM204): a\n"""\n# TODO(ds-migrate DSM205): b\n'
    Path("trial.py").write_text(text)
    assert "2 markers left" in run("--check", capsys=capsys)[1]
