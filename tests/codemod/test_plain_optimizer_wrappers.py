"""Plain training loops that step a wrapper of the optimizer, which steps the optimizer in a method."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, blocked, body, convert, run

WRAPPER = """
    class Noam:
        def __init__(self, optimizer, warmup):
            self.optimizer = optimizer
            self.warmup = warmup
            self.count = 0

        def step(self):
            self.count += 1
            for group in self.optimizer.param_groups:
                group["lr"] = min(self.count ** -0.5, self.count * self.warmup ** -1.5)
            self.optimizer.step()

        def zero_grad(self):
            self.optimizer.zero_grad()
    """
LOOP = """
    model = Net()
    noam = Noam(torch.optim.Adam(model.parameters(), lr=0), warmup=10)
    for x, y in DataLoader(data, batch_size=4):
        noam.zero_grad()
        F.mse_loss(model(x), y).backward()
        noam.step()
    """


def test_a_wrapper_takes_the_engine_of_an_optimizer_that_is_its_argument(tmp_path: Path) -> None:
    after = convert(tmp_path, body(WRAPPER) + body(LOOP).removeprefix(HEADER))
    assert "torch.optim.Adam(model.parameters(), lr=0)\nengine, *_ = deepspeed.initialize(" in after
    assert "noam = Noam(engine, warmup=10)" in after
    assert "        self.optimizer = engine.optimizer\n        self.engine = engine\n" in after
    assert "        self.engine.step()\n" in after
    assert "    noam.zero_grad()\n    noam.engine.backward(F.mse_loss(model(x), y), scale_wrt_gas=False)\n" in after
    assert "shard(DataLoader(data, batch_size=4))" in after


def test_a_clipping_before_the_step_of_a_wrapper_moves_to_the_config(tmp_path: Path) -> None:
    clipping = "    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    noam.step()"
    after = convert(tmp_path, body(WRAPPER) + body(LOOP).removeprefix(HEADER).replace("    noam.step()", clipping))
    assert '"gradient_clipping": 0.5,' in after and "clip_grad_norm_" not in after


def test_a_clipping_before_some_of_the_steps_of_a_wrapper_acts_on_averages(tmp_path: Path) -> None:
    loop = body(LOOP).removeprefix(HEADER)
    clipped = loop.replace("    noam.step()", "    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    noam.step()")
    unclipped = loop[loop.index("for x") :]
    after = convert(tmp_path, body(WRAPPER) + clipped + unclipped)
    assert "    noam.engine.allreduce_gradients()\n    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n" in after
    assert after.count("allreduce_gradients") == 1 and '"gradient_clipping": 0.0' in after


def test_a_wrapper_that_may_be_none_is_not_asked_for_its_engine(tmp_path: Path) -> None:
    compute = """
    class Compute:
        def __init__(self, model, noam=None):
            self.model = model
            self.noam = noam

        def __call__(self, x, y):
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            if self.noam is not None:
                self.noam.step()
                self.noam.optimizer.zero_grad()


    model = Net()
    noam = Noam(torch.optim.Adam(model.parameters(), lr=0), warmup=10)
    train, test = Compute(model, noam), Compute(model)
    for x, y in DataLoader(data, batch_size=4):
        train(x, y)
        test(x, y)
    """
    after = convert(tmp_path, body(WRAPPER) + body(compute).removeprefix(HEADER))
    assert "        engine.backward(loss, scale_wrt_gas=False)\n" in after


def test_a_wrapper_in_another_file_than_the_backward_pass_belongs_to_the_loop(tmp_path: Path) -> None:
    wrapper = "class Noam:" + body(WRAPPER).partition("class Noam:")[2]
    report = run(tmp_path, noam=wrapper, train=f"from noam import Noam\n{body(LOOP)}")
    assert {result.path.name for result in report.files if result.after} == {"noam.py", "train.py"}


LOOKAHEAD = """
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer
            self.param_groups, self.state = optimizer.param_groups, optimizer.state

        def step(self, closure=None):
            loss = self.optimizer.step(closure)
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.mul_(0.5)
            return loss

        def zero_grad(self):
            self.optimizer.zero_grad()


    model = Net()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """


def test_an_optimizer_that_keeps_another_one_steps_it_itself(tmp_path: Path) -> None:
    after = convert(tmp_path, body(LOOKAHEAD))
    assert "optimizer=optimizer," in after and "    engine.step()\n" in after
    assert "loss = self.optimizer.step(closure)" in after and "self.optimizer.zero_grad()" in after


def test_what_a_function_returns_for_a_wrapper_has_its_engine_before_it(tmp_path: Path) -> None:
    """As OpenNMT's Optimizer.from_opt(): the function makes one of several optimizers."""
    build = """
        def build(model, kind):
            if kind == "sgd":
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            elif kind == "adam":
                optimizer = torch.optim.Adam(model.parameters())
            else:
                raise ValueError(kind)
            return optimizer
        """
    from_kind = """
        def noam_of(cls, model, kind):
            noam = cls(
                build(model, kind),
                warmup=10,
            )
            return noam
        """
    loop = (
        body(LOOP)
        .removeprefix(HEADER)
        .replace("Noam(torch.optim.Adam(model.parameters(), lr=0), warmup=10)", "noam_of(Noam, model, 'sgd')")
    )
    parts = [body(part).removeprefix(HEADER) for part in (WRAPPER, build, from_kind)]
    after = convert(tmp_path, HEADER + "".join(parts) + loop)
    made = "    made_optimizer = build(model, kind)\n    engine, *_ = deepspeed.initialize(\n        model=model,\n"
    assert made in after and after.count("deepspeed.initialize(") == 1
    assert "    noam = cls(\n        engine,\n        warmup=10,\n    )\n" in after
    assert "        self.engine.step()\n" in after


