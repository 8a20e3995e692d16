"""Idioms of plain loops in packages on PyPI."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, body, convert, run

LAUNCH = """\
import os

import torch


def init_distributed_mode(args):
    if "RANK" not in os.environ:
        args.distributed = False
        return
    args.distributed = True
    args.rank = int(os.environ["RANK"])
    torch.distributed.init_process_group(backend="gloo", rank=args.rank)
"""
MAIN = """\
import argparse

import launch
from torch.utils.data.distributed import DistributedSampler


def main(args):
    launch.init_distributed_mode(args)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data) if args.distributed else None)
    MAKE_MODEL
    if args.distributed:
        model = DDP(model)
    for x, y in loader:
        STEP


if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


def test_ranks_start_where_a_helper_in_another_file_starts_them(tmp_path: Path) -> None:
    report = run(tmp_path, launch=LAUNCH, train=HEADER + MAIN)
    after = {file.path.stem: (file.after or b"").decode() for file in report.files}
    assert "init_distributed(rank=args.rank, share_random_state=False)" in after["launch"]
    assert "init_process_group" not in after["launch"]
    assert "launch.init_distributed_mode(args)\n    init_distributed(world_size=1)\n" in after["train"]
    assert after["train"].count("init_distributed(world_size=1)") == 1


def test_two_scripts_start_their_ranks_by_one_helper(tmp_path: Path) -> None:
    report = run(tmp_path, launch=LAUNCH, train=HEADER + MAIN, tune=HEADER + MAIN)
    after = {file.path.stem: (file.after or b"").decode() for file in report.files}
    assert after["launch"].count("init_distributed(rank=args.rank, share_random_state=False)") == 1
    assert after["train"] == after["tune"]


def test_an_optimizer_may_be_replaced_before_it_is_used(tmp_path: Path) -> None:
    made = """\
        if kind == "sgd":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        elif kind == "adam":
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses = []
        if only_last:
            optimizer = torch.optim.Adam(model.fc.parameters(), lr=0.1)
    """
    text = HEADER + LOOP.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n", textwrap.dedent(made))
    after = convert(tmp_path, text)
    assert after.count("deepspeed.initialize(") == 1
    assert after.index("model.fc.parameters()") < after.index("deepspeed.initialize(") < after.index("for x, y")


def test_an_optimizer_that_is_replaced_after_it_was_used_has_another_engine(tmp_path: Path) -> None:
    again = LOOP.partition("model = Net()\n")[2].replace("SGD", "Adam")
    after = convert(tmp_path, HEADER + LOOP + again)
    assert after.count("engine, *_ = deepspeed.initialize(") == after.count("engine.step()") == 2


def test_clipping_over_lists_of_all_parameters_moves_to_the_config(tmp_path: Path) -> None:
    lines = {
        "model = Net()\n": "model, other = Net(), Net()\n",
        "SGD(model.parameters()": "SGD(list(model.parameters()) + list(other.parameters())",
        "F.mse_loss(model(x), y)": "F.mse_loss(model(x) + other(x), y)",
        "    optimizer.step()": "    torch.nn.utils.clip_grad_norm_("
        "list(model.parameters()) + list(other.parameters()), 0.5)\n    optimizer.step()",
    }
    text = HEADER + LOOP
    for old, new in lines.items():
        text = text.replace(old, new)
    after = convert(tmp_path, text)
    assert '"gradient_clipping": 0.5' in after and "clip_grad_norm_" not in after


def test_a_loop_whose_backward_is_not_understood_is_named(tmp_path: Path) -> None:
    text = """\
        import torch


        def backwards(loss, **options):
            loss.backward(**options)


        def fit(gan, loader):
            for batch in loader:
                gan.D_opt.zero_grad()
                backwards(gan(batch), inputs=list(gan.parameters()))
                gan.D_opt.step()
    """
    codes = {f.code for _, f in run(tmp_path, train=textwrap.dedent(text)).findings(Severity.BLOCKED)}
    assert codes == {"DSM602", "DSM650"}


def test_one_line_may_make_one_of_several_optimizers(tmp_path: Path) -> None:
    factory = """\
        def resolve(name):
            return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]


        kind = "sgd"
    """
    made = LOOP.replace("torch.optim.SGD(", "resolve(kind)(")
    assert convert(tmp_path, HEADER + textwrap.dedent(factory) + made).count("deepspeed.initialize(") == 1


