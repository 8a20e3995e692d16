"""Plain training loops whose GradScaler is kept by an object, as in the NativeScaler of MAE, Swin and ConvNeXt."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.options import Options
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, body, convert, run

NATIVE_SCALER = """
import torch


class NativeScaler:
    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, update_grad=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if update_grad:
            if clip_grad is not None:
                assert parameters is not None
                self._scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            else:
                self._scaler.unscale_(optimizer)
                norm = grad_norm(parameters)
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            norm = None
        return norm

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict):
        self._scaler.load_state_dict(state_dict)


def grad_norm(parameters):
    return torch.norm(torch.stack([torch.norm(p.grad.detach()) for p in parameters if p.grad is not None]))
"""
ENGINE = """
def train_one_epoch(model, loader, optimizer, epoch, loss_scaler, max_norm=None, accum_iter=2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = F.mse_loss(model(x), y) / accum_iter
        norm = loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters(), create_graph=False,
                           update_grad=(i + 1) % accum_iter == 0)
        if (i + 1) % accum_iter == 0:
            optimizer.zero_grad()
"""
MAIN = """
from loop import train_one_epoch
from util import NativeScaler


def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loss_scaler = NativeScaler()
    for epoch in range(2):
        train_one_epoch(model, DataLoader(data, batch_size=4), optimizer, epoch, loss_scaler)


main()
"""
BRANCH = """\
        if amp:
            norm = loss_scaler(loss, optimizer, parameters=model.parameters())
        else:
            loss.backward()
            optimizer.step()
"""
STEPPED = """\
        if update_grad:
            engine.allreduce_gradients()
            if clip_grad is not None:
                assert parameters is not None
                self._scaler.unscale_(engine.optimizer)
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            else:
                self._scaler.unscale_(engine.optimizer)
                norm = grad_norm(parameters)
            engine.step()
        else:
"""


def converted(folder: Path, **files: str) -> dict[str, str]:
    """Return the conversion of modules by name."""
    report = run(folder, **files)
    assert all(file.after is not None for file in report.files), [f.message for _, f in report.findings()]
    return {file.path.stem: file.after.decode() for file in report.files if file.after is not None}


def test_an_object_that_keeps_the_scaler_keeps_its_form(tmp_path: Path) -> None:
    after = converted(tmp_path, util=NATIVE_SCALER, loop=HEADER + ENGINE, main=HEADER + MAIN)
    assert STEPPED in after["util"] and "        engine.backward(loss, scale_wrt_gas=False)\n" in after["util"]
    assert "    loss_scaler = NativeScaler()\n    use_scaler(engine, loss_scaler._scaler)\n" in after["main"]
    assert "loss_scaler(loss, engine, clip_grad=max_norm" in after["loop"]
    report = run(tmp_path, util=NATIVE_SCALER, loop=HEADER + ENGINE, main=HEADER + MAIN)
    assert "DSM604" not in [finding.code for _, finding in report.findings()]  # gradients do not add up over steps


def test_a_branch_without_the_scaler_takes_it_from_the_engine(tmp_path: Path) -> None:
    engine = ENGINE[: ENGINE.index("        norm = ")].replace("loss_scaler,", "loss_scaler, amp=False,") + BRANCH
    after = converted(tmp_path, util=NATIVE_SCALER, loop=HEADER + engine, main=HEADER + MAIN)
    assert "        use_scaler(engine, self._scaler)\n        engine.backward(" in after["util"]
    assert "            use_scaler(engine, None)\n            engine.backward(" in after["loop"]
    assert "use_scaler" not in after["main"]


ASKED = """\
        is_second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
        norm = """


@pytest.mark.parametrize(
    ("maker", "is_known"),
    [("torch.optim.AdamW", True), ("timm.optim.Lookahead", True), ("timm.optim.Adahessian", False)],
)
def test_a_graph_of_gradients_is_off_for_optimizers_of_first_order(maker: str, is_known: bool, tmp_path: Path) -> None:
    engine = ENGINE.replace("        norm = ", ASKED).replace("create_graph=False", "create_graph=is_second_order")
    main = "import timm.optim\n" + HEADER + MAIN.replace("torch.optim.AdamW", maker)
    util = converted(tmp_path, util=NATIVE_SCALER, loop=HEADER + engine, main=main)["util"]
    raised = '        if create_graph:\n            raise NotImplementedError("an engine has no create_graph: '
    assert (raised in util) is not is_known and "        engine.backward(loss, scale_wrt_gas=False)\n" in util
    assert "create_graph=create_graph" not in util


def test_a_graph_of_gradients_that_is_asked_for_otherwise_is_refused(tmp_path: Path) -> None:
    engine = ENGINE.replace("create_graph=False", "create_graph=accum_iter > 2")
    report = run(tmp_path, util=NATIVE_SCALER, loop=HEADER + engine, main=HEADER + MAIN)
    assert not any(file.to_write for file in report.files)
    assert "DSM602" in [finding.code for _, finding in report.findings()]


FACTORY = """
    from timm.optim import Lookahead


    def groups(model, decay):
        found = {}
        for name, param in model.named_parameters():
            if not param.requires_grad:
                continue
            group = found.setdefault("bias" if param.ndim == 1 else "weight", {"params": [], "lr_scale": 1.0})
            group["params"].append(param)
        return list(found.values())


    def create_optimizer(opt, model, is_filtered=True):
        if is_filtered:
            parameters = groups(model, 0.1)
        else:
            parameters = model.parameters()
        name = opt.split("_")[-1]
        if name == "sgd":
            optimizer = torch.optim.SGD(parameters, lr=0.1)
        elif name == "adamw":
            optimizer = torch.optim.AdamW(parameters, lr=0.1)
        else:
            raise ValueError(opt)
        if len(opt.split("_")) > 1:
            optimizer = Lookahead(optimizer)
        return optimizer


    model = Net()
    optimizer = create_optimizer("adamw", model)
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """


def test_an_optimizer_that_wraps_another_one_in_a_factory_holds_its_parameters(tmp_path: Path) -> None:
    after = convert(tmp_path, body(FACTORY))
    assert 'optimizer = create_optimizer("adamw", model)\nengine, *_ = deepspeed.initialize(\n    model=model,' in after


LEARNER = """
    class Learner:
        def __init__(self, model, loader, optimizer, **kwargs):
            self.model, self.loader = model, loader
            self.optimizer = optimizer
            self.scaler = torch.cuda.amp.GradScaler(enabled=kwargs.get("fp16", False))

        def train(self):
            for x, y in self.loader:
                for param in self.model.parameters():
                    param.grad = None
                loss = F.mse_loss(self.model(x), y)
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(self.optimizer)
                self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1e9)
                self.scaler.step(self.optimizer)
                self.scaler.update()


    def main(model):
        opt = torch.optim.Adam(model.parameters(), lr=0.1)
        learner = Learner(model, DataLoader(data, batch_size=4), opt, fp16=True)
        learner.train()


    main(Net())
    """


def test_a_learner_that_is_given_the_optimizer_hands_over_its_scaler(tmp_path: Path) -> None:
    after = convert(tmp_path, body(LEARNER))
    assert "opt, fp16=True)" not in after and "    use_scaler(engine, learner.scaler)\n" in after
    assert "            self.scaler.unscale_(self.optimizer)\n            self.norm = " in after
    assert "keep_gradients" not in after and "allreduce_gradients" not in after


def test_a_scaler_that_no_name_leads_to_is_given_where_it_scales(tmp_path: Path) -> None:
    after = convert(
        tmp_path, body(LEARNER).replace("    learner = ", "    return ").replace("    learner.train()\n", "")
    )
    assert "            use_scaler(self.engine, self.scaler)\n            self.engine.backward(loss)\n" in after
    called = body(LEARNER).replace("self.scaler = torch", "self.scaler = self.other = torch")
    called = called.replace("    def train(", "    def held(self):\n        return self.scaler\n\n    def train(")
    ((code, message),) = blocked(tmp_path, called.replace("self.scaler.scale(", "self.held().scale("))
    assert code == Code.PLAIN_PRECISION and "no name leads to it" in message


HELPER = "import torch\n\n\ndef clip(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
HANDLED = """\
        try:
            F.mse_loss(model(x), y).backward()
        except RuntimeError:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.detach()
