"""Scripts with literal hyperparameters: they name the DeepSpeed config and carry the accumulation."""

from __future__ import annotations

import re
from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Report, Severity

PATH = 'str(Path(__file__).with_name("ds_config.json"))'
SCRIPT = """

{constant}if __name__ == "__main__":
    with pytorch.init({arguments}) as context:
        pytorch.Trainer(MyTrial(context), context).fit(max_length=pytorch.Batch(8))
"""


def convert(folder: Path, arguments: str, constant: str = "") -> str:
    text = examples.module() + SCRIPT.format(arguments=arguments, constant=constant)
    result = examples.convert(folder, text)
    assert examples.problems(result) == []
    assert result.after is not None
    (folder / "model_def.py").write_bytes(result.after)
    assert not any(file.to_write for file in examples.run(folder).files if file.path.suffix == ".py")
    return result.after.decode()


def test_hyperparameters_in_the_call_name_the_config(tmp_path: Path) -> None:
    after = convert(tmp_path, 'hparams={"global_batch_size": 4}')

    lines = [
        "hparams={",
        '        "global_batch_size": 4,',
        f'        "deepspeed_config": {PATH},',
        "    }) as context:",
    ]
    assert "\n".join(lines) in after


def test_accumulation_joins_them_and_every_comment_stays(tmp_path: Path) -> None:
    constant = 'HPARAMS = {\n    "global_batch_size": 4,  # over all slots\n    # tuned\n    "lr": 0.1,\n}\n\n'

    after = convert(tmp_path, "hparams=HPARAMS, aggregation_frequency=2", constant)

    assert after.count("HPARAMS") == 2
    assert (
        'HPARAMS = {\n    "global_batch_size": 4,  # over all slots\n    # tuned\n    "lr": 0.1,\n'
        f'    "deepspeed_config": {PATH},\n'
        '    "overwrite_deepspeed_args": {"gradient_accumulation_steps": 2},\n}\n'
    ) in after
    assert "init(hparams=HPARAMS)" in after
    assert "max_length=pytorch.Batch(4)" in after


@pytest.mark.parametrize(
    ("arguments", "constant"),
    [
        ("hparams=HPARAMS", 'HPARAMS = {"global_batch_size": 4}\nprint(dict(**HPARAMS))\n\n'),
        ("hparams=HPARAMS", 'HPARAMS = load("x.json")\n\n'),
        ("hparams=HPARAMS", 'HPARAMS = {"deepspeed_config": {}, "global_batch_size": 4}\n\n'),
        ("", ""),
    ],
    ids=["read elsewhere", "not literal", "named already", "none"],
)
def test_other_hyperparameters_stay_as_they_are(arguments: str, constant: str, tmp_path: Path) -> None:
    after = convert(tmp_path, arguments, constant)

    assert constant in after and f"init({arguments})" in after


def test_the_experiment_config_of_a_script_counts_in_its_accumulation_too(tmp_path: Path) -> None:
    arguments = "hparams=get_cluster_info().trial.hparams, aggregation_frequency=2"
    script = "from determined import get_cluster_info\n" + SCRIPT.format(arguments=arguments, constant="")
    (tmp_path / "model_def.py").write_text(examples.module() + script)
    config = "entrypoint: python3 model_def.py\nsearcher: {name: single, max_length: {batches: 8}}\n"
    (tmp_path / "const.yaml").write_text(config + "hyperparameters: {global_batch_size: 4}\n")

    report = examples.run(tmp_path)

    after = {file.path.name: (file.after or b"").decode() for file in report.files}
    steps = '"overwrite_deepspeed_args": {"gradient_accumulation_steps": 2}'
    assert f"hparams={{**get_cluster_info().trial.hparams, {steps}}}" in after["model_def.py"].replace("\n", "")
    assert "max_length: {batches: 4}" in after["const.yaml"]
    assert "overwrite_deepspeed_args: {gradient_accumulation_steps: 2}" in after["const.yaml"]


def test_a_script_in_another_folder_leaves_it_to_the_trials_own_code(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "model_def.py").write_text(examples.module())
    script = "from determined import pytorch\nfrom pkg.model_def import MyTrial\n"
    script += SCRIPT.format(arguments='hparams={"global_batch_size": 4}', constant="")
    (tmp_path / "train.py").write_text(script)

    report: Report = examples.run(tmp_path)

    assert not list(report.findings(Severity.BLOCKED, Severity.ERROR))
    (after,) = [file.after for file in report.files if file.path.name == "train.py"]
    assert after is not None and b'hparams={"global_batch_size": 4})' in after


def test_lengths_under_a_name_count_accumulated_batches_too(tmp_path: Path) -> None:
    script = """

def main(args, debug):
    length = pytorch.Batch(8) if debug else pytorch.Epoch(2)
    period = pytorch.Batch(args.period + 2)
    with pytorch.init(hparams={"global_batch_size": 4}, aggregation_frequency=2) as context:
        trainer = pytorch.Trainer(MyTrial(context), context)
        trainer.fit(max_length=length, validation_period=period, reporting_period=args.r)
"""
    result = examples.convert(tmp_path, examples.module() + script)
    after = (result.after or b"").decode()
    assert "length = pytorch.Batch(4) if debug else pytorch.Epoch(2)" in after
    assert "period = pytorch.Batch(max((args.period + 2) // 2, 1))" in after
    assert [f.line for f in result.findings if "reporting_period is args.r" in f.message]


