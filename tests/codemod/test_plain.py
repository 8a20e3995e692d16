"""Plain training loops: what they become, and why some stay as they are."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from ds_migrate.cli.parser import parse
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Severity, TrialStatus
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of
from plain_loops import HEADER, LOOP, OPTIONAL_SCALER, blocked, body, convert, run


def test_a_loop_at_module_level_gets_an_engine(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + LOOP)
    assert "engine, *_ = deepspeed.initialize(\n    model=model,\n    optimizer=optimizer," in after
    assert '"train_micro_batch_size_per_gpu": 4,' in after
    assert '"gradient_clipping": 0.0,' in after
    assert '"zero_optimization": {"stage": 1},' in after
    assert after.endswith(
        "for x, y in loader:\n    loss = F.mse_loss(engine(x), y)\n    engine.backward(loss)\n    engine.step()\n"
    )
    assert "loader = shard(DataLoader(data, batch_size=4, shuffle=True))" in after
    assert after.index("init_distributed()\n") < after.index("data = TensorDataset")


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(convert(tmp_path, HEADER + LOOP))
    assert not run(tmp_path).files


def test_a_function_takes_the_engine_in_the_place_of_the_optimizer(tmp_path: Path) -> None:
    after = convert(
        tmp_path,
        body("""
        def train(model, loader, optimizer, epoch=0):
            for x, y in loader:
                STEP
            print(optimizer.param_groups[0]["lr"])


        def main():
            model = Net()
            optimizer = torch.optim.Adam(model.parameters())
            train(model, DataLoader(data, batch_size=2), optimizer=optimizer)


        if __name__ == "__main__":
            main()
        """),
    )
    assert "def train(model, loader, engine, epoch=0):" in after
    assert "        engine.backward(F.mse_loss(engine(x), y))\n        engine.step()\n" in after
    assert "print(engine.optimizer.param_groups" in after
    assert "optimizer=engine" not in after and "engine=engine)" in after
    assert "    init_distributed()\n    main()" in after


def test_an_optimizer_is_followed_into_other_files_and_attributes(tmp_path: Path) -> None:
    trainer = """\
        class Trainer:
            def __init__(self, model, optimizer):
                self.model = model
                self.optimizer = optimizer

            def fit(self, loader):
                for x, y in loader:
                    self.optimizer.zero_grad()
                    loss = (self.model(x) - y).pow(2).mean()
                    loss.backward()
                    self.optimizer.step()
        """
    main = body("""
        from trainer import Trainer

        model = Net()
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1)).fit(DataLoader(data, batch_size=2))
        """)
    report = run(tmp_path, main=main, trainer=textwrap.dedent(trainer))
    written = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n" in written["main.py"]
    assert "Trainer(model, engine).fit(shard(" in written["main.py"]
    main = main.replace("Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))", "Trainer(model, opt)")
    main = main.replace("model = Net()\n", "model = Net()\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n")
    report = run(tmp_path, main=main, trainer=textwrap.dedent(trainer))
    written = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert "Trainer(model, engine)" in written["main.py"]
    assert "def __init__(self, model, engine):" in written["trainer.py"]
    assert "self.optimizer = engine.optimizer\n        self.engine = engine\n" in written["trainer.py"]
    assert "self.engine.backward(loss)\n            self.engine.step()" in written["trainer.py"]


def test_a_script_beside_the_loop_keeps_what_it_saves(tmp_path: Path) -> None:
    library = HEADER + "optim = torch.optim\n\n\ndef keep(model):\n    torch.save(model.state_dict(), 'last.pt')\n"
    other = "import torch\nfrom library import Net\n\ntorch.save(Net(), 'fresh.pt')\nNet().parameters()\n"
    loop = LOOP.replace("torch.optim", "optim") + "keep(model)\n"
    report = run(
        tmp_path,
        library=library,
        test_other=other,
        train="import torch\nimport torch.nn.functional as F\nfrom torch.utils.data import DataLoader\n"
        f"from library import Net, data, keep, optim\n{loop}",
    )
    written = {file.path.name: (file.after or b"").decode() for file in report.files if file.to_write}
    assert {*written} == {"library.py", "train.py"}
    assert "    if is_main_rank():\n        torch.save(model.state_dict()" in written["library.py"]


def test_accumulation_keeps_its_guard_and_its_division(tmp_path: Path) -> None:
    after = convert(
        tmp_path,
        HEADER
        + LOOP.replace("for x, y in loader:\n    optimizer.zero_grad()", "for i, (x, y) in enumerate(loader):").replace(
            "    optimizer.step()\n",
            "    if (i + 1) % 2 == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
        ),
    )
    assert '"managed_gradient_accumulation": False,' in after and '"zero_optimization": {"stage": 0},' in after
    assert "engine.backward(loss, scale_wrt_gas=False)\n    if (i + 1) % 2 == 0:\n        engine.step()\n" in after


def test_clipping_moves_to_the_config(tmp_path: Path) -> None:
    clip = "    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    optimizer.step()"
    after = convert(tmp_path, HEADER + LOOP.replace("    optimizer.step()", clip))
    assert '"gradient_clipping": 0.5,' in after and "clip_grad_norm_" not in after


def test_another_module_of_the_same_function_is_never_taken_for_the_engine(tmp_path: Path) -> None:
    text = HEADER.replace("data =", "def make():\n    return Net()\n\n\nteacher = make()\ndata =") + LOOP
    text = text.replace("model = Net()", "model = make()").replace("(model(x), y)", "(model(x), teacher(x).detach())")
    after = convert(tmp_path, text)
    assert "F.mse_loss(engine(x), teacher(x).detach())" in after and "engine.backward(loss)" in after


def test_of_a_call_that_makes_several_loaders_the_one_that_trains_is_divided(tmp_path: Path) -> None:
    function = "def make():\n    return DataLoader(data, batch_size=4)\n\n\nloader = make()\nheld_out = make()\n"
    text = LOOP.replace("loader = DataLoader(data, batch_size=4, shuffle=True)\n", function)
    report = run(tmp_path, train=HEADER + text)
    assert not list(report.findings(Severity.REVIEW))
    (result,) = report.files
    assert "loader = make()\nloader = shard(loader)\nheld_out = make()\n" in (result.after or b"").decode()


def test_a_call_that_makes_several_loaders_is_to_review_where_none_has_one_name(tmp_path: Path) -> None:
    function = "def make():\n    return DataLoader(data, batch_size=4)\n\n\nloaders = [make(), make()]\n"
    text = LOOP.replace("loader = DataLoader(data, batch_size=4, shuffle=True)\n", function)
    report = run(tmp_path, train=HEADER + text.replace("in loader:", "in loaders[0]:"))
    (finding,) = [finding for _, finding in report.findings(Severity.REVIEW)]
    assert finding.code == Code.PLAIN_SAMPLER and "evaluation" in finding.message


def test_wrappers_go(tmp_path: Path) -> None:
    text = HEADER + LOOP.replace("model = Net()\n", "model = Net()\nmodel = DDP(model)\n")
    after = convert(tmp_path, text + 'torch.save(model.module.state_dict(), "a.pt")\n')
    assert "DDP(model)" not in after
    assert 'if is_main_rank():\n    torch.save(model.state_dict(), "a.pt")' in after


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        (Code.PLAIN_CLOSURE, "optimizer.step()", "optimizer.step(loss)"),
        (Code.PLAIN_GRADIENTS, "    optimizer.step()", "    model.fc.weight.grad *= loss\n    optimizer.step()"),
        (Code.PLAIN_FRAMEWORK, "model = Net()", "import accelerate.utils\nmodel = Net()"),
        (Code.PLAIN_ENGINE, "model.parameters()", "[torch.zeros(1) * 2]"),
    ],
)
def test_what_cannot_be_exact_is_refused_by_name(code: Code, old: str, new: str, tmp_path: Path) -> None:
    assert old in LOOP
    assert code in [found for found, _ in blocked(tmp_path, HEADER + LOOP.replace(old, new))]


def test_a_comment_skips_a_loop(tmp_path: Path) -> None:
    (file,) = run(tmp_path, train=HEADER + LOOP.replace(".step()", ".step()  # ds-migrate: skip")).files
    assert [trial.status for trial in file.trials] == [TrialStatus.SKIPPED] and not file.findings and not file.to_write


SCALED = """\
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
SCALED_LOOP = LOOP.replace(
    "    loss.backward()\n    optimizer.step()\n", SCALED
).replace("for x, y", "amp = bool(len(data))\nscaler = torch.amp.GradScaler(enabled=amp)\nfor x, y")  # fmt: skip


