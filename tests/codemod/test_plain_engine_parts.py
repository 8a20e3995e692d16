"""Several optimizers of plain training loops that hold parts of one module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ds_migrate.options import Options
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, body, convert, run

PARTS = """
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.body(x))


    model = Two()
    first = torch.optim.SGD(model.body.parameters(), lr=0.1)
    second = torch.optim.Adam(model.head.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        first.zero_grad()
        second.zero_grad()
        F.mse_loss(model(x), y).backward()
        first.step()
        second.step()
    """


def test_optimizers_of_parts_of_a_module_get_engines_of_these_parts(tmp_path: Path) -> None:
    after = convert(tmp_path, body(PARTS))
    assert "body_engine, *_ = deepspeed.initialize(\n    model=model.body,\n    optimizer=first," in after
    assert "head_engine, *_ = deepspeed.initialize(\n    model=model.head,\n    optimizer=second," in after
    assert "    body_engine.backward(F.mse_loss(model(x), y), scale_wrt_gas=False)\n    body_engine.step()" in after


OVERLAPS = ["model.parameters()", "model.body.parameters()", "[p for p in model.parameters() if p.ndim > 1]"]


@pytest.mark.parametrize("held", OVERLAPS)
def test_engines_of_optimizers_that_share_parameters_clear_no_gradients(held: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(PARTS).replace("model.head.parameters()", held))
    assert after.count(", keep_gradients=True)") == 2 and after.count('"managed_gradient_accumulation": False') == 2
    assert re.search(
        r"    first.zero_grad\(\)\n    second.zero_grad\(\)\n    (\w+).backward.*\n    \1.step\(\)\n    \w+.step\(\)\n",
        after,
    )


def test_optimizers_that_share_parameters_need_the_runtime(tmp_path: Path) -> None:
    text = body(PARTS).replace("model.head.parameters()", "model.parameters()")
    message = "two optimizers hold parameters of one module, and DeepSpeed alone clears the gradients of both in a step"
    assert ("DSM601", message) in blocked(tmp_path, text, Options(plain=True, runtime=False))


@pytest.mark.parametrize("tie", ["self.head.weight = self.body.weight", "self.also = Net(self.body)"])
def test_parts_that_may_share_parameters_clear_no_gradients(tie: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(PARTS).replace("self.head = nn.Linear(4, 1)", f"self.head = Net()\n        {tie}"))
    assert after.count(", keep_gradients=True)") == 2


SEARCH = """
    class Search:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.Adam(model.parameters())

        def step(self, x, y):
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
    """
SEARCHED = """
    import search

    loader = DataLoader(data, batch_size=4)
    model = Net()
    searched = search.Search(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        searched.step(x, y)
        LOSS_STEP
    """
CRITIC = """
    class Search:
        def __init__(self, model):
            self.model, self.own = model, Net()
            self.optimizer = torch.optim.Adam(self.own.parameters())

        def step(self, x, y):
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(self.own(x).expand(-1, 4)), y)
            loss.backward()
            self.optimizer.step()
    """


@pytest.mark.parametrize("other", [SEARCH, CRITIC])
def test_gradients_that_a_loop_of_another_file_leaves_in_a_model_are_cleared(other: str, tmp_path: Path) -> None:
    report = run(tmp_path, search=body(other), train=body(SEARCHED))
    after = {file.path.stem: (file.after or b"").decode() for file in report.files}
    assert "    optimizer.zero_grad()\n" in after["train"] and "self.optimizer.zero_grad()" in after["search"]


FIT = """
    def fit(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            LOSS_STEP
    """
MAIN = """\
import search, train
model = train.Net()
train.fit(model)
for x, y in train.DataLoader(train.data, batch_size=4):
    search.Search(model).step(x, y)
"""


def test_a_loop_of_another_file_that_only_evaluates_a_model_is_converted_apart(tmp_path: Path) -> None:
    trains = "loss = F.mse_loss(self.model(self.own(x).expand(-1, 4)), y)\n"
    lines = ("with torch.no_grad():\n", "    y = self.model(x)\n", "loss = F.mse_loss(self.own(x), y)\n")
    kept = {}
    for name, other in (("trains", CRITIC), ("evaluates", CRITIC.replace(trains, f"{' ' * 12}".join(lines)))):
        (tmp_path / name).mkdir()
        report = run(tmp_path / name, search=body(other), train=body(FIT), main=MAIN)
        kept[name] = [file.path.stem for file in report.files if file.after and b".zero_grad()" in file.after]
    assert kept == {"trains": ["search", "train"], "evaluates": []}


HELD = """
    class Trainer:
        def __init__(self, model):
            self.model = model
            LINES

        def fit(self, loader):
            for x, y in loader:
                OWN_STEP


    Trainer(Net()).fit(DataLoader(data, batch_size=4))
    """


@pytest.mark.parametrize(
    "lines",
    [
        "self.head = model.fc\n            self.optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)",
        "head = model.fc\n            self.optimizer = torch.optim.SGD(head.parameters(), lr=0.1)",
        "self.optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)",
    ],
)
def test_a_part_that_a_name_holds_is_in_the_engine_of_its_module(lines: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(HELD.replace("LINES", lines)))
    assert "            model=model,\n" in after and "F.mse_loss(self.engine(x), y)" in after


def test_a_part_of_a_module_without_a_name_is_the_engine_s(tmp_path: Path) -> None:
    loop = LOOP.replace("model = Net()", "model = timm.create_model('resnet18').backbone")
    after = convert(tmp_path, HEADER + "import timm\n\n" + loop)
    assert "    model=model,\n" in after and '"zero_optimization": {"stage": 0}' in after


def test_a_part_that_another_method_keeps_is_no_part_of_the_trainer(tmp_path: Path) -> None:
    lines = "self.head = model.fc\n            self.setup()\n\n        def setup(self):\n            "
    lines += "self.optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)"
    ((code, message),) = blocked(tmp_path, body(HELD.replace("LINES", lines)))
    assert code == Code.PLAIN_ENGINE and message.endswith("self.head cannot be followed to a module")


def test_a_part_of_an_object_that_may_be_no_module_is_refused(tmp_path: Path) -> None:
    loop = LOOP.replace(
        "model = Net()", "pipe = diffusers.StableDiffusionPipeline.from_pretrained('x')\nmodel = pipe.unet"
    )
    loop = loop.replace("model(x)", "denoise(model, x)")
    ((code, message),) = blocked(tmp_path, HEADER + "import diffusers\n\n" + loop)
    assert code == Code.PLAIN_ENGINE and message.endswith("model cannot be followed to a module")


@pytest.mark.parametrize(("held", "name"), [("", "pipe.unet"), ("unet = pipe.unet", "unet")])
def test_an_engine_holds_the_part_of_a_pipeline_that_is_called(held: str, name: str, tmp_path: Path) -> None:
    text = f"""
        from diffusers import DiffusionPipeline

        pipe = DiffusionPipeline.from_pretrained("net")
        {held}
        optimizer = torch.optim.SGD({name}.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss({name}(x), y).backward()
            optimizer.step()
        """
    assert "    model=pipe.unet,\n" in convert(tmp_path, body(text))