def test_accumulation_that_only_the_run_knows_moves_along(tmp_path: Path) -> None:
    script = """

def main(args, hparams):
    with pytorch.init(hparams=hparams, aggregation_frequency=args.accumulate) as context:
        pytorch.Trainer(MyTrial(context), context).fit(max_length=pytorch.Batch(8))
"""
    after = (examples.convert(tmp_path, examples.module() + script).after or b"").decode()
    steps = '"overwrite_deepspeed_args": {"gradient_accumulation_steps": args.accumulate}'
    assert f"hparams={{**hparams, {steps}}}" in after.replace("\n", "")
    assert "max_length=pytorch.Batch(max(8 // args.accumulate, 1))" in after


@pytest.mark.parametrize(
    ("given", "line", "reviews"),
    [
        ("pytorch.Batch(4), None, pytorch.Batch(8)", "fit(pytorch.Batch(2), None, pytorch.Batch(4))", 0),
        ("max_length=pytorch.Batch(8), **periods", "fit(max_length=pytorch.Batch(4), **periods)", 1),
    ],
    ids=["by position", "hidden"],
)
def test_lengths_by_position_and_behind_stars(given: str, line: str, reviews: int, tmp_path: Path) -> None:
    script = f"""

def main(periods):
    with pytorch.init(hparams={{"global_batch_size": 4}}, aggregation_frequency=2) as context:
        pytorch.Trainer(MyTrial(context), context).fit({given})
"""
    result = examples.convert(tmp_path, examples.module() + script)
    assert line in (result.after or b"").decode()
    assert len([f for f in result.findings if f.severity is Severity.REVIEW]) == reviews


WITHOUT_HPARAMS = """\
import torch
from determined import pytorch


class MyTrial(pytorch.PyTorchTrial):
    def __init__(self, context{extra}):
        self.context = context
        self.model = self.context.wrap_model(torch.nn.Linear(2, 1))
        self.optimizer = self.context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {{"loss": loss}}

    def evaluate_batch(self, batch):
        return {{"loss": self.model(batch).mean()}}

    def build_training_data_loader(self):
        return pytorch.DataLoader(data, batch_size=4)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(data, batch_size=4)


if __name__ == "__main__":
    with pytorch.init({arguments}) as context:
        pytorch.Trainer(MyTrial(context{given}), context).fit(max_length=pytorch.Batch(8))
"""


@pytest.mark.parametrize(
    ("extra", "given", "arguments", "hparams"),
    [
        ("", "", "aggregation_frequency=2", "{**}"),
        (", hparams", ", {'lr': 1}", "aggregation_frequency=2", "{**}"),
        (", hparams", ", h", "hparams=h, aggregation_frequency=2", "{**h, **}"),
    ],
)
def test_accumulation_reaches_the_engine_of_a_trial_whose_context_had_no_hyperparameters(
    extra: str, given: str, arguments: str, hparams: str, tmp_path: Path
) -> None:
    text = WITHOUT_HPARAMS.format(extra=extra, given=given, arguments=arguments)
    after = (examples.convert(tmp_path, text).after or b"").decode()
    assert "hparams = self.context.get_hparams()" in after
    assert '**{}.get("overwrite_deepspeed_args", {{}})'.format("ds_hparams" if extra else "hparams") in after
    steps = '"overwrite_deepspeed_args": {"gradient_accumulation_steps": 2}'
    where = "" if "**h" in hparams else f', "deepspeed_config": {PATH}'
    plain = re.sub(r"\s+", "", after)
    assert re.sub(r"\s+", "", f"init(hparams={hparams.replace('**}', steps + where + '}')})") in plain.replace(
        ",}", "}"
    )
    assert "max_length=pytorch.Batch(4)" in after


GIVEN_HPARAMS = """\
import yaml
from determined import pytorch


class MyTrial(pytorch.PyTorchTrial):
    def __init__(self, context, hparams):
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=hparams["lr"]))

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": self.model(batch).mean()}

    def build_training_data_loader(self):
        return pytorch.DataLoader(data, batch_size=4)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(data, batch_size=4)


def main():
    hparams = yaml.safe_load(open("const.yaml"))["hyperparameters"]
    with pytorch.init() as context:
        pytorch.Trainer(MyTrial(context, hparams=hparams), context).fit(max_length=pytorch.Batch(4))
"""


@pytest.mark.parametrize(
    ("parameter", "wanted"),
    [
        ("hparams", "ds_config = det_ds.overwrite_deepspeed_config("),
        ("hparams=None", "ds_hparams = hparams or self.context.get_hparams()"),
    ],
)
def test_a_trial_that_is_given_its_hyperparameters_uses_them(parameter: str, wanted: str, tmp_path: Path) -> None:
    (tmp_path / "const.yaml").write_text(
        "name: x\nentrypoint: python3 model_def.py\nsearcher: {name: single, metric: loss, max_length: {batches: 4}}\n"
        "hyperparameters: {lr: 0.1, global_batch_size: 8}\n"
    )
    text = GIVEN_HPARAMS.replace("context, hparams)", f"context, {parameter})") + "\n\nmain()\n"
    result = examples.convert(tmp_path, text)
    assert result.after is not None
    after = result.after.decode()
    assert f"        {wanted}\n" in after
    assert "get_per_slot_batch_size" not in after