def test_the_engine_uses_the_scaler_of_the_program(tmp_path: Path) -> None:
    clip = "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    scaler.step("
    text = SCALED_LOOP.replace("    scaler.step(", clip).replace(
        "    loss = ", "    with torch.autocast('cpu'): loss = "
    )
    after = convert(tmp_path, HEADER + text + "state = scaler.state_dict()\n")
    assert "scaler = torch.amp.GradScaler(enabled=amp)\nuse_scaler(engine, scaler)\n" in after
    assert '"gradient_clipping": 0.5,' in after and '"zero_optimization": {"stage": 0},' in after
    assert (
        "with torch.autocast('cpu'): loss = F.mse_loss(model(x), y)\n    engine.backward(loss)\n    engine.step()\n"
        in after
    )
    assert "unscale_" not in after and ".update()" not in after and "state = scaler.state_dict()" in after


def test_gradients_may_be_read_behind_the_step_that_unscales_them(tmp_path: Path) -> None:
    clip = "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    scaler.step("
    text = SCALED_LOOP.replace("    scaler.step(", clip)
    late, early = "    print(model.fc.weight.grad.norm())\n", "    scaler.unscale_(optimizer)\n"
    after = convert(tmp_path, HEADER + text + late)
    assert "keep_gradients=True" in after and '"gradient_clipping": 0.5,' in after and "unscale_" not in after
    ((code, message),) = blocked(tmp_path, HEADER + text.replace(early, early + late))
    assert code == Code.PLAIN_PRECISION and message.startswith("gradients are unscaled here")


