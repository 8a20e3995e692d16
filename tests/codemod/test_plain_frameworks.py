"""Scripts that hand their training to a framework: named, with the framework's own switch for DeepSpeed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds_migrate.cli import main
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, convert, run

LIGHTNING = "import pytorch_lightning as pl\n\npl.Trainer(max_epochs=3).fit(net)\n"


@pytest.mark.parametrize(
    ("text", "line", "switch"),
    [
        (LIGHTNING, 3, 'strategy="deepspeed_stage_1"'),
        ("from lightning.pytorch.cli import LightningCLI as CLI\nCLI(Net)\n", 2, 'strategy="deepspeed_stage_1"'),
        ("from lightning import Fabric\nfabric = Fabric()\n", 2, 'Fabric(strategy="deepspeed_stage_1")'),
        ("from transformers import Trainer\nclass T(Trainer): pass\nT(model)\n", 3, 'deepspeed="ds_config.json"'),
        ("from trl import SFTTrainer\nSFTTrainer(model)\n", 2, 'deepspeed="ds_config.json"'),
        ("from trl.trainer.dpo_trainer import DPOTrainer\nDPOTrainer(m)\n", 2, 'deepspeed="ds_config.json"'),
        ("from transformers.trainer import Trainer\nTrainer(model)\n", 2, 'deepspeed="ds_config.json"'),
        ("from sentence_transformers import CrossEncoderTrainer as T\nT(model)\n", 2, 'deepspeed="ds_config.json"'),
        ("from poutyne import ModelBundle\nModelBundle.from_network(net)\nModelBundle(net)\n", 3, "write its loop out"),
        ("from accelerate import Accelerator\na = Accelerator()\n", 2, "accelerate config"),
        (
            "from ignite.engine import create_supervised_trainer\ncreate_supervised_trainer(m, o, f)\n",
            2,
            "process function",
        ),
        ("from fastai.vision.all import *\nlearn = vision_learner(data, net)\n", 2, "write its loop out"),
        ("import skorch\nnet = skorch.NeuralNetClassifier(Net)\n", 2, "write its loop out"),
    ],
)
def test_a_framework_is_named_with_its_switch(text: str, line: int, switch: str, tmp_path: Path) -> None:
    report = run(tmp_path, script=text)
    ((_, finding),) = report.findings()
    assert (finding.code, finding.severity, finding.line) == (Code.PLAIN_FRAMEWORK, Severity.BLOCKED, line)
    assert finding.help is not None and switch in finding.help


@pytest.mark.parametrize(
    "text",
    [
        "from transformers import AutoModel\nAutoModel.from_pretrained('a')\n",
        "from trainer import Trainer\nTrainer(model).fit()\n",
        "import pytorch_lightning as pl\nclass Net(pl.LightningModule): pass\n",
    ],
)
def test_a_library_that_does_not_train_here_is_not_named(text: str, tmp_path: Path) -> None:
    assert not run(tmp_path, script=text).files


def test_a_file_is_named_once(tmp_path: Path) -> None:
    text = "import accelerate\naccelerator = accelerate.Accelerator()\n" + HEADER + LOOP
    assert [code for code, _ in blocked(tmp_path, text)] == [Code.PLAIN_FRAMEWORK]


def test_a_loop_may_use_the_models_of_a_framework(tmp_path: Path) -> None:
    imports = "from sentence_transformers import util\nfrom ignite.metrics import Accuracy\n"
    imports += "from accelerate import init_empty_weights\nfrom accelerate.utils import set_seed\n"
    assert "engine.step()" in convert(tmp_path, imports + HEADER + LOOP)


@pytest.mark.parametrize(
    "text",
    [
        LIGHTNING,
        "from transformers import (\n    AutoModel,\n    Trainer,\n)\n\nTrainer(model).train()\n",
        "from fastai.vision.all import *\n\nvision_learner(data, net).fit(1)\n",
        "from accelerate import Accelerator\n\naccelerator = Accelerator()\n",
    ],
)
def test_the_default_command_points_to_plain(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text(text)
    assert main([str(tmp_path)]) == 0
    assert "1 file has a plain training loop: ds-migrate --plain" in capsys.readouterr().err


def test_a_class_that_is_named_like_a_frameworks_is_no_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "from transformers import AutoModel\nfrom trainer import Trainer\n\nTrainer(AutoModel()).fit()\n"
    (tmp_path / "script.py").write_text(text)
    assert main([str(tmp_path)]) == 0
    assert "plain training loop" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "what"),
    [
        ("fairscale.nn", "fairscale"),
        ("torch.distributed.fsdp", "FullyShardedDataParallel"),
        ("apex.parallel", "apex.parallel"),
        ("apex.amp", "apex.amp"),
        ("horovod.torch", "Horovod"),
    ],
)
def test_another_owner_of_the_parameters_is_refused_by_name(module: str, what: str, tmp_path: Path) -> None:
    ((code, message),) = blocked(tmp_path, f"import {module}\n" + HEADER + LOOP)
    assert code == Code.PLAIN_FRAMEWORK and message.startswith(f"{what} owns parameters")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import apex\nmodel, optimizer = apex.amp.initialize(model, optimizer)", "apex.amp"),
        ("model = torch.distributed.fsdp.FullyShardedDataParallel(model)", "FullyShardedDataParallel"),
        (
            "import torch.distributed as dist\nmodel = dist.fsdp.FullyShardedDataParallel(model)",
            "FullyShardedDataParallel",
        ),
        ("import fairscale\nmodel = fairscale.nn.FullyShardedDataParallel(model)", "fairscale"),
    ],
)
def test_another_owner_is_refused_where_its_package_is_imported_whole(line: str, what: str, tmp_path: Path) -> None:
    ((code, message),) = blocked(tmp_path, HEADER + LOOP.replace("for x, y", f"{line}\nfor x, y"))
    assert code == Code.PLAIN_FRAMEWORK and message.startswith(f"{what} owns parameters")


FSDP = """
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,
)


