"""Plain training loops whose objects one function makes by the names in a config: ``getattr(module, name)(...)``."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, body, convert, run

NETS = """\
import torch.nn as nn


class Block(nn.Module):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
"""
LOADERS = """\
from torch.utils.data import DataLoader, TensorDataset


class Loader(DataLoader):
    def __init__(self, folder, size):
        super().__init__(TensorDataset(), batch_size=size)

    def validation(self):
        return DataLoader(self.dataset, batch_size=1)
"""
CONFIG = """\
import json
from datetime import datetime
from pathlib import Path


class Config:
    def __init__(self, values, run=None):
        self.values = values
        if run is None:
            run = datetime.now().strftime("%m%d_%H%M%S")
        self.folder = Path("runs") / run
        self.folder.mkdir(parents=True, exist_ok=run == "")

    @classmethod
    def read(cls, path):
        return cls(json.loads(Path(path).read_text()))

    def make(self, name, module, *args, **kwargs):
        kind = self.values[name]["type"]
        options = dict(self.values[name]["args"])
        options.update(kwargs)
        RETURN
"""
TRAIN = """\
import loaders
import nets
import torch
import torch.nn.functional as F
from config import Config


def main(config):
    loader = config.make("loader", loaders)
    held_out = loader.validation()
    model = config.make("net", nets)
    params = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = config.make("optimizer", torch.optim, params)
    schedule = config.make("schedule", torch.optim.lr_scheduler, optimizer)
    for epoch in range(3):
        for x, y in loader:
            LOSS_STEP
        schedule.step()
        for x, y in held_out:
            print(model(x))


if __name__ == "__main__":
    main(Config.read("config.json"))
