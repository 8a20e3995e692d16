"""--precision, --offload and --optimizer-in-config: what they write, and where they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import examples
import pytest
from ds_migrate.findings import Report, Severity
from ds_migrate.options import Options

INIT = """
def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.model = self.context.wrap_model(Net())
    self.optimizer = self.context.wrap_optimizer({optimizer})
"""
ADAM = "torch.optim.Adam(self.model.parameters(), lr=0.1)"
PAST = """
def train_batch(self, batch, epoch_idx, batch_idx):
    inputs, targets = batch
    loss = self.criterion(self.model.embed(inputs), targets)
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer)
    return {"loss": loss}
"""
UNSHARDED = INIT.format(optimizer=ADAM) + PAST.replace("self.model.embed(inputs)", "self.model(inputs)").replace(
    "    return", "    self.model.inner.weight.data.clamp_(0, 1)\n    return"
)
AMP = INIT.format(optimizer=ADAM) + "    self.context.experimental.use_amp()\n"


def migrate(folder: Path, block: str, options: Options) -> tuple[Report, str, dict[str, Any]]:
    """The report of a trial with these methods, the new source and the new config; empty where it is blocked."""
    (folder / "model_def.py").write_text(examples.module(block))
    report = examples.run(folder, options=options)
    after = {file.path.name: file.after for file in report.files if file.after is not None}
    return report, after.get("model_def.py", b"").decode(), json.loads(after.get("ds_config.json", b"{}"))


def messages(report: Report, code: str, severity: Severity) -> list[str]:
    return [finding.message for _, finding in report.findings(severity) if finding.code == code]


@pytest.mark.parametrize(("target", "stage"), [("runtime", 1), ("determined", 0)])
def test_an_adagrad_is_sharded_only_where_the_trials_own_is_kept(target: str, stage: int, tmp_path: Path) -> None:
    block = INIT.format(optimizer="torch.optim.Adagrad(self.model.parameters(), lr=0.1)")
    assert migrate(tmp_path, block, Options(target=target))[2]["zero_optimization"] == {"stage": stage}


@pytest.mark.parametrize(
    ("precision", "block"),
    [
        ("fp32", {}),
        ("bf16", {"bf16": {"enabled": True}}),
        ("fp16", {"fp16": {"enabled": True}}),
        ("autocast", {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
    ],
)
@pytest.mark.parametrize("init", [INIT.format(optimizer=ADAM), AMP], ids=["plain", "amp"])
def test_precision_replaces_what_the_trial_asked_for(
    init: str, precision: str, block: dict[str, Any], tmp_path: Path
) -> None:
    report, source, config = migrate(tmp_path, init, Options(precision=precision))

    expected = {"gradient_clipping": 0.0, "zero_optimization": {"stage": 1}, **block}
    assert config == expected
    assert "torch_autocast" not in source and "use_amp" not in source
    assert ("wrap_model_engine(float32_outside(engine))" in source) == (precision != "fp32")
    assert messages(report, "DSM510", Severity.REVIEW)


@pytest.mark.parametrize(
    ("block", "options", "reason"),
    [
        (examples.GAN_INIT, Options(precision="bf16"), "calls its models directly"),
        (examples.GAN_INIT, Options(precision="autocast"), "calls its models directly"),
        (PAST, Options(precision="autocast"), "self.model.embed() goes past the engine's forward (model_def.py, line"),
        (PAST, Options(precision="fp16"), "self.model.embed() goes past the engine's forward (model_def.py, line"),
        (UNSHARDED, Options(precision="bf16"), "float32 copies of the weights then, and "),
        ("", Options(precision="bf16", target="determined"), "determined has nothing that casts"),
        (examples.GAN_INIT, Options(offload="optimizer"), "the trial calls its models directly"),
        (UNSHARDED, Options(offload="optimizer"), "stages 1 to 3 can, and this is 0 ("),
        ("", Options(offload="parameters"), "only stage 3 can, and this is 1"),
        ("", Options(offload="parameters", zero=2), "only stage 3 can, and this is 2"),
    ],
)
def test_what_would_not_do_what_it_states_is_blocked(block: str, options: Options, reason: str, tmp_path: Path) -> None:
    report, source, config = migrate(tmp_path, block, options)

    code = "DSM510" if options.precision else "DSM511"
    assert any(reason in message for message in messages(report, code, Severity.BLOCKED))
    assert (source, config) == ("", {})


def test_fp32_is_blocked_where_autocast_would_stay_around_forwards(tmp_path: Path) -> None:
    train = examples.GAN_TRAIN.replace("    loss_d = self", "    with torch.autocast('cuda'):\n        loss_d = self")

    report, *_ = migrate(tmp_path, examples.GAN_INIT + train, Options(precision="fp32"))

    assert any("its own autocast stays" in message for message in messages(report, "DSM510", Severity.BLOCKED))


@pytest.mark.parametrize(
    ("options", "zero"),
    [
        (Options(offload="optimizer"), {"stage": 1, "offload_optimizer": {"device": "cpu"}}),
        (Options(offload="optimizer", zero=2), {"stage": 2, "offload_optimizer": {"device": "cpu"}}),
        (
            Options(offload="parameters", zero=3),
            {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
        ),
    ],
)
def test_offload_keeps_the_trials_optimizer(options: Options, zero: dict[str, Any], tmp_path: Path) -> None:
    report, source, config = migrate(tmp_path, "", options)

    assert config["zero_optimization"] == zero
    assert config["zero_force_ds_cpu_optimizer"] is False
    assert "optimizer=self.optimizer" in source
    assert messages(report, "DSM511", Severity.REVIEW)


def test_an_optimizer_in_the_config_needs_no_permission_for_offload(tmp_path: Path) -> None:
    _, _, config = migrate(tmp_path, "", Options(offload="optimizer", optimizer_in_config=True))

    assert config["optimizer"]["type"] == "SGD" and "zero_force_ds_cpu_optimizer" not in config


@pytest.mark.parametrize(
    ("optimizer", "block"),
    [
        (ADAM, {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True, "adam_w_mode": False}}),
        (
            "torch.optim.AdamW(self.model.parameters(), 1e-3, (0.8, 0.9), weight_decay=-0.5, amsgrad=True)",
            {
                "type": "AdamW",
                "params": {
                    "lr": 1e-3, "betas": [0.8, 0.9], "weight_decay": -0.5, "amsgrad": True, "torch_adam": True
                },
            },
        ),
        ("torch.optim.SGD(params=self.model.parameters(), lr=1)", {"type": "SGD", "params": {"lr": 1}}),
        ("torch.optim.RMSprop(self.model.parameters())", {"type": "RMSprop", "params": {}}),
    ],
    ids=["Adam", "AdamW", "SGD", "defaults"],
)  # fmt: skip
def test_an_optimizer_moves_with_its_arguments(optimizer: str, block: dict[str, Any], tmp_path: Path) -> None:
    report, source, config = migrate(tmp_path, INIT.format(optimizer=optimizer), Options(optimizer_in_config=True))

    assert config["optimizer"] == block
    assert "torch.optim" not in source and "deepspeed.initialize(model=self.model, config=ds_config)" in source
    assert messages(report, "DSM512", Severity.CONVERTED)


def test_arguments_known_at_run_time_are_merged_in(tmp_path: Path) -> None:
    given = 'lr=2 * self.context.get_hparam("lr"), momentum=self.momentum, nesterov=True'
    init = INIT.format(optimizer=f"torch.optim.SGD(self.model.parameters(), {given})")
    init = init.replace("    self.model =", "    self.momentum = 0.9\n    self.model =")

    _, source, config = migrate(tmp_path, init, Options(optimizer_in_config=True))

    assert config["optimizer"] == {"type": "SGD", "params": {"nesterov": True}}
    merged = '"optimizer": {"params": {"lr": 2 * self.context.get_hparam("lr"), "momentum": self.momentum}},'
    assert merged in source


def test_comments_on_a_moved_optimizer_stay(tmp_path: Path) -> None:
    init = (
        INIT.format(optimizer=ADAM)
        .replace("    self.optimizer =", "    # why it is Adam\n    self.optimizer =")
        .replace(f"({ADAM})", f"({ADAM})  # tuned")
    )

    _, source, _ = migrate(tmp_path, init, Options(optimizer_in_config=True))

    assert "# why it is Adam" in source and "# tuned" in source


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (examples.GAN_INIT, "each of several engines has its own parameters"),
        (INIT.format(optimizer="torch.optim.Adam([{'params': self.model.parameters()}])"), "its parameters are not"),
        (
            INIT.format(optimizer="torch.optim.Adam(filter(lambda p: p.requires_grad, self.model.parameters()))"),
            "its parameters are not",
        ),
        (INIT.format(optimizer="torch.optim.LBFGS(self.model.parameters())"), "not made by a call of a torch.optim"),
        (INIT.format(optimizer="make_optimizer(self.model.parameters())"), "not made by a call of a torch.optim"),
        (INIT.format(optimizer="torch.optim.SGD(self.model.parameters(), **settings)"), "* or ** hide"),
        (INIT.format(optimizer="torch.optim.SGD(self.model.parameters(), lr=rate())"), "lr=rate() cannot be computed"),
        (
            INIT.format(optimizer=ADAM) + "    self.scheduler = self.context.wrap_lr_scheduler(\n"
            "        StepLR(self.optimizer, 1), LRScheduler.StepMode.STEP_EVERY_EPOCH\n    )\n",
            "its learning rate schedule is made of it",
        ),
        (INIT.format(optimizer=ADAM) + "    print(self.optimizer.defaults)\n", "uses it"),
    ],
)
def test_an_optimizer_that_deepspeed_would_make_otherwise_stays(block: str, reason: str, tmp_path: Path) -> None:
    report, source, config = migrate(tmp_path, block, Options(optimizer_in_config=True))

    assert any(reason in message for message in messages(report, "DSM512", Severity.REVIEW))
    assert "optimizer" not in config and "optimizer=" in source
    assert "TODO(ds-migrate" not in source


@pytest.mark.parametrize(
    "options",
    [
        Options(precision="bf16"),
        Options(zero=3, offload="parameters"),
        Options(optimizer_in_config=True),
        Options(precision="autocast", offload="optimizer", optimizer_in_config=True),
    ],
)
def test_a_second_run_changes_nothing(options: Options, tmp_path: Path) -> None:
    report, *_ = migrate(tmp_path, "", options)
    for file in report.files:
        if file.after is not None:
            file.path.write_bytes(file.after)

    for again in (options, Options()):
        assert not any(file.to_write for file in examples.run(tmp_path, options=again).files)


def test_an_existing_config_without_the_offload_that_was_asked_for_is_a_review(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text('{"gradient_clipping": 0.0, "zero_optimization": {"stage": 1}}')

    report, _, config = migrate(tmp_path, "", Options(offload="optimizer"))

    said = "zero_optimization has no offload_optimizer, which --offload asks for"
    assert any(said in message for message in messages(report, "DSM503", Severity.REVIEW))
    assert config["zero_force_ds_cpu_optimizer"] is False