def prepare(model, mesh):
    return FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)
"""
TENSOR_PARALLEL = """
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


def prepare(model, mesh):
    parallelize_module(model, mesh, {"fc": ColwiseParallel()})
    return model
"""


@pytest.mark.parametrize(
    ("helper", "what"), [(FSDP, "FullyShardedDataParallel"), (TENSOR_PARALLEL, "tensor parallelism")]
)
def test_another_owner_of_the_model_is_refused_where_a_helper_file_hands_it_over(
    helper: str, what: str, tmp_path: Path
) -> None:
    script = "from parallel import prepare\n" + HEADER + LOOP.replace("Net()", "prepare(Net(), None)")
    findings = {file.path.name: f for file, f in run(tmp_path, script=script, parallel=helper).findings()}
    assert {f.severity for f in findings.values()} == {Severity.BLOCKED}
    assert findings["parallel.py"].code is Code.PLAIN_FRAMEWORK and what in findings["parallel.py"].message
    assert "for a reason in parallel.py" in findings["script.py"].message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            "from setting import make\nrunner = make()",
            "the loop is run by Accelerate, which has its own way to DeepSpeed",
        ),
        ("import horse\nrunner = horse.Runner()", "tensor: horse.Runner() of a library returns it"),
        ("def main(runner):\n    fit", "tensor: it is the argument runner of main(), which no call in them gives"),
    ],
    ids=["a framework in another file", "a library", "an argument"],
)
def test_a_loss_that_is_given_to_backward_of_an_object_is_no_gradient(make: str, message: str, tmp_path: Path) -> None:
    """``runner.backward(loss)`` became ``engine.backward((runner * loss).sum())``."""
    setting = "from accelerate import Accelerator\n\n\ndef make():\n    return Accelerator()\n"
    loop = LOOP.replace("loss.backward()", "runner.backward(loss)").replace("\n", "\n    ")
    start = make if "main" in make else f"{make}\nfit"
    report = run(tmp_path, setting=setting, train=f"{HEADER}def fit(runner):\n    {loop}\n\n{start}(runner)\n")
    found = [finding.message for _, finding in report.findings(Severity.BLOCKED)]
    assert any(message in one for one in found) and not any(result.to_write for result in report.files)


def test_an_owner_of_another_model_in_a_helper_file_refuses_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, script="from parallel import mean\n" + HEADER + LOOP, parallel=FSDP + "\n\nmean = 1\n")
    assert all(finding.severity is not Severity.BLOCKED for _, finding in report.findings())


def test_a_module_that_hides_deepspeed_blocks_the_loop_beside_it(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("stage = 1\n")
    found = [(f.code, f.message) for _, f in run(tmp_path, train=HEADER + LOOP).findings(Severity.BLOCKED)]
    message = "a module deepspeed beside this file hides the package of that name, which the conversion imports"
    assert found == [(Code.PLAIN_ENGINE, message)]
    (tmp_path / "__init__.py").write_text("")  # where it is a module of a package
    assert not list(run(tmp_path, train=HEADER + LOOP).findings(Severity.BLOCKED))


def test_a_loop_of_another_tensor_library_beside_one_of_torch_stays_as_it_is(tmp_path: Path) -> None:
    other = """\
import megengine.optimizer as optim
from megengine.autodiff import GradManager
import train


def fit(model, loader):
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    manager = GradManager().attach(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        with manager:
            loss = model(x).sum()
            manager.backward(loss)
        optimizer.step()
"""
    report = run(tmp_path, train=HEADER + LOOP, fit=other)
    assert {file.path.name for file in report.files if file.after is not None or file.findings} == {"train.py"}


@pytest.mark.parametrize(("text", "reported"), [(LOOP, 1), (HEADER, 0), (LOOP.replace(".backward", ".back"), 0)])
def test_a_loop_in_a_notebook_is_named_with_the_way_to_a_script(text: str, reported: int, tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "source": source, "metadata": {}} for source in ("%matplotlib inline\n" + HEADER, text)
    ]
    (tmp_path / "look.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    findings = [(finding.code, finding.cell) for _, finding in run(tmp_path).findings(Severity.BLOCKED)]
    assert findings == [(Code.PLAIN_FRAMEWORK, 2)] * reported


def test_the_default_command_counts_loops_in_notebooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [{"cell_type": "code", "source": HEADER + LOOP, "metadata": {}}]
    (tmp_path / "look.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    main([str(tmp_path)])
    assert "1 file has a plain training loop" in capsys.readouterr().err


OF_ACCELERATOR = """
class Trainer:
    def __init__(self, config, model):
        self.accelerator, self.model = config["accelerator"], model

    def fit(self, loader):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.model, optimizer, loader = self.accelerator.prepare(self.model, optimizer, loader)
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(self.model(x), y).backward()
            optimizer.step()
"""
OF_RUNNER = """\
import accelerate
from trainer import DataLoader, Net, Trainer, data

config = {}
config["accelerator"] = accelerate.Accelerator()
Trainer(config, Net()).fit(DataLoader(data))
"""


def test_a_loop_that_an_accelerator_of_another_file_prepares_stays(tmp_path: Path) -> None:
    report = run(tmp_path, trainer=HEADER + OF_ACCELERATOR, train=OF_RUNNER)
    assert {finding.code for _, finding in report.findings()} == {Code.PLAIN_FRAMEWORK}
    assert not any(file.to_write for file in report.files)
