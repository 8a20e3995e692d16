"""Plain training loops whose GradScaler serves several optimizers, or several scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, blocked, body, convert, run
from test_plain_native_scaler import ENGINE, MAIN, NATIVE_SCALER, converted

GAN = """
gen, disc = Net(), nn.Linear(1, 1)
opt_g = torch.optim.Adam(gen.parameters(), lr=0.1)
opt_d = torch.optim.Adam(disc.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for x, y in DataLoader(data, batch_size=4):
    fake = gen(x)
    opt_d.zero_grad()
    scaler.scale(disc(y).mean() - disc(fake.detach()).mean()).backward()
    scaler.unscale_(opt_d)
    nn.utils.clip_grad_value_(disc.parameters(), 1.0)
    scaler.step(opt_d)
    opt_g.zero_grad()
    scaler.scale(disc(fake).mean()).backward()
    scaler.step(opt_g)
    scaler.update()
"""
GIVEN = "use_scaler({0}_engine, {1}, update=False)\n"


def test_engines_step_with_one_scaler_that_the_program_updates(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + GAN)
    assert GIVEN.format("gen", "scaler") + GIVEN.format("disc", "scaler") in after
    assert "    scaler.scale(disc(fake).mean()).backward()\n    gen_engine.step()\n    scaler.update()\n" in after
    averaged = "    disc_engine.allreduce_gradients()\n    scaler.unscale_(opt_d)\n    nn.utils.clip_grad_value_("
    assert averaged in after and "    disc_engine.step()\n    opt_g.zero_grad()\n" in after


def test_each_engine_steps_with_its_scaler(tmp_path: Path) -> None:
    text = GAN.replace("scaler = torch", "other = torch.amp.GradScaler()\nscaler = torch")
    text = text.replace("scaler.scale(disc(fake)", "other.scale(disc(fake)").replace(
        "scaler.step(opt_g)", "other.step(opt_g)"
    )
    after = convert(tmp_path, HEADER + text + "    other.update()\n")
    assert GIVEN.format("gen", "other") in after and GIVEN.format("disc", "scaler") in after
    assert after.endswith("    scaler.update()\n    other.update()\n")


def test_clipping_of_one_of_several_engines_takes_its_unscaling_along(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + GAN.replace("clip_grad_value_", "clip_grad_norm_"))
    assert '"gradient_clipping": 1.0' in after and "unscale_" not in after


def test_a_loop_over_optimizers_steps_with_the_scaler(tmp_path: Path) -> None:
    text = """
    class Trainer:
        def __init__(self):
            self.first, self.second = Net(), nn.Linear(1, 1)
            self.optimizers = {
                "first": torch.optim.Adam(self.first.parameters()), "second": torch.optim.SGD(self.second.parameters())
            }
            self.scaler = torch.amp.GradScaler()

        def fit(self, loader):
            for x, y in loader:
                for optimizer in self.optimizers.values():
                    optimizer.zero_grad()
                self.scaler.scale(F.mse_loss(self.second(self.first(x)), y)).backward()
                for optimizer in self.optimizers.values():
                    self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(self.first.parameters(), 1.0)
                for optimizer in self.optimizers.values():
                    self.scaler.step(optimizer)
                self.scaler.update()


    Trainer().fit(DataLoader(data, batch_size=4))
    """
    after = convert(tmp_path, body(text))
    assert "            self.first_engine.allreduce_gradients()\n            self.second_engine.allreduce" in after
    assert "                engine_of(optimizer).step()\n            self.scaler.update()\n" in after
    assert f"        {GIVEN.format('self.first', 'self.scaler')}" in after


TRAIN = """
def train_one_epoch(model, optimizer, loader, clip, scaler=None):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()


def main(clip, amp):
    MAKE_MODEL
    scaler = torch.amp.GradScaler() if amp else None
    train_one_epoch(model, optimizer, DataLoader(data, batch_size=4), clip, scaler)


if __name__ == "__main__":
    main(1.0, bool(len(data)))
"""
QUANTIZED = """
from train import train_one_epoch

MAKE_MODEL
train_one_epoch(model, optimizer, DataLoader(data, batch_size=4), None)
"""


def test_a_function_of_two_scripts_scales_where_it_gets_a_scaler(tmp_path: Path) -> None:
    after = converted(tmp_path, train=HEADER + TRAIN, train_quantization=HEADER + QUANTIZED)
    assert "    use_scaler(engine, scaler, update=False)\n    train_one_epoch(model, engine," in after["train"]
    assert (
        "            engine.step()\n            scaler.update()\n        else:\n            loss.backward()"
        in after["train"]
    )
    assert "use_scaler" not in after["train_quantization"]


def test_a_function_of_two_scripts_gives_the_scaler_where_both_may_have_one(tmp_path: Path) -> None:
    other = QUANTIZED.replace(", None)", ", None, [torch.amp.GradScaler()][len(data) - 8])")
    after = converted(tmp_path, train=HEADER + TRAIN, train_quantization=HEADER + other)
    assert "            use_scaler(engine, scaler, update=False)\n            engine.step()\n" in after["train"]
    assert "            use_scaler(engine, None, update=False)\n            engine.step()\n" in after["train"]


def test_two_scripts_share_an_object_that_keeps_the_scaler(tmp_path: Path) -> None:
    other = ENGINE.replace("train_one_epoch", "finetune")
    main = MAIN.replace("from loop", "from finetuning").replace("train_one_epoch", "finetune")
    after = converted(
        tmp_path, util=NATIVE_SCALER, loop=HEADER + ENGINE, main=HEADER + MAIN, finetuning=HEADER + other,
        main_finetune=HEADER + main,
    )  # fmt: skip
    stepped = "            use_scaler(engine, self._scaler, update=False)\n            engine.step()\n"
    assert stepped in after["util"] and "self._scaler.scale(loss).backward(create_graph=create_graph)" in after["util"]
    assert "            engine.allreduce_gradients()\n            if clip_grad is not None:\n" in after["util"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("scaler.step(opt_d)", "step = scaler.step\n    step(opt_d)", "cannot determine which backward()"),
        ("for x, y in", "torch.save(scaler, 'scaler.pt')\nfor x, y in", "given to a call that cannot be followed"),
        ("scaler.scale(disc(fake).mean())", "known['scaler'].scale(disc(fake).mean())", "which GradScaler this is"),
    ],
)
def test_a_shared_scaler_that_cannot_be_followed_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    found = blocked(tmp_path, HEADER + GAN.replace(old, new))
    assert any(message in reason for _, reason in found), found


def test_a_clipping_that_may_be_of_another_engine_is_refused(tmp_path: Path) -> None:
    main = MAIN.replace("optimizer = torch", "other = Net()\n    optimizer = torch").replace(
        "train_one_epoch(model,", "train_one_epoch(other,"
    )
    report = run(tmp_path, util=NATIVE_SCALER, loop=HEADER + ENGINE, main=HEADER + MAIN, main_2=HEADER + main)
    assert Code.PLAIN_CLIPPING in [finding.code for _, finding in report.findings()]
    assert not any(file.to_write for file in report.files)


PROFILED = """
from copy import deepcopy


def profile(net, x):
    net(x).sum().backward()
    return torch.cuda.memory_reserved()


model = Net()
used = profile(deepcopy(model), torch.zeros(2, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for x, y in DataLoader(data, batch_size=4):
    with torch.cuda.amp.autocast():
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_a_backward_that_no_step_is_known_to_use_stays_unscaled_beside_a_scaler(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + PROFILED)
    assert "    net(x).sum().backward()\n" in after and "use_scaler(engine, scaler)\n" in after
    assert "    optimizer.zero_grad()\n" in after and '"zero_optimization": {"stage": 0}' in after


SCALED_BEFORE = """
def train(amp):
    MAKE_MODEL
    scaler = torch.amp.GradScaler() if amp else None
    for x, y in DataLoader(data, batch_size=4):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        SCALES
        scaled.backward()
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()


train(bool(len(data)))
"""


@pytest.mark.parametrize(
    "scales",
    [
        "scaled = loss if scaler is None else scaler.scale(loss)",
        "scaled = scaler.scale(loss) if scaler else loss",
        "scaled = loss\n        if scaler is not None:\n            scaled = scaler.scale(loss)",
    ],
)
def test_a_loss_that_a_variable_keeps_scaled_stays_so(scales: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(SCALED_BEFORE.replace("SCALES", scales)))
    assert f"        {scales}\n        scaled.backward()\n" in after
    assert "    use_scaler(engine, scaler, update=False)\n" in after
    assert "            engine.step()\n            scaler.update()\n        else:\n            engine.step()\n" in after


SET_SCALE = """
MAKE_MODEL
scaler = torch.cuda.amp.GradScaler(init_scale=1.0)
for batch, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    with torch.cuda.amp.autocast():
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if batch % 100 == 0 and scaler.get_scale() < 8.0:
        scaler.update(scaler.get_scale() * 2.0)
"""


def test_a_call_that_sets_the_scale_stays(tmp_path: Path) -> None:
    """As in the recipes of icefall."""
    after = convert(tmp_path, HEADER + SET_SCALE)
    assert "    engine.step()\n" in after and "scaler.update()" not in after
    assert "        scaler.update(scaler.get_scale() * 2.0)\n" in after


BY_ATTRIBUTE = """
    class Trainer:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.is_mixed = torch.cuda.is_available()
            if self.is_mixed:
                self.scaler = torch.amp.GradScaler()

        def backward(self, x, y):
            loss = F.mse_loss(self.model(x), y)
            if self.is_mixed:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()

        def update(self):
            if self.is_mixed:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.optimizer.zero_grad()

    trainer = Trainer(Net())
    for x, y in DataLoader(data, batch_size=4):
        trainer.backward(x, y)
        trainer.update()
    """


def test_methods_scale_by_the_attribute_that_decides_on_the_scaler(tmp_path: Path) -> None:
    after = convert(tmp_path, body(BY_ATTRIBUTE))
    assert (
        "            self.scaler = torch.amp.GradScaler()\n            use_scaler(self.engine, self.scaler)\n" in after
    )
    assert after.count("            self.engine.step()\n") == 2


def test_methods_that_scale_by_an_attribute_that_changes_are_refused(tmp_path: Path) -> None:
    text = body(BY_ATTRIBUTE).replace(
        "trainer = Trainer(Net())\n", "trainer = Trainer(Net())\ntrainer.is_mixed = False\n"
    )
    ((code, message),) = blocked(tmp_path, text)
    assert (code, message) == (Code.PLAIN_PRECISION, "the engine cannot get the GradScaler of this backward()")


def test_a_batch_that_updates_the_scaler_without_a_step_keeps_both_updates(tmp_path: Path) -> None:
    text = body("""
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(model(x), y)).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not torch.isfinite(norm):
                optimizer.zero_grad()
                scaler.update()
                continue
            scaler.step(optimizer)
            scaler.update()
        """)
    after = convert(tmp_path, text)
    assert "use_scaler(engine, scaler, update=False)\n" in after and after.count("    scaler.update()\n") == 2
    assert "    engine.allreduce_gradients()\n    scaler.unscale_(optimizer)\n" in after
    assert "        optimizer.zero_grad()\n        scaler.update()\n        continue\n    engine.step()\n" in after


def test_a_scaler_of_one_branch_of_an_expression_is_not_taken_back_by_the_other(tmp_path: Path) -> None:
    text = """
    class Trainer:
        def __init__(self, amp):
            self.model, self.amp = Net(), amp
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def train(self):
            scaler = torch.amp.GradScaler() if self.amp else None
            for x, y in DataLoader(data, batch_size=4):
                self.optimizer.zero_grad()
                loss = F.mse_loss(self.model(x), y)
                scaler.scale(loss).backward() if self.amp else loss.backward()
                if self.amp:
                    scaler.step(self.optimizer)
                    scaler.update()
                else:
                    self.optimizer.step()
    """
    after = convert(tmp_path, body(text))
    line = "            if {}:\n                use_scaler(self.engine, {})\n"
    assert line.format("self.amp", "scaler") + line.format("not self.amp", "None") in after


COMPETITION = """
def train_fn(loader, model, optimizer):
    scaler = torch.amp.GradScaler(enabled=False)
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()


for fold in range(2):
    MAKE_MODEL
    train_fn(DataLoader(data, batch_size=4), model, optimizer)
"""


def test_a_function_that_makes_its_scaler_gives_it_once_to_the_engine_that_it_gets(tmp_path: Path) -> None:
    after = convert(tmp_path, body(COMPETITION))
    assert "(enabled=False)\n    use_scaler(engine, scaler)\n    for x, y" in after and after.count("use_scaler(") == 1
    twice = COMPETITION.replace(
        "    for x", "    if len(loader) > 9:\n        scaler = torch.amp.GradScaler()\n    for x"
    )
    assert "        use_scaler(engine, scaler)\n        engine.backward(" in convert(tmp_path, body(twice))