"""
DIRECT = "return getattr(module, kind)(*args, **options)"
NAMED = "made = getattr(module, kind)\n        found = made(*args, **options)\n        return found"


@pytest.fixture
def files() -> dict[str, str]:
    return {"nets": NETS, "loaders": LOADERS, "config": CONFIG.replace("RETURN", DIRECT), "train": TRAIN}


def converted(folder: Path, files: dict[str, str]) -> dict[str, str]:
    results = {result.path.stem: result for result in run(folder, **files).files}
    assert not [problem for result in results.values() for problem in examples.problems(result)]
    return {name: result.after.decode() for name, result in results.items() if result.after is not None}


@pytest.mark.parametrize("returned", [DIRECT, NAMED])
def test_each_call_makes_what_it_asks_for(tmp_path: Path, files: dict[str, str], returned: str) -> None:
    files["config"] = CONFIG.replace("RETURN", returned)
    after = converted(tmp_path, files)["train"]
    assert '    loader = shard(config.make("loader", loaders))\n    held_out = loader.validation()\n' in after
    assert "    engine, *_ = deepspeed.initialize(\n        model=model,\n        optimizer=optimizer,\n" in after
    assert '        "train_micro_batch_size_per_gpu": loader.batch_size,\n' in after
    assert "            loss = F.mse_loss(engine(x), y)\n            engine.backward(loss)\n" in after
    assert "            print(engine(x))\n" not in after
    assert after.count("shard(") == 1


def test_all_ranks_have_the_folder_that_the_config_names_by_the_clock(tmp_path: Path, files: dict[str, str]) -> None:
    after = converted(tmp_path, files)["config"]
    assert 'run = rank_0_text(datetime.now().strftime("%m%d_%H%M%S"))\n' in after
    assert (
        '        if is_main_rank():\n            self.folder.mkdir(parents=True, exist_ok=run == "")\n'
        "        wait_for_all_ranks()\n"
    ) in after


def test_what_a_factory_gives_by_itself_is_not_followed(tmp_path: Path, files: dict[str, str]) -> None:
    files["config"] = CONFIG.replace("RETURN", "return getattr(module, kind)(self.first, *args, **options)")
    report = run(tmp_path, **files)
    found = {finding.code for result in report.files for finding in result.findings}
    assert found == {Code.PLAIN_ENGINE, Code.FILE_NOT_NAMED}
    assert not any(result.to_write for result in report.files)


def test_a_class_method_is_given_the_class_that_it_is_called_on(tmp_path: Path) -> None:
    text = (
        TRAIN.replace("from config import Config\n", "from config import Short\n")
        .replace("Config.read", "Short.read")
        .replace("held_out = loader.validation()", "held_out = config.held_out(loader)")
    )
    config = CONFIG.replace("RETURN", DIRECT) + (
        "\n\nclass Short(Config):\n    @staticmethod\n    def held_out(loader):\n        return loader.validation()\n"
    )
    after = converted(tmp_path, {"nets": NETS, "loaders": LOADERS, "config": config, "train": text})["train"]
    assert "    engine, *_ = deepspeed.initialize(\n        model=model,\n        optimizer=optimizer,\n" in after


def test_a_factory_gives_by_position_what_its_caller_names(tmp_path: Path) -> None:
    text = """
    def make(module, kind, params):
        return getattr(module, kind)(params)


    model = Net()
    optimizer = make(torch.optim, "Adam", params=model.parameters())
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """
    assert "    optimizer=optimizer,\n" in convert(tmp_path, body(text))


LOOKED_UP = """
    import functools
    import importlib
    from hydra.utils import instantiate


    def find(path):
        module, name = path.rsplit(".", 1)
        return getattr(importlib.import_module(module), name)


    def make(config, **kwargs):
        return find(config["target"])(**config.get("params", dict()), **kwargs)


    def own(config, *args, **kwargs):
        config = dict(config)
        target = config.pop("target")
        is_partial = config.pop("is_partial", False)
        config.update(kwargs)
        made = find(target)
        if is_partial:
            return functools.partial(made, *args, **config)
        return made(*args, **config)


    config = {"net": {"target": "nets.Net"}, "optimizer": {"target": "torch.optim.Adam", "params": {"lr": 0.1}}}
    kind = config["optimizer"]["target"]
    optimizers = {"Adam": torch.optim.Adam}


    def build(name, *args, **kwargs):
        return optimizers[name](*args, **kwargs)


    torch.manual_seed(0)
    model = MODEL
    held = list(model.parameters())
    optimizer = OPTIMIZER
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """


@pytest.mark.parametrize("model", ["Net()", 'make(config["net"])', 'eval(config["net"]["target"])(width=4)'])
@pytest.mark.parametrize(
    "optimizer",
    [
        'make(config["optimizer"], params=model.parameters())',
        'instantiate(config["optimizer"], params=model.parameters())',
        'instantiate(config["optimizer"], model.parameters(), lr=0.1)',
        'eval("torch.optim." + kind)(model.parameters(), lr=0.1)',
        'eval(f"torch.optim.{kind}")(model.parameters(), lr=0.1)',
        "vars(torch.optim)[kind](model.parameters())",
        "build(kind, model.parameters(), lr=0.1)",
        'own(config["optimizer"], params=model.parameters())',
        "find(kind)(model.parameters(), lr=0.1)",
        'find(kind)(held, **config["optimizer"]["params"])',
    ],
)
def test_what_a_config_alone_names_is_known_by_its_parameters(tmp_path: Path, model: str, optimizer: str) -> None:
    after = convert(tmp_path, body(LOOKED_UP).replace("MODEL", model).replace("OPTIMIZER", optimizer))
    assert f"optimizer = {optimizer}\nengine, *_ = deepspeed.initialize(\n    model=model,\n" in after
    assert "    engine.backward(F.mse_loss(engine(x), y))\n    engine.step()\n" in after


def test_a_schedule_that_a_config_names_steps_no_optimizer(tmp_path: Path) -> None:
    text = body(LOOKED_UP).replace("MODEL", "Net()").replace("OPTIMIZER", "torch.optim.Adam(model.parameters())")
    text += 'schedule = instantiate(config["schedule"], optimizer=optimizer)\nschedule.step()\n'
    assert convert(tmp_path, text).endswith("optimizer=optimizer)\nschedule.step()\n")


@pytest.mark.parametrize("name", ["create_optimizer", "get_optimizer", "build_optimizer", "make_optimizer"])
def test_a_function_of_a_library_makes_the_optimizer_of_a_model_that_it_is_given(tmp_path: Path, name: str) -> None:
    made = f"optimizer = {name}('adam', 0.1, model)"
    loop = LOOP.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", made)
    report = run(tmp_path, train=HEADER + f"from recipes.training import {name}\n" + loop)
    [result] = report.files
    assert result.after is not None and f"{made}\nengine, *_ = deepspeed.initialize(\n" in result.after.decode()
    assert any("the optimizer is none of torch's" in finding.message for finding in result.findings)


IDLE = """
    class Noam:
        def __init__(self, optimizer):
            self.optimizer = optimizer

        def step(self):
            self.optimizer.step()


    def make(model):
        return Noam(torch.optim.Adam(model.parameters(), lr=0.1))


    model = Net()
    noam = Noam(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in DataLoader(data, batch_size=4):
        F.mse_loss(model(x), y).backward()
        noam.step()
        noam.optimizer.zero_grad()
    """


def test_an_optimizer_of_a_function_that_nothing_calls_is_for_review(tmp_path: Path) -> None:
    """As get_std_opt() of the Annotated Transformer."""
    report = run(tmp_path, train=body(IDLE))
    after = (report.files[0].after or b"").decode()
    assert "noam = Noam(engine)\n" in after and "return Noam(torch.optim.Adam(model.parameters(), lr=0.1))\n" in after
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert messages == ["nothing calls make(): its optimizer has no engine, which the step needs now"]


MAKERS = """
    class MakesOptimizer:
        def __init__(self, lr):
            self.lr = lr

        def __call__(self, params):
            return torch.optim.SGD(params, lr=self.lr)


    class Config:
        make_optimizer = MakesOptimizer(lr=0.1)


    config = Config()
    """


def test_an_object_makes_an_optimizer_each_time_that_it_is_called(tmp_path: Path) -> None:
    loop = LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "config.make_optimizer(model.parameters())")
    other = loop.replace("model", "other").replace("Net()", "nn.Linear(4, 1)").replace("optimizer ", "second ")
    other = other.replace("optimizer.zero", "second.zero").replace("optimizer.step", "second.step")
    after = convert(tmp_path, body(MAKERS) + loop + other)
    assert after.count("    model=model,\n    optimizer=optimizer,\n") == 1
    assert after.count("    model=other,\n    optimizer=second,\n") == 1


def test_a_function_of_a_library_is_given_the_model_of_a_library(tmp_path: Path) -> None:
    """As in the encoder's training of Coqui TTS."""
    loop = LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "get_optimizer(config.name, config.lr, model)")
    loop = loop.replace("model = Net()", "model = setup(config)\ncount = sum(p.numel() for p in model.parameters())")
    report = run(tmp_path, train=f"{HEADER}from recipes import config, get_optimizer, setup\n{loop}")
    assert "    model=model,\n    optimizer=optimizer,\n" in (report.files[0].after or b"").decode()