def test_an_argument_of_backward_that_no_call_gives_is_off(tmp_path: Path) -> None:
    helper = """\
def go_back(loss, optimizer, create_graph=False):
    optimizer.zero_grad()
    loss.backward(create_graph=create_graph)
    optimizer.step()


"""
    text = (
        HEADER
        + helper
        + LOOP.replace("    optimizer.zero_grad()\n", "").replace("loss.backward()", "go_back(loss, optimizer)")
    )
    text = text.removesuffix("    optimizer.step()\n")
    assert "    engine.backward(loss)\n" in convert(tmp_path, text)
    ((code, message),) = blocked(tmp_path, text.replace("(loss, optimizer)\n", "(loss, optimizer, size > 1)\n"))
    assert code == Code.PLAIN_BACKWARD and "create_graph" in message


def test_the_engine_gets_a_scaler_that_was_made_before_it(tmp_path: Path) -> None:
    text = SCALED_LOOP.replace("scaler = torch.amp.GradScaler(enabled=amp)\n", "")
    after = convert(tmp_path, HEADER + "scaler = torch.cuda.amp.GradScaler()\n" + text)
    assert "match_torch(engine)\nuse_scaler(engine, scaler)\n" in after


def test_clipping_that_stays_keeps_its_unscaling(tmp_path: Path) -> None:
    clip = """\
    if amp:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
"""
    after = convert(tmp_path, HEADER + SCALED_LOOP.replace("    scaler.step(", clip + "    scaler.step("))
    assert f"    engine.backward(loss)\n{clip}    engine.step()\n" in after and '"gradient_clipping": 0.0,' in after


@pytest.mark.parametrize(
    ("test", "scaler"),
    [("amp", "GradScaler(enabled=amp)"), ("scaler is not None", "GradScaler() if amp else None"),
     ("amp", "GradScaler() if amp else None")],
)  # fmt: skip
def test_both_branches_of_mixed_precision_become_the_same(test: str, scaler: str, tmp_path: Path) -> None:
    plain = "        loss.backward()\n        optimizer.step()\n"
    branches = f"    if {test}:\n{textwrap.indent(SCALED, '    ')}    else:\n{plain}"
    after = convert(tmp_path, HEADER + SCALED_LOOP.replace(SCALED, branches).replace("GradScaler(enabled=amp)", scaler))
    engine = "        engine.backward(loss)\n        engine.step()\n"
    assert after.endswith(f"    if {test}:\n{engine}    else:\n{engine}")


def test_scripts_beside_each_other_have_their_own_scalers(tmp_path: Path) -> None:
    report = run(tmp_path, one=HEADER + SCALED_LOOP, two="import one\n" + HEADER + SCALED_LOOP)
    written = [file.after.decode() for file in report.files if file.after is not None]
    assert len(written) == 2 and all(text.count("use_scaler(engine, scaler)") == 1 for text in written)