def test_a_loop_in_the_block_of_main_starts_no_ranks_on_import(tmp_path: Path) -> None:
    made, _, loop = HEADER.rpartition("\n\n\n")
    text = f"{made}\n\n\nif __name__ == '__main__':\n{textwrap.indent(f'{loop}{LOOP}', '    ')}"
    assert "if __name__ == '__main__':\n    init_distributed()\n" in convert(tmp_path, text)


def test_a_method_between_the_loaders_and_those_who_ask_for_them_leaves_evaluation_whole(tmp_path: Path) -> None:
    text = """
        def provide(flag):
            return data, DataLoader(data, batch_size=4, shuffle=flag == "train")


        class Exp:
            def __init__(self):
                self.model = Net()

            def _get_data(self, flag):
                data_set, data_loader = provide(flag)
                return data_set, data_loader

            def train(self):
                train_data, train_loader = self._get_data("train")
                val_data, val_loader = self._get_data("val")
                optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
                for x, y in train_loader:
                    optimizer.zero_grad()
                    F.mse_loss(self.model(x), y).backward()
                    optimizer.step()
                return [self.model(x) for x, y in val_loader]


        Exp().train()
        """
    after = convert(tmp_path, HEADER + body(text))
    assert after.count("shard(") == 1 and "        train_loader = shard(train_loader)\n" in after


def test_all_names_that_one_line_gives_to_the_loaders_of_a_loop_are_divided(tmp_path: Path) -> None:
    text = """
        def make(train):
            return DataLoader(data, batch_size=4, shuffle=train)


        def loaders():
            return make(True), make(True), make(False)


        source, target, test = loaders()
        MAKE_MODEL
        for (x, y), (z, _) in zip(source, target):
            optimizer.zero_grad()
            (F.mse_loss(model(x), y) + model(z).mean()).backward()
            optimizer.step()
        """
    after = convert(tmp_path, HEADER + body(text))
    assert "\nsource = shard(source)\ntarget = shard(target)\n" in after and after.count("shard(") == 2


@pytest.mark.parametrize("base", ["torch.optim.lr_scheduler._LRScheduler", "torch.optim.lr_scheduler.LambdaLR"])
def test_a_schedule_of_the_program_is_no_optimizer(base: str, tmp_path: Path) -> None:
    schedule = f"""
        class Noam({base}):
            def get_lr(self):
                return [rate / (1 + self.last_epoch) for rate in self.base_lrs]


        """
    loop = LOOP.replace("for x", "schedule = Noam(optimizer)\nfor x") + "    schedule.step()\n"
    after = convert(tmp_path, HEADER + body(schedule) + loop)
    assert after.count("deepspeed.initialize(") == 1 and "    engine.step()\n    schedule.step()\n" in after


def test_the_class_of_an_optimizer_may_be_a_default_value(tmp_path: Path) -> None:
    text = """
        class Estimator:
            def __init__(self, rate=0.1, optimizer=torch.optim.SGD):
                self.model = Net()
                self.optimizer_ = optimizer(self.model.parameters(), lr=rate)

            def fit(self, loader):
                for x, y in loader:
                    self.optimizer_.zero_grad()
                    F.mse_loss(self.model(x), y).backward()
                    self.optimizer_.step()


        Estimator().fit(DataLoader(data, batch_size=4))
        """
    assert "                    self.engine.step()\n"[8:] in convert(tmp_path, HEADER + body(text))


def test_a_class_of_the_program_may_be_chosen_by_a_name(tmp_path: Path) -> None:
    models = HEADER + "\n\ndef count(model):\n    return len(list(model.parameters()))\n"
    chosen = LOOP.replace("Net()", "getattr(models, args.arch)()")
    report = run(
        tmp_path, models=models, train=HEADER.replace("import torch\n", "import models\nimport torch\n", 1) + chosen
    )
    (after,) = [file.after for file in report.files if file.after]
    assert b"loss = F.mse_loss(engine(x), y)\n" in after


