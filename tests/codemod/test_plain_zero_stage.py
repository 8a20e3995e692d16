"""The ZeRO stage of a plain loop: 1 only where shards of parameters, gradients and state do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.options import Options
from plain_loops import HEADER, LOOP, convert

STAGE = '"zero_optimization": {"stage": %d}'
WRITES = {
    "initialized anew": "nn.init.xavier_uniform_(model.fc.weight)",
    "reset": "model.fc.reset_parameters()",
    "by a function": "model.apply(lambda m: None)",
    "in place": "with torch.no_grad():\n        model.fc.weight *= 0.5",
    "an element": "with torch.no_grad():\n        model.fc.weight[0] = 0",
    "data": "model.fc.weight.data = model.fc.weight.data / 2",
    "replaced": "nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()), model.parameters())",
}
HAZARDS = {
    "optimizer state": "optimizer.state.clear()",
    "parameters of groups": 'for p in optimizer.param_groups[0]["params"]:\n        print(p.norm())',
    "frozen later": "model.fc.requires_grad_(False)",
    "precision": "model = model.double()",
    "complex numbers": "print(torch.view_as_complex(model.fc.weight.detach().reshape(-1, 2)))",
}


def looping(line: str) -> str:
    return HEADER + LOOP + f"    {line}\n"


def without_runtime(folder: Path, text: str) -> str:
    imports = "import torch\nfrom torch.utils.data import DistributedSampler\n\ntorch.manual_seed(0)\n"
    sampled = text.replace("shuffle=True", "sampler=DistributedSampler(data)")
    return convert(folder, imports + sampled, Options(plain=True, runtime=False))


@pytest.mark.parametrize("line", WRITES.values(), ids=WRITES.keys())
def test_what_writes_to_parameters_is_left_to_the_runtime(line: str, tmp_path: Path) -> None:
    assert STAGE % 1 in convert(tmp_path, looping(line))


@pytest.mark.parametrize("line", WRITES.values(), ids=WRITES.keys())
def test_without_the_runtime_it_keeps_the_stage_at_0(line: str, tmp_path: Path) -> None:
    assert STAGE % 0 in without_runtime(tmp_path, looping(line))


def test_names_of_libraries_are_no_data_of_parameters(tmp_path: Path) -> None:
    text = HEADER + LOOP.replace("DataLoader(", "torch.utils.data.DataLoader(")
    assert STAGE % 1 in without_runtime(tmp_path, text)


@pytest.mark.parametrize("line", HAZARDS.values(), ids=HAZARDS.keys())
def test_what_needs_whole_parameters_keeps_the_stage_at_0(line: str, tmp_path: Path) -> None:
    assert STAGE % 0 in convert(tmp_path, looping(line))


def test_inputs_that_require_gradients_do_no_harm(tmp_path: Path) -> None:
    text = LOOP.replace("    optimizer.zero_grad()\n", "    optimizer.zero_grad()\n    x.requires_grad_(True)\n")
    assert STAGE % 1 in convert(tmp_path, HEADER + text)


def test_clipping_before_the_backward_pass_stays_without_effect(tmp_path: Path) -> None:
    clip = "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
    text = convert(tmp_path, HEADER + LOOP.replace("    loss.backward", clip + "    loss.backward"))
    assert clip in text
    assert '"gradient_clipping": 0.0' in text


@pytest.mark.parametrize(
    ("maker", "stage"),
    [
        ("lambda params: torch.optim.Adam(params, lr=0.1)", 1),
        ("functools.partial(torch.optim.Adam, lr=0.1)", 1),
        ("functools.partial(torch.optim.Adafactor, lr=0.1)", 0),
        ("getattr(torch.optim, os.environ['OPTIMIZER'])", 0),
    ],
)
def test_the_class_that_a_lambda_or_partial_makes_decides_the_stage(maker: str, stage: int, tmp_path: Path) -> None:
    loop = LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "make(model.parameters())")
    after = convert(tmp_path, f"import functools\nimport os\n\n{HEADER}make = {maker}\n{loop}")
    assert STAGE % stage in after


@pytest.mark.parametrize(
    ("weight", "stage"),
    [("torch.FloatTensor(4, 1)", 1), ("given", 0), ("other.weight", 0), ("other.weight.clone()", 0)],
)
def test_a_layer_that_makes_its_weight_shares_none(weight: str, stage: int, tmp_path: Path) -> None:
    """As the layers of graph networks: they kept the stage at 0."""
    layer = (
        "class Layer(nn.Module):\n    def __init__(self, other=None, given=None):\n        super().__init__()\n"
        f"        self.weight = nn.Parameter({weight})\n\n"
        "    def forward(self, x):\n        return x @ self.weight\n\n\n"
    )
    assert STAGE % stage in convert(tmp_path, HEADER + layer + LOOP.replace("Net()", "nn.Sequential(Layer(), Net())"))