def test_a_function_without_a_scaler_scales_nothing(tmp_path: Path) -> None:
    after = convert(tmp_path, body(OPTIONAL_SCALER + "train(model, loader, optimizer, scaler)\n"))
    assert "use_scaler(engine, scaler)" in after and "scaler.s" not in after
    some = body(OPTIONAL_SCALER + "train(model, loader, optimizer)\n    train(model, loader, optimizer, scaler)\n")
    after = convert(tmp_path, some)
    assert "            use_scaler(engine, scaler)\n            engine.backward(loss)\n" in after
    assert "            use_scaler(engine, None)\n            engine.backward(loss)\n" in after


@pytest.mark.parametrize("text", ["with torch.autocast('cpu', torch.bfloat16):\n        loss = ", "loss = "])
def test_a_forward_pass_under_autocast_goes_through_the_module(text: str, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + LOOP.replace("loss = ", text))
    assert ("engine(x)" in after) is (text == "loss = ")


@pytest.mark.parametrize(
    ("message", "old", "new"),
    [
        ("no update() of", "    scaler.update()\n", ""),
        ("cannot be done at once", "    scaler.update()", "    scale = scaler.get_scale()\n    scaler.update()"),
        ("no update() of", "scaler.update()", "scaler.update(2.0)"),
        ("still scaled", "    scaler.step(", "    nn.utils.clip_grad_norm_(model.parameters(), 1)\n    scaler.step("),
        (
            "this one not",
            SCALED,
            f"{SCALED}    scaler.scale(F.mse_loss(model(x), y)).backward()\n    optimizer.step()\n",
        ),
        ("cannot be followed", SCALED, f"{SCALED}    torch.save(scaler, 'scaler.pt')\n"),
        ("which backward() or step()", "loss).backward()", "loss).backward()\n    print(scaler.scale(loss))"),
        ("which GradScaler this is", "scaler.scale(loss)", "known['scaler'].scale(loss)"),
        ("which GradScaler this is", "for x, y", "known['scaler'].step(optimizer)\nfor x, y"),
    ],
)
def test_a_scaler_that_an_engine_cannot_use_exactly_is_refused(
    message: str, old: str, new: str, tmp_path: Path
) -> None:
    assert old in SCALED_LOOP
    found = blocked(tmp_path, HEADER + SCALED_LOOP.replace(old, new))
    assert [code for code, text in found if message in text] == [Code.PLAIN_PRECISION], found


@pytest.mark.parametrize("code", [Code.PLAIN_ENGINE])
def test_the_page_shows_what_is_written(code: Code, tmp_path: Path) -> None:
    page = page_of(code)
    after = convert(
        tmp_path, HEADER + "loader = DataLoader(data, batch_size=4)\nmodel = Net()\n" + page.block("Before")
    )
    ast.parse(after)
    assert page.block("After") in after


@pytest.mark.parametrize("words", [["--precision", "bf16"], ["--offload", "optimizer"], ["--follow", "package"]])
def test_an_option_for_trials_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--plain", *words, "."])
    assert "for trials" in capsys.readouterr().err


FACTORY = """\
class Model(Net):
    def configure_optimizers(self, decay):
        named = {name: p for name, p in self.named_parameters()}
        named = {name: p for name, p in named.items() if p.requires_grad}
        decayed = [p for name, p in named.items() if p.dim() >= 2]
        others = [p for name, p in named.items() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.1)


grad_clip = 1.0
"""
FROM_FACTORY = FACTORY + LOOP.replace("model = Net()", "model = Model()").replace(
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "optimizer = model.configure_optimizers(0.1)"
)
GUARDED = """\
    if grad_clip != 0.0:
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
"""


def test_a_method_of_the_model_may_make_the_optimizer(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + FROM_FACTORY.replace("    optimizer.step()\n", GUARDED))
    assert "optimizer = model.configure_optimizers(0.1)\nengine, *_ = deepspeed.initialize(\n    model=model," in after
    assert '"gradient_clipping": grad_clip,' in after and "if grad_clip" not in after
    assert '"zero_optimization": {"stage": 1},' in after


CONFIGURED = """\
class Model(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return {returned}


class Trainer:
    def fit(self, module, loader):
        config = module.configure_optimizers()
        {unpacked}
        for x, y in loader:
            self.optimizer.zero_grad()
            F.mse_loss(module(x), y).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            self.optimizer.step()


Trainer().fit(Model(), DataLoader(data, batch_size=4))
"""
SCHEDULE = "torch.optim.lr_scheduler.StepLR(optimizer, 2)"