LAMBDAS = """
    def optimizer_of(name, model, lr):
        params = model.parameters()
        return {
            "sgd": lambda: torch.optim.SGD(params, lr=lr, momentum=0.9),
            "adam": lambda: torch.optim.Adam(params, lr=lr),
        }[name]()


    model = Net()
    optimizer = optimizer_of("sgd", model, 0.1)
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """


def test_an_optimizer_is_made_by_one_of_several_lambdas(tmp_path: Path) -> None:
    after = convert(tmp_path, body(LAMBDAS))
    assert "    model=model,\n" in after and '"zero_optimization": {"stage": 1}' in after
    other = convert(tmp_path, body(LAMBDAS).replace("optim.Adam(", "optim.Adafactor("))
    assert '"zero_optimization": {"stage": 0}' in other


def test_optimizers_of_several_lambdas_that_hold_other_parameters_are_refused(tmp_path: Path) -> None:
    text = body(LAMBDAS).replace("Adam(params", "Adam(model.fc.parameters()")
    ((code, message),) = blocked(tmp_path, text)
    assert code == Code.PLAIN_ENGINE and "which of several optimizers is made decides on them" in message


def test_what_typing_casts_is_followed(tmp_path: Path) -> None:
    after = convert(
        tmp_path,
        body("""
            from typing import cast


            def make(model):
                return cast("dict[str, torch.optim.Optimizer]", {"net": torch.optim.Adam(model.parameters())})


            model = Net()
            optimizer = make(model)["net"]
            for x, y in DataLoader(data, batch_size=4):
                STEP
            """),
    )
    assert "engine_of(optimizer).step()" in after
