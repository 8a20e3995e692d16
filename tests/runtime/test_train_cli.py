"""The command line of ds-train and ds-verify, without starting a rank."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from trial_runtime._installation import install_command
from trial_runtime.commands import train, verify
from trial_runtime.train.cli import main

ROOT = Path(__file__).parents[2]
CONFIG = """
entrypoint: model_def:Trial
hyperparameters: {lr: {type: log, minval: -4, maxval: -1}}
searcher: {max_length: 3}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return "c.yaml"


@pytest.mark.parametrize("command", ["train", "verify"])
def test_help_imports_no_torch(command: str) -> None:
    code = (
        f"import sys\nfrom trial_runtime.commands import {command}\n"
        f"try: {command}(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        f"assert not {{'torch', 'deepspeed'}} & sys.modules.keys()\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"usage: ds-{command} ")


def test_without_the_runtime_they_report_how_to_install_it(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # noqa: ARG005
    line = f"missing: torch and deepspeed; install the runtime: {install_command()}\n"

    assert train([config, "--hparam", "lr=0.1"]) == 2
    assert capsys.readouterr().err == f"ds-train: {line}"
    assert not Path("runs").exists()
    assert verify(["some/path"]) == 2
    assert capsys.readouterr().err == f"ds-verify: {line}"


def test_a_folder_without_a_checkpoint_is_no_checkpoint(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("shared/run-1-ab").mkdir(parents=True)
    Path("shared/run-1-ab/latest").write_text("00000003-abcdef01\n")

    assert train([config, "--hparam", "lr=0.1", "--latest-checkpoint", "shared"]) == 2

    line = "shared: is no checkpoint, and no run directory that has one; name one of shared/run-1-ab"
    assert capsys.readouterr().err == f"ds-train: --latest-checkpoint {line}\n"
    assert not Path("runs").exists()


def test_a_dry_run_shows_the_plan_and_makes_nothing(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train([config, "--hparam", "lr=1e-3", "--slots", "4", "--dry-run"]) == 0

    shown = capsys.readouterr()
    assert f"model_def:Trial in {Path.cwd()} on 4 processes" in shown.err
    assert '"lr": 0.001' in shown.out
    assert not Path("runs").exists()


def test_a_dry_run_shows_length_periods_batch_device_and_storage(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    changes = [
        "searcher={name: single, metric: val, max_length: {epochs: 1}}", "min_validation_period.batches=6",
        "hyperparameters.global_batch_size=10", "checkpoint_storage={type: shared_fs, host_path: kept}",
        "reproducibility.experiment_seed=7",
    ]  # fmt: skip
    words = [config, "--hparam=lr=0.1", "--slots=3", "--dry-run", *(f"--config={change}" for change in changes)]
    assert train(words) == 0
    lines = [line.removeprefix("ds-train: ") for line in capsys.readouterr().err.splitlines()]
    assert lines[1:] == [
        "length: 1 epoch",
        "validation: every 6 batches and at the end; reports: every 100 batches",
        f"checkpoints: when val improved and at the end, in {Path.cwd() / 'kept'}",
        "batch: 9 samples, 3 on each of 3 ranks",
        "device: cpu; seed: 7",
    ]


def test_a_dry_run_is_json_of_the_documented_schema(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    change = "--config=hyperparameters={global_batch_size: 10, api_key: hush}"
    assert train([config, change, "--dry-run", "--format", "json", "--config=description=x"]) == 0
    shown = capsys.readouterr()
    plan = json.loads(shown.out)
    assert shown.err == ""
    page = (ROOT / "docs/runtime/ds-train.md").read_text()
    (schema,) = re.findall(r"^```json\n(.*?)^```", page, re.M | re.S)
    jsonschema.validate(plan, json.loads(schema))
    assert plan["length"] == {"batches": 3} and plan["validation_period"] is None and plan["device"] == "cuda"
    assert plan["hparams"] == {"global_batch_size": 10, "api_key": "<masked>"}
    assert plan["notices"] == [{"field": "description", "note": "kept in the run directory's copy of the config"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["c.yaml"], "--hparam lr=VALUE  (log, from 0.0001 to 0.1)"),
        (["c.yaml", "--hparam", "lr"], "write --hparam name=value"),
        (["c.yaml", "elsewhere"], "elsewhere: is not a folder"),
        (["other.yaml"], "other.yaml: cannot be read: No such file or directory; did you mean c.yaml?"),
        (["."], ".: cannot be read: Is a directory; did you mean c.yaml?"),
        (["c.yaml", "--sed", "3"], "unrecognized arguments: --sed 3 (did you mean --seed?)"),
        (
            ["c.yaml", "--hparam=lr=0.1", "--run-dir=/proc/x"],
            "cannot make the run directory: No such file or directory; name",
        ),
        (
            ["c.yaml", "--hparam", "lr=0.1", "--latest-checkpoint", "x"],
            "--latest-checkpoint x: there is no such folder",
        ),
        (["c.yaml", "--hparam", "lr=0.1", "--slots", "x"], None),
        (["c.yaml", "--hparam", "lr=0.1", "--slots", "-1"], "resources.slots_per_trial: -1 is not allowed"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], message: str | None, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert config
    try:
        code = train(arguments)
    except SystemExit as end:  # argparse's own
        code = int(end.code or 0)

    assert code == 2
    if message is not None:
        assert message in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ("sercher.max_length.batches=2", "--config sercher: there is no such field (did you mean 'searcher'?)"),
        ("searcher.max_lenght=2", "--config searcher.max_lenght: there is no such field (did you mean 'max_length'?)"),
        ("bf16=1", "--config bf16: there is no such field"),
    ],
)
def test_field_that_is_typed_and_unknown_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    (tmp_path / "c.yaml").write_text("entrypoint: model_def:T\nsearcher: {name: single, max_length: 1}\n")
    assert main([str(tmp_path / "c.yaml"), "--dry-run", "--config", change]) == 2
    assert message in capsys.readouterr().err