@pytest.mark.parametrize(
    ("returned", "unpacked"),
    [
        (f"optimizer, {SCHEDULE}", "self.optimizer, self.schedule = config"),
        (f"[{SCHEDULE}, optimizer]", "self.optimizer = config[1]"),
        (f"optimizer, {SCHEDULE}", "if isinstance(config, tuple):\n            self.optimizer, self.schedule = config"),
    ],
)
def test_a_method_of_the_model_may_return_the_optimizer_beside_a_schedule(
    returned: str, unpacked: str, tmp_path: Path
) -> None:
    after = convert(tmp_path, HEADER + CONFIGURED.format(returned=returned, unpacked=unpacked))
    assert "self.engine, *_ = deepspeed.initialize(" in after and "model=module," in after
    assert '"gradient_clipping": 1.0,' in after


@pytest.mark.parametrize(
    "kept", ["self.optimizer = optimizer", "self.made = {'optimizer': optimizer}", "self.use(optimizer)"]
)
def test_a_module_may_keep_the_optimizer_that_its_trainer_steps(kept: str, tmp_path: Path) -> None:
    text = CONFIGURED.format(returned="optimizer, None", unpacked="self.optimizer, _ = config")
    text = text.replace("        return optimizer, None\n", f"        {kept}\n        return optimizer, None\n")
    after = convert(tmp_path, HEADER + text)
    assert "        self.engine, *_ = deepspeed.initialize(\n            model=module,\n" in after
    assert f"        {kept}\n        return optimizer, None\n" in after


@pytest.mark.parametrize(
    ("test", "norm"),
    [
        ("grad_clip > 0", '"gradient_clipping": grad_clip,'),
        ("grad_clip", '"gradient_clipping": grad_clip or 0.0,'),
        ("len(x) > 2", '"gradient_clipping": 0.0,'),
    ],
)
def test_clipping_under_a_condition_on_its_norm_moves_to_the_config(test: str, norm: str, tmp_path: Path) -> None:
    text = "grad_clip = 1.0\n" + LOOP.replace("    optimizer.step()\n", GUARDED.replace("grad_clip != 0.0", test))
    assert norm in convert(tmp_path, HEADER + text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("p.dim() < 2]", "p.dim() < 1]"),  # leaves some out
        ("p.dim() < 2]", "p.dim() < 2 if decay > 0]"),
        ("        others", "        if decay:\n            decayed = []\n        others"),
        ("groups = [{", "model_groups = decayed if decay else others\n        groups = [{'params': model_groups}, {"),
        ("grad_clip = 1.0\n", "grad_clip = 1.0\n\n\ndef thaw(p):\n    p.requires_grad = True\n\n\n"),
    ],
)
def test_clipping_stays_where_groups_may_leave_parameters_out(old: str, new: str, tmp_path: Path) -> None:
    assert old in FROM_FACTORY
    after = convert(tmp_path, HEADER + FROM_FACTORY.replace("    optimizer.step()\n", GUARDED).replace(old, new))
    assert '"gradient_clipping": 0.0,' in after and '"zero_optimization": {"stage": 0},' in after


def test_a_part_of_which_a_method_of_its_module_makes_the_optimizer_is_named_from_outside(tmp_path: Path) -> None:
    method = "def make(self):\n        return torch.optim.SGD(self.fc.parameters(), lr=0.1)\n\n    def forward"
    text = HEADER.replace("def forward", method)
    of_method = convert(tmp_path, text + LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "model.make()"))
    in_place = convert(tmp_path, text + LOOP.replace("model.parameters()", "model.fc.parameters()"))
    assert of_method == in_place.replace("torch.optim.SGD(model.fc.parameters(), lr=0.1)", "model.make()")


def test_two_optimizers_that_a_method_makes_of_parts_have_engines_of_these(tmp_path: Path) -> None:
    method = """    def make(self):
        generator = list(self.one.parameters())
        return torch.optim.Adam(generator, lr=0.1), torch.optim.Adam(self.two.parameters(), lr=0.2)
"""
    model = "class Pair(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    model += f"        self.one = Net()\n        self.two = Net()\n\n{method}\n\n"
    loop = """model = Pair()
one, two = model.make()
for x, y in DataLoader(data, batch_size=4):
    one.zero_grad()
    F.mse_loss(model.one(x), y).backward()
    one.step()
    two.zero_grad()
    F.mse_loss(model.two(x), y).backward()
    two.step()
"""
    after = convert(tmp_path, HEADER + model + loop)
    assert "model=model.one," in after and "model=model.two," in after


