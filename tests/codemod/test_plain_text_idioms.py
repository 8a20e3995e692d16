"""Plain training loops as programs for speech and text write them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Report, Severity
from plain_loops import HEADER, LOOP, OPTIONAL_SCALER, body, convert, run

WRAPPER = """
import torch


class ScheduledOptim:
    def __init__(self, model):
        self._optimizer = torch.optim.Adam(model.parameters())

    def step_and_update_lr(self):
        self._optimizer.step()
"""
PARTS = """
from model import Net, ScheduledOptim


def get_model():
    model = Net()
    return model, ScheduledOptim(model)
"""
STEPS = """
from utils.model import get_model
from model.net import F, DataLoader, data

model, optimizer = get_model()
for x, y in DataLoader(data, batch_size=4):
    F.mse_loss(model(x), y).backward()
    optimizer.step_and_update_lr()
    model.zero_grad()
"""
RANKS = """
import argparse
import torch.distributed as dist


def start(args, rank):
    if args.world_size > 1:
        dist.init_process_group("nccl", world_size=args.world_size, rank=rank)


parser = argparse.ArgumentParser()
parser.add_argument("--rank", default=0, type=int)
parser.add_argument("--world_size", default=1, type=int)
args = parser.parse_args()
start(args, args.rank)
"""
OPTIMIZER_OF_PARAMETERS = """
class Stepper:
    def setup(self, params):
        self.optimizer = torch.optim.Adam(params)


def main():
    net = Net()
    stepper = Stepper()
    stepper.setup(net.parameters())
    for x, y in DataLoader(data, batch_size=4):
        F.mse_loss(net(x), y).backward()
        stepper.optimizer.step()
        stepper.optimizer.zero_grad()


main()
"""


def texts(report: Report) -> dict[str, str]:
    return {file.path.as_posix(): (file.after or b"").decode() for file in report.files}


def test_a_module_of_a_package_imports_the_package_beside_it_and_not_itself(tmp_path: Path) -> None:
    for name in ("model", "utils"):
        (tmp_path / name).mkdir()
    package = "from .net import Net\nfrom .optimizer import ScheduledOptim\n"
    modules = {"model/__init__": package, "model/net": HEADER, "model/optimizer": WRAPPER}
    report = run(tmp_path, **modules, **{"utils/__init__": "", "utils/model": PARTS, "train": STEPS})
    assert not list(report.findings(Severity.BLOCKED))
    after = {Path(path).stem: text for path, text in texts(report).items()}
    assert "self.engine, *_ = deepspeed.initialize(" in after["optimizer"]
    assert "optimizer.engine.backward(F.mse_loss(model(x), y), scale_wrt_gas=False)" in after["train"]


def test_a_class_is_found_through_the_package_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "brains").mkdir()
    base = "class Brain:\n    def __init__(self, optimizer):\n        self.optimizer = optimizer\n"
    text = LOOP.replace("for x, y", "class Own(sb.core.Brain):\n    pass\n\n\nbrain = Own(optimizer)\nfor x, y")
    text = "import brains as sb\n" + HEADER + text.replace("    optimizer.", "    brain.optimizer.")
    report = run(tmp_path, **{"brains/__init__": "from .core import Brain\n", "brains/core": base, "train": text})
    assert not list(report.findings(Severity.BLOCKED))


def test_a_backward_pass_takes_the_step_of_its_branch(tmp_path: Path) -> None:
    text = body(OPTIONAL_SCALER + "train(model, loader, optimizer, scaler)\n")
    loss, rest = text.split("        if scaler is not None:\n")
    rest = rest[rest.index("\n\n\n") :]
    steps = """\
        if use_amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if use_amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            norm = loss.detach()
            if torch.isfinite(norm):
                optimizer.step()
