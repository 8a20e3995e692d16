"""``python -m trial_runtime.doctor``: what a machine has, and what a config config_checks."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trial_runtime.doctor import cli, config_checks, machine
from trial_runtime.doctor.render import Row, Section, show
from trial_runtime.pytorch.deepspeed._patches import PATCHES
from trial_runtime.train import cli as train_cli


def doctor(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def written(tmp_path: Path, config: dict[str, Any]) -> Path:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config))
    return path


def by_name(section: Section) -> dict[str, Row]:
    return {row.name: row for row in section.rows}


def test_without_a_config_it_reports_on_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys)
    assert code == 0
    for part in ("torch: ", "deepspeed: ", "device: ", "started by: ", "MPI: not needed"):
        assert part in out


def test_ds_train_checks_and_lists_the_patches_in_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(tmp_path, {"gradient_cliping": 1})
    assert train_cli.main(["--check", str(config), "--ranks", "2"]) == 1
    out = capsys.readouterr().out
    for patch in PATCHES:
        assert f"  {patch.name}: {patch.why} (Seen in {patch.versions}, {patch.issue}.)\n" in out
    assert "x gradient_cliping: " in out

    assert train_cli.main(["--check", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.startswith("ds-train: ")


def test_a_sound_config_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys, written(tmp_path, {"gradient_clipping": 0.0, "zero_optimization": {"stage": 1}}))
    assert code == 0
    assert "! train_micro_batch_size_per_gpu: there is no batch size" in out  # the trial's to fill in
    assert "+ to compile: none" in out


def test_a_config_with_problems_is_exit_code_1_and_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"train_micro_batch_size_per_gpu": 4, "train_batch_size": 10, "gradient_cliping": 1, "amp": {}}
    code, out, _ = doctor(capsys, written(tmp_path, config), "--ranks", 2)
    assert code == 1
    for part in ("x train_batch_size: 10 is no multiple", "x gradient_cliping: ", "x amp: "):
        assert part in out


@pytest.mark.parametrize("content", [None, "{", "[1]", '{"a": 1, "a": 2}'])
def test_a_file_that_is_no_config_is_exit_code_2_in_one_line(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds_config.json"
    if content is not None:
        path.write_text(content)
    code, _, err = doctor(capsys, path)
    assert code == 2
    assert err.startswith(f"doctor: {path}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--parameters", "many"], ["--ranks", "0"], ["--no-such-option"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        doctor(capsys, *arguments)
    assert left.value.code == 2


def test_an_experiment_config_gives_its_deepspeed_config_and_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4, "train_batch_size": 12})
    (tmp_path / "const.yaml").write_text(
        "hyperparameters:\n  deepspeed_config: ds_config.json\n"
        "  overwrite_deepspeed_args:\n    zero_optimization:\n      stge: 2\n"
        "resources:\n  slots_per_trial: 2\n"
    )
    code, out, _ = doctor(capsys, tmp_path / "const.yaml")
    assert code == 1
    assert "x zero_optimization.stge: " in out
    assert "x train_batch_size: 12 is no multiple of micro-batch 4 x ranks 2 = 8" in out


def test_the_micro_batch_is_that_of_the_experiment_configs_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("hyperparameters: {deepspeed_config: {gradient_clipping: 0.0}, global_batch_size: 8}\n")

    code, shown, _ = doctor(capsys, config, "--ranks", 4)

    assert code == 0
    assert "micro-batch 2 from global_batch_size" in shown
    assert "there is no batch size" not in shown


def test_an_experiment_config_without_one_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "const.yaml").write_text("hyperparameters:\n  lr: 0.1\n")
    code, _, err = doctor(capsys, tmp_path / "const.yaml")
    assert (code, err.count("\n")) == (2, 1)
    assert "names no DeepSpeed config" in err


# Launchers


@pytest.mark.parametrize(
    ("environment", "text", "state"),
    [
        ({}, "no launcher", "good"),
        ({"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}, "torchrun: rank 1 of 4", "good"),
        ({"RANK": "0", "WORLD_SIZE": "2", "CROSS_RANK": "0"}, "deepspeed: rank 0 of 2", "good"),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}, "srun: 8 tasks", "good"),
        ({"SLURM_STEP_ID": "0"}, "no launcher", "good"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "does not use MPI", "bad"),
        ({"WORLD_SIZE": "2"}, "RANK is not set", "bad"),
    ],
)
def test_the_launcher_is_recognized_by_its_variables(environment: dict[str, str], text: str, state: str) -> None:
    row = by_name(machine.launcher(environment))["started by"]
    assert text in row.text
    assert row.state == state


# Ops


@pytest.mark.parametrize(
    ("config", "ops"),
    [
        ({}, []),
        ({"optimizer": {"type": "AdamW"}}, ["fused_adam"]),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, []),
        ({"optimizer": {"type": "SGD"}}, []),
        (
            {
                "optimizer": {"type": "Adam"},
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            },
            ["cpu_adam"],
        ),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, ["async_io"]),
    ],
)
def test_the_ops_that_a_config_asks_for_are_named(config: dict[str, Any], ops: list[str]) -> None:
    assert [name for name, _ in config_checks.needed_ops(config)] == ops


def test_an_op_that_was_compiled_or_whose_lock_was_left_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    folder = tmp_path / "fused_adam"
    folder.mkdir()

    def told() -> Row:
        (row,) = config_checks.ops({"optimizer": {"type": "AdamW"}}).rows
        return row

    assert told().state == "note"
    (folder / "fused_adam.so").touch()
    assert told().state == "good"
    (folder / "lock").touch()
    assert (told().state, f"remove {folder / 'lock'}" in told().text) == ("bad", True)


def test_an_op_without_a_compiler_is_in_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (row,) = config_checks.ops({"optimizer": {"type": "AdamW"}}).rows
    assert row.state == "bad"
    assert "C++ compiler" in row.text


def test_a_drive_that_is_not_there_is_in_the_way(tmp_path: Path) -> None:
    def config(path: Path) -> dict[str, Any]:
        return {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": str(path)}}}

    there, missing = config_checks.drives(config(tmp_path)), config_checks.drives(config(tmp_path / "no"))
    assert there is not None
    assert missing is not None
    assert (there.rows[0].state, missing.rows[0].state) == ("good", "bad")
    assert config_checks.drives({}) is None


# Memory: bytes a parameter are held by test_memory.py


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"zero_optimization": {"stage": 2}}, ["14.9 GiB", "10.2 GiB", "7.5 GiB", "5.6 GiB"]),
        ({"bf16": {"enabled": True}}, ["18.6 GiB", "6.5 GiB", "5.6 GiB", "4.7 GiB"]),
        ({"optimizer": {"type": "SGD"}}, ["7.5 GiB", "8.4 GiB", "5.6 GiB", "3.7 GiB"]),
        ({"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}}, ["11.2 GiB", "9.3 GiB", "6.5 GiB", "4.7 GiB"]),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
            [
                "14.9 GiB",
                "7.5 GiB a rank and 4.7 GiB on the host",
                "3.7 GiB a rank and 4.7 GiB on the host",
                "954 MiB a rank and 4.7 GiB on the host",
            ],
        ),
    ],
)
def test_memory_a_rank_at_every_stage(config: dict[str, Any], shown: list[str]) -> None:
    rows = config_checks.model_states(config, 10**9, 4).rows[1:]
    for row, text in zip(rows, shown, strict=True):
        assert row.text.startswith(text if "host" in text else f"{text} a rank"), row


def test_stage_that_needs_more_memory_than_there_is_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory_of_a_rank", lambda: (24 * 2**30, "this machine"))
    path = written(tmp_path, {"zero_optimization": {"stage": 2}})
    code, out, _ = doctor(capsys, path, "--parameters", "70B", "--ranks", 4)
    assert code == 1
    (line,) = [line for line in out.splitlines() if "(this config)" in line]
    assert line.endswith(" GiB a rank (this config): more than the 24.0 GiB of this machine")
    assert "stage 2: " in line and not line.startswith("  +")


def test_the_configs_stage_is_marked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory_of_a_rank", lambda: (8 * 2**30, "this machine"))
    path = written(tmp_path, {"zero_optimization": {"stage": 2}})
    _, out, _ = doctor(capsys, path, "--parameters", "1B", "--ranks", 4)
    assert [line for line in out.splitlines() if "(this config)" in line] == [
        "  + stage 2: 7.5 GiB a rank (this config)"
    ]


@pytest.mark.parametrize(("text", "count"), [("7e9", 7 * 10**9), ("7B", 7 * 10**9), ("1.5m", 1_500_000), ("12", 12)])
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert cli.make_parser().parse_args(["--parameters", text]).parameters == count


# Shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


FINDINGS = [Section("Things", [Row("first", "a very long text " * 10, "bad"), Row("second [red]", "x", "good")])]


def test_elsewhere_than_on_a_terminal_each_finding_is_a_line() -> None:
    out = io.StringIO()
    show(FINDINGS, out)
    assert out.getvalue() == f"Things\n  x first: {FINDINGS[0].rows[0].text}\n  + second [red]: x\n"


def test_on_a_terminal_texts_wrap_within_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    show(FINDINGS, out)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "second [red]" in out.getvalue()
    assert "\x1b[3" not in out.getvalue()


def test_for_programs_there_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = doctor(capsys, "--json")
    assert {section["title"] for section in json.loads(out)} == {
        "Versions", "Accelerator", "Launcher", "Compiler", "Patches of DeepSpeed"
    }  # fmt: skip


def test_help_imports_no_torch() -> None:
    script = "import sys; from trial_runtime.doctor import cli; cli.make_parser(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=200)