def test_no_empty_line_begins_a_block_whose_first_line_went(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + LOOP.replace("optimizer.zero_grad()\n", "optimizer.zero_grad()\n\n"))
    assert "for x, y in loader:\n    loss = " in after


def test_engines_of_modules_that_may_be_one_clear_no_gradients(tmp_path: Path) -> None:
    function = (
        "def make():\n    net = Net()\n    make.last = net\n    return net\n\n\n"
        "other = make()\nsecond = torch.optim.SGD(other.parameters(), lr=0.1)\n"
    )
    text = function + LOOP.replace("model = Net()", "model = make()")
    text += "    F.mse_loss(other(x), y).backward()\n    second.step()\n    second.zero_grad()\n"
    after = convert(tmp_path, HEADER + text)
    assert after.count(", keep_gradients=True)") == 2 and after.count(".zero_grad()") == 2


def test_an_optimizer_that_is_none_of_torchs_is_for_a_person_to_check(tmp_path: Path) -> None:
    own = "class Own(torch.optim.SGD):\n    def step(self):\n        super().step()\n\n\n"
    report = run(tmp_path, own=HEADER + own + LOOP.replace("torch.optim.SGD(", "Own("))
    (found,) = [finding for _, finding in report.findings(Severity.REVIEW) if finding.code == Code.PLAIN_ENGINE]
    assert found.message.startswith("the optimizer is none of torch's: with several ranks its steps are the same")


def test_an_optimizer_of_torch_is_not_taken_for_one_that_a_branch_makes_for_its_name(tmp_path: Path) -> None:
    own = "class Own(torch.optim.SGD):\n    def step(self):\n        super().step()\n\n\n"
    made = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    other = "optimizer = Own(model.parameters(), lr=0.1)\n"
    report = run(tmp_path, own=HEADER + own + LOOP.replace(made, f"if own:\n    {other}else:\n    {made}"))
    found = [finding for _, finding in report.findings(Severity.REVIEW) if finding.code == Code.PLAIN_ENGINE]
    assert len(found) == 1


@pytest.mark.parametrize(
    "line", ["from transformers import AdamW as Own", "from transformers.optimization import Adafactor as Own"]
)
def test_an_optimizer_of_transformers_is_not_for_review(line: str, tmp_path: Path) -> None:
    report = run(tmp_path, own=f"{line}\n{HEADER}{LOOP.replace('torch.optim.SGD(', 'Own(')}")
    assert not [finding.message for _, finding in report.findings(Severity.REVIEW)]


def test_an_optimizer_that_leaves_its_step_to_torch_is_not_for_review(tmp_path: Path) -> None:
    own = """
def make(params, kind):
    chosen = torch.optim.SGD if kind == "sgd" else torch.optim.Adam

    class Own(chosen):
        def save(self, path):
            torch.save(self.state_dict(), path)

    return Own(params, lr=0.1)


"""
    made = LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "make(model.parameters(), 'sgd')")
    report = run(tmp_path, own=HEADER + own + made)
    assert not [finding for _, finding in report.findings(Severity.REVIEW) if finding.code == Code.PLAIN_ENGINE]


@pytest.mark.parametrize("made", ["schedulefree.AdamWScheduleFree", "torch_optimizer.DiffGrad", "lion_pytorch.Lion"])
def test_an_optimizer_of_another_package_is_known(made: str, tmp_path: Path) -> None:
    package = made.partition(".")[0]
    after = convert(tmp_path, HEADER + f"import {package}\n" + LOOP.replace("torch.optim.SGD", made))
    assert "engine.step()" in after and '"zero_optimization": {"stage": 0},' in after


def test_torchs_own_optimizers_need_no_check(tmp_path: Path) -> None:
    report = run(tmp_path, own=HEADER + LOOP)
    assert not [finding for _, finding in report.findings(Severity.REVIEW) if finding.code == Code.PLAIN_ENGINE]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("loss.backward(torch.ones_like(loss))", "engine.backward((loss * torch.ones_like(loss)).sum())"),
        ("(loss + 1).backward(gradient=-sign)", "engine.backward(((loss + 1) * (-sign)).sum())"),
        ("loss.backward(None)", "engine.backward(loss)"),
    ],
)
def test_a_gradient_that_backward_is_given_goes_into_the_loss(tmp_path: Path, call: str, expected: str) -> None:
    text = convert(tmp_path, HEADER + "sign = torch.tensor(1.0)\n" + LOOP.replace("loss.backward()", call))
    assert f"    {expected}\n" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("inputs=[model.fc.weight]", "inputs"),
        ("create_graph=True", "create_graph"),
        ("None, True", "retain_graph by position"),
        ("retain_variables=True", "retain_variables"),  # of early versions of torch
    ],
)
def test_what_an_engines_backward_does_not_take_is_named(tmp_path: Path, arguments: str, named: str) -> None:
    text = HEADER + LOOP.replace("loss.backward()", f"loss.backward({arguments})")
    assert blocked(tmp_path, text) == [
        ("DSM602", f"backward() is given {named}, which engine.backward() does not take")
    ]


