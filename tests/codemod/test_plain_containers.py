"""Optimizers of plain training loops that lists and dicts hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.options import Options
from ds_migrate.rules.codes import Code
from plain_loops import blocked, body, convert

LISTED = """
    a, b = Net(), nn.Linear(4, 1)
    opts = [torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), lr=0.1)]
    for x, y in DataLoader(data, batch_size=4):
        for opt in opts:
            opt.zero_grad()
        F.mse_loss(a(x) + b(x), y).backward()
        for opt in opts:
            opt.step()
    """
TRAINER = """
    class Trainer:
        def __init__(self):
            self.nets = {"g": Net(), "d": nn.Linear(4, 1)}
            self.optimizers = {}
            self.optimizers["g"] = torch.optim.Adam(self.nets["g"].parameters())
            self.optimizers["d"] = torch.optim.Adam(self.nets["d"].parameters())
            self.schedules = [torch.optim.lr_scheduler.StepLR(o, 1) for o in self.optimizers.values()]

        def fit(self, loader):
            for x, y in loader:
                for name in ("g", "d"):
                    self.optimizers[name].zero_grad()
                F.mse_loss(self.nets["g"](x), y).backward()
                self.optimizers["g"].step()
                F.mse_loss(self.nets["d"](x), y).backward()
                self.optimizers["d"].step()
            for schedule in self.schedules:
                schedule.step()


    Trainer().fit(DataLoader(data, batch_size=4))
    """


def test_each_optimizer_of_a_list_has_an_engine_which_it_leads_to(tmp_path: Path) -> None:
    after = convert(tmp_path, body(LISTED))
    assert "a_engine, *_ = deepspeed.initialize(\n    model=a,\n    optimizer=opts[0],\n" in after
    assert "b_engine, *_ = deepspeed.initialize(\n    model=b,\n    optimizer=opts[1],\n" in after
    assert after.count('"train_micro_batch_size_per_gpu": 4,') == 2
    assert after.endswith(
        "    for opt in opts:\n        opt.zero_grad()\n    F.mse_loss(a(x) + b(x), y).backward()\n"
        "    for opt in opts:\n        engine_of(opt).step()\n"
    )


def test_an_item_with_a_key_has_its_engine_by_name(tmp_path: Path) -> None:
    after = convert(tmp_path, body(TRAINER))
    assert 'self.nets_g_engine, *_ = deepspeed.initialize(\n            model=self.nets["g"],\n' in after
    assert 'optimizer=self.optimizers["g"],' in after
    assert 'self.nets_g_engine.backward(F.mse_loss(self.nets["g"](x), y), scale_wrt_gas=False)\n' in after
    assert "            self.nets_d_engine.step()\n" in after


@pytest.mark.parametrize(
    ("loop", "step"),
    [
        ("for i, opt in enumerate(opts): opt.step()", "engine_of(opt).step()"),
        ("for net, opt in zip((a, b), opts): opt.step()", "engine_of(opt).step()"),
        ("[o.step() for o in reversed(opts)]", "[engine_of(o).step() for o in reversed(opts)]"),
        ("opts[1].step(); opts[0].step()", "b_engine.step(); a_engine.step()"),
        ("opts.reverse(); opts[0].step(); opts[1].step()", "engine_of(opts[0]).step(); engine_of(opts[1]).step()"),
        ("for i in range(2): opts[i].step()", "engine_of(opts[i]).step()"),
    ],
)
def test_a_loop_over_a_list_steps_the_engines(loop: str, step: str, tmp_path: Path) -> None:
    text = body(LISTED).replace("for opt in opts:\n        opt.step()", loop)
    assert step in convert(tmp_path, text)


def test_an_appended_optimizer_has_an_engine(tmp_path: Path) -> None:
    appended = (
        "opts = []\nopts.append(torch.optim.Adam(a.parameters()))\nopts.append(torch.optim.SGD(b.parameters()))\n"
    )
    (line,) = [line for line in body(LISTED).splitlines() if line.startswith("opts =")]
    after = convert(tmp_path, body(LISTED).replace(line + "\n", appended))
    assert after.count("    optimizer=opts[-1],\n") == 2 and "engine_of(opt).step()" in after


def test_a_list_is_handed_on_as_it_is(tmp_path: Path) -> None:
    after = convert(
        tmp_path,
        body("""
        def make(a, b):
            return [torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), lr=0.1)]


        def train(a, b, opts):
            for x, y in DataLoader(data, batch_size=4):
                for net, opt in zip((a, b), opts):
                    opt.zero_grad()
                    F.mse_loss(net(x), y).backward()
                    opt.step()


        def main():
            a, b = Net(), nn.Linear(4, 1)
            opts = make(a, b)
            train(a, b, opts)


        main()
        """),
    )
    assert "    train(a, b, opts)\n" in after and "engine_of(opt).step()" in after
    assert "        model=b,\n        optimizer=opts[1],\n" in after


def test_optimizers_of_a_loop_over_modules_are_refused(tmp_path: Path) -> None:
    text = body(LISTED).replace("opts = [", "opts = [torch.optim.Adam(n.parameters()) for n in (a, b)]\nunused = [")
    assert blocked(tmp_path, text)[0][0] == Code.PLAIN_ENGINE


def test_without_the_runtime_nothing_leads_to_the_engine(tmp_path: Path) -> None:
    assert Code.PLAIN_UNTRACED in [
        code for code, _ in blocked(tmp_path, body(LISTED), Options(plain=True, runtime=False))
    ]