def test_an_optimizer_that_keeps_what_a_function_returns_steps_it_itself(tmp_path: Path) -> None:
    inner = "def inner(model):\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n\n\nmodel = Net()\n"
    text = body(LOOKAHEAD).replace("torch.optim.SGD(model.parameters(), lr=0.1)", "inner(model)")
    after = convert(tmp_path, text.replace("model = Net()\n", inner))
    assert "optimizer=optimizer," in after and "    engine.step()\n" in after and "made_optimizer" not in after


def test_a_call_that_returns_one_of_several_optimizers_is_refused_once(tmp_path: Path) -> None:
    build = """
        def build(model, kind):
            if kind == "sgd":
                return torch.optim.SGD(model.parameters(), lr=0.1)
            return torch.optim.Adam(model.parameters())


        model = Net()
        noam = [Noam(build(model, kind), warmup=10) for kind in ["sgd"]][0]
        """
    loop = body(LOOP).removeprefix(HEADER)
    parts = [body(part).removeprefix(HEADER) for part in (WRAPPER, build)]
    found = blocked(tmp_path, HEADER + "".join(parts) + loop[loop.index("for x") :])
    assert len(found) == len(set(found))


GIVEN_PARAMETERS = """
    import math


    class Optim:
        def __init__(self, params, lr):
            self.params = list(params)
            self.lr = lr
            self.renew()

        def renew(self):
            self.optimizer = torch.optim.SGD(self.params, lr=self.lr)

        def step(self):
            CLIP
            self.optimizer.step()


    def main():
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        WRAP
        optim = Optim(model.parameters(), 0.1)
        for x, y in DataLoader(data, batch_size=4):
            model.zero_grad()
            F.mse_loss(model(x), y).backward()
            optim.step()


    main()
    """
BY_HAND = """norm = 0
        for param in self.params:
            norm += math.pow(param.grad.data.norm(), 2)
        shrinkage = 1.0 / math.sqrt(norm)
        for param in self.params:
            if shrinkage < 1:
                param.grad.data.mul_(shrinkage)"""