def test_a_method_backward_that_returns_something_is_none_of_torch(tmp_path: Path) -> None:
    script = HEADER + LOOP.replace("    loss.backward()", "    noise = diffusion.backward(x, y)\n    loss.backward()")
    after = convert(tmp_path, script)
    assert "noise = diffusion.backward(x, y)" in after and "engine.backward(loss)" in after


def test_a_script_that_only_passes_a_model_to_a_trainer_starts_the_ranks(tmp_path: Path) -> None:
    trainer = """\
    import torch


    class Trainer:
        def __init__(self, model, loader):
            self.model, self.loader = model, loader
            self.optimizer = model.make()

        def run(self):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = self.model(x).mean()
                loss.backward()
                self.optimizer.step()
    """
    model = (
        HEADER
        + "\n\nclass Model(Net):\n    def make(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n"
    )
    main = """\
    import argparse

    from model import Model
    from trainer import Trainer

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs")
        Trainer(Model(), []).run()
    """
    report = run(tmp_path, model=model, trainer=textwrap.dedent(trainer), main=textwrap.dedent(main))
    after = {file.path.name: file.after.decode() for file in report.files if file.after is not None}
    assert set(after) == {"main.py", "trainer.py"}
    assert 'if __name__ == "__main__":\n    init_distributed()\n' in after["main.py"]
    assert "--local_rank" in after["main.py"]
    assert "            self.engine.step()\n" in after["trainer.py"]


def test_of_a_parser_and_its_parent_one_takes_the_launcher_s_argument(tmp_path: Path) -> None:
    text = HEADER + textwrap.dedent("""
        import argparse

        def get_args_parser():
            parser = argparse.ArgumentParser("Train", add_help=False)
            parser.add_argument("--epochs", default=2, type=int)
            return parser

        def main(args):
            MAKE_MODEL
            for x, y in DataLoader(data, batch_size=4, shuffle=True):
                STEP

        parser = argparse.ArgumentParser(parents=[get_args_parser()])
        main(parser.parse_args())
    """)
    after = convert(tmp_path, text)
    assert after.count("--local_rank") == 1
    assert 'parents=[get_args_parser()])\nparser.add_argument("--local_rank"' in after


def test_gradients_that_are_read_after_step_stay_until_the_program_clears_them(tmp_path: Path) -> None:
    reads = "    print([p.grad.norm().item() for p in model.parameters()])\n"
    text = convert(tmp_path, HEADER + LOOP + reads)
    assert "match_torch(engine, keep_gradients=True)\n" in text
    assert "    optimizer.zero_grad()\n    loss = " in text
    report = migrate(discover([str(tmp_path)]), Options(plain=True, runtime=False))
    assert "DSM604" in [finding.code for _, finding in report.findings(Severity.BLOCKED)]


def test_gradients_that_are_read_before_step_need_nothing(tmp_path: Path) -> None:
    reads = "    norm = model.fc.weight.grad.norm()\n    optimizer.step()\n"
    text = convert(tmp_path, HEADER + LOOP.replace("    optimizer.step()\n", reads))
    assert "match_torch(engine)\n" in text
    assert "zero_grad" not in text


def test_a_name_is_imported_before_a_loader_that_stands_above_later_imports(tmp_path: Path) -> None:
    text = convert(tmp_path, HEADER + LOOP.replace("model = Net()", "import torch.optim as optim\nmodel = Net()"))
    assert text.index("import init_distributed, match_torch, shard\n") < text.index("init_distributed()\n")
    assert text.index("init_distributed()\n") < text.index("shard(DataLoader")


def test_ranks_wait_for_a_model_that_is_saved_whole(tmp_path: Path) -> None:
    text = HEADER + LOOP + 'torch.save(model, "model.pt")\nbest = torch.load("model.pt")\nbest.eval()\n'
    assert 'wait_for_all_ranks()\nbest = torch.load("model.pt")\n' in convert(tmp_path, text)


