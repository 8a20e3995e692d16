"""Plain loops with --config-style, --optimizer-in-config and --no-runtime: what is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds_migrate.cli import main
from ds_migrate.cli.parser import parse
from ds_migrate.findings import FileStatus, Severity
from ds_migrate.options import Options
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, convert, run

JSON = Options(plain=True, config_style="json")
IN_CONFIG = Options(plain=True, optimizer_in_config=True)
ALONE = Options(plain=True, runtime=False)
SAMPLED = LOOP.replace("shuffle=True", "sampler=DistributedSampler(data)")
IMPORT = "import torch\nfrom torch.utils.data import DistributedSampler\n\ntorch.manual_seed(0)\n"


def test_a_config_that_is_known_is_a_file_beside_the_script(tmp_path: Path) -> None:
    script, config = run(tmp_path, JSON, train=HEADER + LOOP).files
    text = (script.after or b"").decode()
    assert (
        '    config=str(Path(__file__).with_name("ds_config.json")),\n' in text and "from pathlib import Path" in text
    )
    assert (config.path.name, config.status) == ("ds_config.json", FileStatus.CREATED)
    assert json.loads(config.after or b"") == {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }


def test_what_is_known_when_the_program_runs_is_added_by_the_code(tmp_path: Path) -> None:
    text = "size, rate = len(data), 0.1\n" + LOOP.replace("batch_size=4", "batch_size=size").replace(
        "lr=0.1", "lr=rate"
    )
    options = Options(plain=True, config_style="json", optimizer_in_config=True)
    script, config = run(tmp_path, options, train=HEADER + text).files
    assert (
        'ds_config = json.loads(Path(__file__).with_name("ds_config.json").read_text())\n'
        'ds_config["train_micro_batch_size_per_gpu"] = size\nds_config["optimizer"]["params"]["lr"] = rate\n'
    ) in (script.after or b"").decode()
    assert json.loads(config.after or b"")["optimizer"] == {"type": "SGD", "params": {}}


def test_scripts_of_one_folder_have_separate_configs(tmp_path: Path) -> None:
    report = run(tmp_path, JSON, one=HEADER + LOOP, two=HEADER + LOOP)
    names = [file.path.name for file in report.files if file.status is FileStatus.CREATED]
    assert sorted(names) == ["ds_config_one.json", "ds_config_two.json"]


def test_a_config_with_other_content_stays(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text("{}")
    ((code, message),) = blocked(tmp_path, HEADER + LOOP, JSON)
    assert code == Code.PLAIN_ENGINE and message.startswith("ds_config.json exists with other content")


def test_a_written_config_is_undone_and_a_second_run_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HEADER + LOOP)
    words = ["--plain", "--config-style", "json", "train.py"]
    assert main([*words, "--write"]) == 0
    assert Path("ds_config.json").is_file() and "deepspeed.initialize" in Path("train.py").read_text()
    assert main([*words, "--check"]) == 0
    assert main(["--undo"]) == 0
    assert not Path("ds_config.json").exists() and Path("train.py").read_text() == HEADER + LOOP


@pytest.mark.parametrize(
    ("made", "section"),
    [
        ("SGD(model.parameters(), 0.1, 0.9)", '{"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}'),
        (
            "Adam(model.parameters(), betas=(0.8, 0.9))",
            '{"type": "Adam", "params": {"betas": (0.8, 0.9), "torch_adam": True, "adam_w_mode": False}}',
        ),
        (
            "AdamW(model.parameters(), lr=float(len(data)))",
            '{"type": "AdamW", "params": {"lr": float(len(data)), "torch_adam": True}}',
        ),
    ],
)
def test_deepspeed_makes_the_very_same_optimizer(made: str, section: str, tmp_path: Path) -> None:
    text = LOOP.replace("SGD(model.parameters(), lr=0.1)", made)
    after = convert(tmp_path, HEADER + text, IN_CONFIG)
    assert f'        "optimizer": {section},\n' in after.replace("\n            ", " ").replace(",\n        },", "},")
    assert (
        "engine, optimizer, *_ = deepspeed.initialize(\n    model=model,\n    model_parameters=model.parameters(),\n"
        in after
    )
    assert "torch.optim." not in after


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("model.parameters(), lr", "[{'params': model.parameters()}], lr", "groups and choices"),
        ("optim.SGD(model.parameters(), lr=0.1)", "optim.SGD(model.parameters(), **{'lr': 0.1})", "can be seen here"),
        ("for x", "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)\nfor x", "as an optimizer of torch"),
    ],
)
def test_an_optimizer_that_deepspeed_would_not_make_stays(old: str, new: str, reason: str, tmp_path: Path) -> None:
    assert old in LOOP
    report = run(tmp_path, IN_CONFIG, train=HEADER + LOOP.replace(old, new))
    (finding,) = [f for _, f in report.findings(Severity.REVIEW) if f.code == Code.OPTIMIZER_IN_CONFIG]
    assert reason in finding.message
    assert "    optimizer=optimizer,\n" in (report.files[0].after or b"").decode()


def test_deepspeed_alone_needs_no_runtime(tmp_path: Path) -> None:
    after = convert(tmp_path, IMPORT + HEADER + SAMPLED + "print(loss)\n", ALONE)
    assert "trial_runtime" not in after and "match_torch" not in after
    assert 'deepspeed.init_distributed()\nget_accelerator().set_device(int(os.environ["LOCAL_RANK"]))\n' in after
    assert "if deepspeed.comm.get_rank() == 0:\n    print(loss)\n" in after


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        (Code.PLAIN_SAMPLER, "sampler=DistributedSampler(data)", "shuffle=True"),
        (Code.PLAIN_DISTRIBUTED, "model = Net()", "norm = nn.BatchNorm1d(1)\nmodel = DDP(Net())"),
        (
            Code.PLAIN_PRECISION,
            "    loss.backward()\n    optimizer.step()",
            "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()",
        ),
    ],
)
def test_what_deepspeed_alone_gets_wrong_is_refused(code: Code, old: str, new: str, tmp_path: Path) -> None:
    assert old in SAMPLED
    text = SAMPLED.replace(old, new).replace("for x", "scaler = torch.amp.GradScaler()\nfor x")
    assert code in [found for found, _ in blocked(tmp_path, IMPORT + HEADER + text, ALONE)]


def test_parameters_that_a_backward_may_not_reach_are_refused(tmp_path: Path) -> None:
    header = HEADER.replace("return self.fc(x)", "return self.fc(x) if len(x) > 2 else x")
    text = SAMPLED.replace("lr=0.1", "lr=0.1, momentum=0.9")
    ((code, message),) = blocked(tmp_path, IMPORT + header + text, ALONE)
    assert code == Code.PLAIN_ENGINE and "reaches all parameters" in message


def test_all_parameters_are_reached_where_forward_uses_each_layer(tmp_path: Path) -> None:
    text = SAMPLED.replace("lr=0.1", "lr=0.1, momentum=0.9")
    assert "momentum=0.9" in convert(tmp_path, IMPORT + HEADER + text, ALONE)


def test_the_state_of_an_optimizer_keeps_stage_0_without_the_runtime(tmp_path: Path) -> None:
    after = convert(tmp_path, IMPORT + HEADER + SAMPLED + "state = optimizer.state_dict()\n", ALONE)
    assert '"zero_optimization": {"stage": 0},' in after and "state = optimizer.state_dict()\n" in after


@pytest.mark.parametrize("words", [["--config-style", "json"], ["--no-runtime"]])
def test_an_option_for_plain_loops_is_refused_for_trials(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*words, "."])
    assert "add --plain" in capsys.readouterr().err