def test_a_class_that_a_package_imports_may_be_chosen_by_a_name(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    own = "class Own(Net):\n    def optimizer(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n"
    chosen = LOOP.replace("Net()", "getattr(models, args.arch)()").replace(
        "torch.optim.SGD(model.parameters(), lr=0.1)", "model.optimizer()"
    )
    files = {"models/__init__": "from .nets import Net, Own\n", "models/nets": f"{HEADER}\n\n{own}"}
    report = run(tmp_path, **files, train=f"import models\n{HEADER}{chosen}")
    (after,) = [file.after for file in report.files if file.after]
    assert b"loss = F.mse_loss(engine(x), y)\n" in after


@pytest.mark.parametrize("is_package", [False, True])
def test_a_class_is_followed_through_the_package_around_its_module(is_package: bool, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    own = "class Own(Net):\n    def optimizer(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n"
    loop = LOOP.replace("Net()", "models.nets.Own()").replace(
        "torch.optim.SGD(model.parameters(), lr=0.1)", "model.optimizer()"
    )
    if is_package:
        (tmp_path / "models" / "__init__.py").touch()
    report = run(tmp_path, **{"models/nets": f"{HEADER}\n\n{own}"}, train=f"import models.nets\n{HEADER}{loop}")
    (after,) = [file.after for file in report.files if file.after]
    assert b"loss = F.mse_loss(engine(x), y)\n" in after


def test_a_loop_is_found_whose_file_does_not_name_torch(tmp_path: Path) -> None:
    loop = (
        "def train(net, opt, loader):\n    for x, y in loader:\n        opt.zero_grad()\n"
        "        loss = ((net(x) - y) ** 2).mean()\n        loss.backward()\n        opt.step()\n"
    )
    made = "net = Net()\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\ntrain(net, opt, DataLoader(data))\n"
    report = run(tmp_path, loop=loop, script=f"from loop import train\n{HEADER}{made}")
    assert {file.path.stem for file in report.files if file.after} == {"loop", "script"}


def test_a_loop_of_a_project_that_does_not_name_torch_is_none(tmp_path: Path) -> None:
    text = "def train(net, opt, data):\n    net(data).backward()\n    opt.step()\n"
    assert not run(tmp_path, loop=text).files


def test_the_number_of_parameters_and_the_time_are_printed_by_rank_0(tmp_path: Path) -> None:
    lines = "print(sum(p.numel() for p in model.parameters()))\nprint(time.strftime('%H', time.gmtime(0)))\n"
    after = convert(tmp_path, "import time\n" + HEADER + LOOP + lines)
    assert "if is_main_rank():\n" + textwrap.indent(lines, "    ") in after


@pytest.mark.parametrize(
    ("library", "made", "size"),
    [
        ("torch_geometric.loader.NeighborLoader", "NeighborLoader(data, [25, 10], batch_size=4, shuffle=True)", "4"),
        ("torch_geometric.loader.NeighborLoader", "NeighborLoader(data, [25, 10], **options)", "loader.batch_size"),
        ("dgl.dataloading.DataLoader", "DataLoader(data, [0, 1], sampler, batch_size=4)", "4"),
        ("monai.data.DataLoader", "DataLoader(data, 2, batch_size=4)", "4"),
        ("torch_geometric.loader.DataLoader", "DataLoader(data, 4)", "4"),
    ],
)
def test_the_loaders_of_a_library_are_divided_and_take_their_arguments_in_another_order(
    library: str, made: str, size: str, tmp_path: Path
) -> None:
    package, _, name = library.rpartition(".")
    loop = LOOP.replace("DataLoader(data, batch_size=4, shuffle=True)", made)
    report = run(tmp_path, train=f"{HEADER}from {package} import {name}\n\noptions, sampler = {{}}, None\n{loop}")
    (file,) = report.files
    text = (file.after or b"").decode()
    assert f"loader = shard({made})" in text
    assert f'"train_micro_batch_size_per_gpu": {size},' in text


EPOCH = """\
def train(model, loader, optimizer):
    for x, y in loader:
        LOSS_STEP
"""


def test_the_batch_size_of_an_engine_is_that_of_the_loader_beside_it(tmp_path: Path) -> None:
    """The engine of the second function had the batch size of the first."""
    text = f"{HEADER}{EPOCH}"
    for size in (4, 2):
        text += f"""

def run_{size}():
    loader = DataLoader(data, batch_size={size})
    MAKE_MODEL
    train(model, loader, optimizer)
"""
    after = (run(tmp_path, train=f"{text}\n\nrun_4()\nrun_2()\n").files[0].after or b"").decode()
    assert re.findall(r'gpu": (\w+),', after) == ["4", "2"]


def test_the_batch_size_is_no_argument_that_a_script_alone_parses(tmp_path: Path) -> None:
    """A file that imported the function had no such name."""
    train = EPOCH.replace("optimizer):\n", "):\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n")
    script = """

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    args = parser.parse_args()
    train(Net(), DataLoader(data, batch_size=args.batch))
"""
    text = f"import argparse\n{HEADER}{train.replace(', ):', '):')}{script}"
    after = (run(tmp_path, train=text).files[0].after or b"").decode()
    assert '"train_micro_batch_size_per_gpu": loader.batch_size,' in after