def test_ranks_start_where_a_library_is_given_the_first_of_pages_that_lead_to_each_other(tmp_path: Path) -> None:
    text = """
    import flet


    class Solver:
        def __init__(self):
            self.model = Net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def train(self):
            for x, y in DataLoader(data, batch_size=4):
                OWN_STEP


    def show(page):
        solver = Solver()
        page.add(lambda event: solver.train(), lambda event: main(page))


    def main(page):
        page.add(lambda event: show(page))


    flet.app(target=main)
    """
    assert "\ninit_distributed()\n" in convert(tmp_path, body(text))


@pytest.mark.parametrize("early", ["import matplotlib\nmatplotlib.use('Agg')\n", "import random\nrandom.seed(3)\n"])
def test_the_ranks_start_behind_imports_that_come_late(tmp_path: Path, early: str) -> None:
    text = convert(tmp_path, early + HEADER + LOOP)
    tree = ast.parse(text)
    imported = max(node.end_lineno or 0 for node in tree.body if isinstance(node, ast.ImportFrom))
    (started,) = (node.lineno for node in tree.body if ast.unparse(node) == "init_distributed()")
    assert imported < started
    assert early in text


@pytest.mark.parametrize("call", ["Bag(9, 4)", "Bag(9, 4, sparse=True)", "Bag(9, 4, False)"])
def test_an_embedding_with_sparse_gradients_by_an_argument_is_refused(tmp_path: Path, call: str) -> None:
    default = "False" if "True" in call else "True"
    bag = f"""
class Bag(nn.Module):
    def __init__(self, size, width, sparse={default}):
        super().__init__()
        self.words = nn.Embedding(size, width, sparse=sparse)


model = {call}
"""
    text = HEADER + LOOP.replace("model = Net()\n", bag)
    if call == "Bag(9, 4, False)":
        assert "deepspeed.initialize" in convert(tmp_path, text)
    else:
        ((code, message),) = blocked(tmp_path, text)
        assert code == Code.PLAIN_GRADIENTS and "sparse gradients" in message


@pytest.mark.parametrize("is_before", [True, False])
def test_a_scaler_of_a_branch_is_the_engines_in_that_branch(tmp_path: Path, is_before: bool) -> None:
    scaler = "if args.amp:\n    scaler = torch.amp.GradScaler()\n"
    scaled = (
        "if args.amp:\n        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()\n"
    )
    plain = "    else:\n        loss.backward()\n        optimizer.step()\n"
    text = HEADER + "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"
    text += LOOP.replace("loss.backward()\n    optimizer.step()\n", scaled + plain)
    text = text.replace("loader = " if is_before else "for x, y", scaler + ("loader = " if is_before else "for x, y"))
    after = convert(tmp_path, text)
    assert "if args.amp:\n" in after and "    use_scaler(engine, scaler)\n" in after


def test_an_option_decides_in_two_functions_whether_a_scaler_is_used(tmp_path: Path) -> None:
    text = body(OPTIONAL_SCALER + "train(model, loader, optimizer, args, scaler)\n")
    text = text.replace("optimizer, scaler=None)", "optimizer, args, scaler)").replace("scaler is not None", "args.amp")
    parsed = "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"
    made = parsed + "scaler = None\nif args.amp:\n    scaler = torch.amp.GradScaler()\n"
    text = text.replace("scaler = torch.amp.GradScaler() if len(data) else None\n", made)
    after = convert(tmp_path, text)
    for scaler in ("scaler", "None"):
        assert f"            use_scaler(engine, {scaler})\n            engine.backward(loss)\n" in after


@pytest.mark.parametrize("written", ["torch.optim.Optimizer", "torch.optim.SGD | None", "torch.optim"])
def test_the_annotation_of_a_parameter_names_the_engine_that_it_takes(written: str, tmp_path: Path) -> None:
    text = f"""
    def train(model, loader, optimizer: {written}) -> None:
        for x, y in loader:
            STEP


    model = Net()
    train(model, DataLoader(data, batch_size=4), torch.optim.SGD(model.parameters(), lr=0.1))
    """
    optional = " | None" if "None" in written else ""
    converted = convert(tmp_path, body(text))
    assert f"def train(model, loader, engine: deepspeed.DeepSpeedEngine{optional}) -> None:" in converted
