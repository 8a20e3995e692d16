"""The names that converted code may import are those that the runtime has."""

from __future__ import annotations

import importlib
from pathlib import Path

import examples
import pytest
from ds_migrate.options import Options
from ds_migrate.targets import DEEPSPEED_MODULE, MOVED, RUNTIME


@pytest.mark.parametrize("name", [*MOVED.values(), "EngineModule", "overwrite_deepspeed_config"])
def test_the_deepspeed_api_is_there(name: str) -> None:
    assert hasattr(importlib.import_module(RUNTIME.module(DEEPSPEED_MODULE)), name)


@pytest.mark.parametrize("name", ["determined.keras", "determined.core.DummyTrainContext", "determined.launch"])
def test_what_the_runtime_lacks_is_known(name: str) -> None:
    assert not RUNTIME.has(name)


# Names outside of the trial API, as real files import them, and as the conversion imports them.
PROVIDED = [
    ("from determined.util import download_gcs_blob_with_backoff", "download_gcs_blob_with_backoff(None)"),
    ("from determined.horovod import hvd", "hvd.allreduce(torch.ones(1))"),
    ("import determined.common.check as check", "check.eq(1, 1)"),
    ("from determined.common.check import check_eq", "check_eq(1, 1)"),
    ("from determined.pytorch import reset_parameters", "reset_parameters(torch.nn.Linear(1, 1))"),
    ("from determined import Constant, Log", "Constant(1), Log(1, 2)"),
]


@pytest.mark.parametrize(("line", "use"), PROVIDED)
def test_a_name_outside_of_the_trial_api_keeps_its_path(line: str, use: str, tmp_path: Path) -> None:
    text = examples.module(examples.METHODS["__init__"])
    result = examples.convert(tmp_path, f"{line}\n{text}\n\ndef helper():\n    return {use}\n")
    assert result.after is not None
    assert line.replace("determined", "trial_runtime") in result.after.decode()
    assert use in result.after.decode()


@pytest.mark.parametrize("imported", ["determined_common", "determined_common.check"])
def test_the_package_of_older_releases_is_renamed_where_it_is_used(imported: str, tmp_path: Path) -> None:
    text = examples.module(examples.METHODS["__init__"])
    use = "\n\ndef helper():\n    determined_common.check.eq(1, 1)\n"
    result = examples.convert(tmp_path, f"import {imported}\n{text}{use}")
    assert result.after is not None
    after = result.after.decode()
    assert f"import {imported.replace('determined_common', 'trial_runtime.common')}\n" in after
    assert "    trial_runtime.common.check.eq(1, 1)\n" in after
    assert "determined_common" not in after


def test_helper_classes_are_written_once_for_all_trials_of_a_file(tmp_path: Path) -> None:
    wrap = "self.context.wrap_{0}".format
    init = f"""def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.generator = {wrap("model")}(Generator())
    self.discriminator = {wrap("model")}(Discriminator())
    self.opt_g = {wrap("optimizer")}(torch.optim.Adam(self.generator.parameters()))
    self.opt_d = {wrap("optimizer")}(torch.optim.Adam(self.discriminator.parameters()))
    {wrap("lr_scheduler")}(Decay(self.opt_g), LRScheduler.StepMode.STEP_EVERY_EPOCH)
"""
    text = examples.module(init)
    second = text[text.index("class MyTrial") :].replace("MyTrial", "Other")
    result = examples.convert(tmp_path, f"{text}\n\n{second}", options=Options(target="determined"))
    assert result.after is not None
    after = result.after.decode()
    assert after.count("class EngineModule") == after.count("class LRSchedule") == 1
    assert after.count("ds_config = overwrite_deepspeed_config(") == 2
    assert after.index("class EngineModule") < after.index("class MyTrial") < after.index("class Other")