@pytest.mark.parametrize("clip", ["nn.utils.clip_grad_norm_(self.params, 1.0)", BY_HAND])
def test_a_class_that_is_given_parameters_clips_averages_and_steps_their_engine(clip: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(GIVEN_PARAMETERS).replace("CLIP", clip).replace("    WRAP\n", ""))
    assert "            model=EngineModule(self.optimizer),\n" in after
    reads = "for param in self.params:" if clip is BY_HAND else clip
    assert f"        self.engine.allreduce_gradients()\n        {reads}\n" in after
    assert "        self.engine.step()\n" in after and "        optim.engine.backward(" in after


def test_buffers_of_a_model_whose_parameters_a_class_is_given_are_not_left_to_each_rank(tmp_path: Path) -> None:
    text = body(GIVEN_PARAMETERS).replace("CLIP", "pass")
    wrap = "torch.distributed.init_process_group('gloo')\n    model = nn.parallel.DistributedDataParallel(model)"
    report = run(tmp_path, train=text.replace("WRAP", wrap))
    message = (
        "the module of the optimizer has no name where the optimizer is bound, and its buffers are those of rank 0"
    )
    assert any(finding.message.startswith(message) for _, finding in report.findings(Severity.BLOCKED))


CLIPS_IN_WRAPPER = """
    class Optim:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(self):
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
            self.optimizer.step()


    model = Net()
    optim = Optim(model)
    for x, y in DataLoader(data, batch_size=4):
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        optim.step()
    """


def test_a_clipping_in_the_step_of_a_wrapper_moves_to_the_config(tmp_path: Path) -> None:
    after = convert(tmp_path, body(CLIPS_IN_WRAPPER))
    assert '"gradient_clipping": 2.0' in after and "clip_grad_norm_" not in after


@pytest.mark.parametrize(
    ("parameters", "arguments"), [("*args, **kwargs", "*args, **kwargs"), ("closure=None", "closure"), ("", "None")]
)
def test_a_wrapper_hands_on_what_nobody_gives_to_its_step(parameters: str, arguments: str, tmp_path: Path) -> None:
    wrapper = WRAPPER.replace("step(self)", f"step(self, {parameters})")
    wrapper = wrapper.replace("self.optimizer.step()", f"return self.optimizer.step({arguments})")
    assert "        return self.engine.step()\n" in convert(tmp_path, body(wrapper) + body(LOOP).removeprefix(HEADER))


def test_a_wrapper_that_hands_on_a_closure_is_refused(tmp_path: Path) -> None:
    wrapper = WRAPPER.replace("step(self)", "step(self, closure=None)").replace("mizer.step()", "mizer.step(closure)")
    loop = LOOP.replace("noam.step()", "noam.step(lambda: F.mse_loss(model(x), y))")
    codes = [code for code, _ in blocked(tmp_path, body(wrapper) + body(loop).removeprefix(HEADER))]
    assert Code.PLAIN_CLOSURE in codes


SCAFFOLD = """
    class Scaffold(torch.optim.Optimizer):
        def step(self, server, client):
            for group in self.param_groups:
                for p, c, d in zip(group["params"], server, client):
                    p.data.add_(p.grad + c - d, alpha=-0.1)


    model = Net()
    optimizer = Scaffold(model.parameters(), {})
    controls = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step(controls, controls)
    """


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("controls, controls", "which engine.step() does not take"),
        ("closure", "and no function of this program is known as that"),
    ],
)
def test_what_a_step_is_given_is_named(given: str, reason: str, tmp_path: Path) -> None:
    ((code, message),) = blocked(tmp_path, body(SCAFFOLD).replace("(controls, controls)", f"({given})"))
    assert code == Code.PLAIN_CLOSURE and message == f"step() is given {given}, {reason}"