"""
ACCUMULATION = """
    loader = DataLoader(data, batch_size=4)
    MAKE_MODEL
    for i, (x, y) in enumerate(loader):
        F.mse_loss(model(x), y).backward()
        if i % 2:
            LINE
            optimizer.step()
            optimizer.zero_grad()
    """


@pytest.mark.parametrize(
    "line",
    [
        "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "clip(model)",
        "print(sum(p.grad.norm() for p in model.parameters()))",
        "for p in model.parameters():\n                p.grad.mul_(0.5)",
    ],
)
def test_gradients_are_averaged_before_they_are_used_between_several_backward_passes(line: str, tmp_path: Path) -> None:
    text = "from helper import clip\n" + body(ACCUMULATION.replace("LINE", line))
    report = run(tmp_path, helper=HELPER, train=text)
    after = "".join(file.after.decode() for file in report.files if file.to_write and file.after is not None)
    before = "        engine.allreduce_gradients()\n        "
    assert before + line.partition("\n")[0] in after or before + "if is_main_rank():\n            print(" in after
    assert after.count("allreduce_gradients") == 1
    options = Options(plain=True, runtime=False)
    assert not any(file.to_write for file in run(tmp_path, options, helper=HELPER, train=text).files)


def test_gradients_that_a_handler_of_exceptions_drops_are_not_averaged_there(tmp_path: Path) -> None:
    loop = ACCUMULATION.replace("            LINE\n", "").replace(
        "        F.mse_loss(model(x), y).backward()\n", HANDLED
    )
    after = convert(tmp_path, body(loop))
    assert "allreduce_gradients" not in after and "                p.grad.detach()\n    if i % 2:\n" in after


def test_a_helper_that_clips_is_seen_in_another_file(tmp_path: Path) -> None:
    loop = LOOP.replace("    optimizer.step()", "    clip(model)\n    optimizer.step()")
    report = run(tmp_path, helper=HELPER, train="from helper import clip\n" + HEADER + loop)
    after = "".join(file.after.decode() for file in report.files if file.to_write and file.after is not None)
    assert '"zero_optimization": {"stage": 0}' in after and '"gradient_clipping": 0.0' in after


def test_gradients_of_loops_that_share_a_scaler_class_are_those_of_each_optimizer(tmp_path: Path) -> None:
    files = {"util": NATIVE_SCALER, "loop": HEADER + ENGINE, "other_loop": HEADER + ENGINE}
    report = run(tmp_path, **files, train=HEADER + MAIN, tune=HEADER + MAIN.replace("from loop", "from other_loop"))
    assert Code.PLAIN_ZERO_GRAD not in {finding.code for _, finding in report.findings(Severity.REVIEW)}
    after = {file.path.stem: file.after or b"" for file in report.files}
    assert all(b"engine.optimizer.zero_grad()" in after[name] for name in ("loop", "other_loop"))