"""
    loss = loss.replace("    for x, y", "    use_amp = loader.use_amp\n    for x, y")
    after = convert(tmp_path, loss + steps + rest)
    scaled, unscaled = "            use_scaler(engine, scaler)\n", "            use_scaler(engine, None)\n"
    assert scaled in after and unscaled in after and after.count("engine.step()") == 2


def test_a_number_of_the_rank_that_an_argument_gives_is_the_launcher_s(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + RANKS + LOOP)
    assert 'parser.add_argument("--rank", default=global_rank(0), type=int)' in after
    node = RANKS.replace("\nstart(args,", "\nargs.rank = args.rank * 8\nstart(args,")
    assert "global_rank" not in convert(tmp_path, HEADER + node + LOOP)


def test_what_join_did_for_uneven_ranks_is_for_review(tmp_path: Path) -> None:
    text = LOOP.replace("model = Net()", "model = DDP(Net())")
    loop = text[text.index("for x") :].replace("\n", "\n    ").rstrip()
    text = text[: text.index("for x")] + f"with model.join(enable=True):\n    {loop}\n"
    (result,) = run(tmp_path, train=HEADER + text).files
    assert b"with contextlib.nullcontext():" in (result.after or b"")
    assert any("join() is removed" in finding.message for finding in result.findings)


def test_a_copied_helper_that_nothing_calls_does_not_start_ranks(tmp_path: Path) -> None:
    helper = "import torch.distributed as dist\n\n\ndef start(rank):\n    dist.init_process_group('nccl', rank=rank)\n"
    text = "import tools\n" + HEADER + LOOP.replace("in loader:", "in tools.batches:")
    report = run(tmp_path, tools=helper + "\n\nbatches = []\n", train=text)
    assert any("no DataLoader feeds this step" in f.message for _, f in report.findings(Severity.REVIEW))


def test_ranks_start_in_the_block_of_main_behind_a_lambda(tmp_path: Path) -> None:
    """A lambda began the work of the program, so that ranks started where the module was imported."""
    head = HEADER.partition("data = ")[0]
    lines = "largest = lambda x: x.max()\n\nif __name__ == '__main__':\n" + textwrap.indent(
        "data = TensorDataset(torch.zeros(8, 4), torch.zeros(8, 1))\n" + LOOP, "    "
    )
    assert "if __name__ == '__main__':\n    init_distributed()\n" in convert(tmp_path, head + lines)


def test_ranks_start_where_a_function_returns_before_it_starts_them(tmp_path: Path) -> None:
    start = """
import torch.distributed as dist


def start(args):
    if not args.gpus:
        return
    if args.gpus > 1:
        dist.init_process_group("nccl")


start(args)
"""
    after = convert(tmp_path, HEADER + start + LOOP)
    assert "start(args)\ninit_distributed(world_size=1)\n" in after
    assert "share_random_state=False)\n    init_distributed(world_size=1)" in after


def test_a_parser_of_a_helper_takes_the_launcher_s_variable(tmp_path: Path) -> None:
    tools = "import argparse\n\nparser = argparse.ArgumentParser()\n"
    tools += "parser.add_argument('--local_rank', type=int, default=-1)\nargs = parser.parse_args()\n"
    start = "import torch.distributed as dist\nfrom tools import args\n\nif args.local_rank >= 0:\n"
    start += "    dist.init_process_group('nccl')\n"
    report = run(tmp_path, tools=tools, train=HEADER + start + LOOP)
    assert any("default=local_rank(-1)" in text for text in texts(report).values())


def test_an_engine_is_not_made_of_a_name_that_only_the_caller_has(tmp_path: Path) -> None:
    assert "            model=EngineModule(self.optimizer),\n" in convert(tmp_path, HEADER + OPTIMIZER_OF_PARAMETERS)
    text = OPTIMIZER_OF_PARAMETERS.replace("def main():", "if True:").replace("\nmain()\n", "")
    assert "            model=net,\n" in convert(tmp_path, HEADER + text)


@pytest.mark.parametrize("given", ["list(model.named_parameters())", "named"])
def test_groups_are_made_of_what_a_function_is_given(given: str, tmp_path: Path) -> None:
    text = LOOP.replace("model.parameters()", f"groups({given}, 0.1)")
    text = text.replace("optimizer = ", "named = list(model.named_parameters())\noptimizer = ")
    groups = """

def groups(named, decay):
    return [
        {"params": [p for n, p in named if "bias" not in n], "weight_decay": decay},
        {"params": [p for n, p in named if "bias" in n], "weight_decay": 0.0},
    ]


"""
    assert "    model=model,\n" in convert(tmp_path, HEADER + groups + text)


def test_a_bar_that_counts_by_hand_is_shown_and_written_beside_once(tmp_path: Path) -> None:
    text = (
        LOOP.replace("for x, y", "bar = tqdm(total=8)\nbar.n = 2\nfor x, y")
        + "    bar.write('done')\n    bar.update()\n"
    )
    after = convert(tmp_path, "from tqdm import tqdm\n" + HEADER + text)
    assert "bar = tqdm(total=8, disable=not is_main_rank())" in after
    assert "    if is_main_rank():\n        bar.write('done')\n    bar.update()\n" in after
