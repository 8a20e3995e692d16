"""Plain training loops whose optimizer steps itself: with a closure, or in several phases."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, blocked, body, convert

SAM = """
    class SAM(torch.optim.Optimizer):
        def __init__(self, params, base, rho=0.05, **kwargs):
            super().__init__(params, dict(rho=rho, **kwargs))
            self.base = base(self.param_groups, **kwargs)
            self.param_groups = self.base.param_groups

        @torch.no_grad()
        def first_step(self, zero_grad=False):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self.state[p]["e_w"] = p.grad * group["rho"]
                        p.add_(self.state[p]["e_w"])
            if zero_grad:
                self.zero_grad()

        @torch.no_grad()
        def second_step(self, zero_grad=False):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.sub_(self.state[p]["e_w"])
            self.base.step()
            if zero_grad:
                self.zero_grad()

        def step(self, closure=None):
            self.first_step(zero_grad=True)
            torch.enable_grad()(closure)()
            self.second_step()


    def train(model, optimizer, loader):
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.first_step(zero_grad=True)
            F.mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.second_step(zero_grad=True)


    model = Net()
    train(model, SAM(model.parameters(), torch.optim.SGD, lr=0.1), DataLoader(data, batch_size=4))
    """
CLOSURE = """
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(loss.item())
    """


def test_both_phases_of_sam_use_averaged_gradients(tmp_path: Path) -> None:
    after = convert(tmp_path, body(SAM))
    assert "engine.allreduce_gradients()\n        engine.optimizer.first_step(zero_grad=True)" in after
    second = """\
        engine.allreduce_gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        engine.optimizer.second_step(zero_grad=True)
"""
    assert second in after and after.count("allreduce_gradients()") == 2
    assert "self.first_step(zero_grad=True)\n" in after and '"stage": 0' in after and "engine.step()" not in after


def test_an_optimizer_that_is_given_a_closure_steps_with_it(tmp_path: Path) -> None:
    after = convert(tmp_path, body(CLOSURE))
    assert "    loss = step_with(engine, closure)\n" in after
    assert "        optimizer.zero_grad()\n" in after and '"stage": 0' in after


def test_an_engine_that_no_name_leads_to_steps_with_a_closure(tmp_path: Path) -> None:
    several = CLOSURE.replace("optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)", "optimizers = {}").replace(
        "    for x, y", '    optimizers["a"] = torch.optim.LBFGS(model.parameters())\n    for x, y'
    )
    several = several.replace("optimizer.", 'optimizers["a"].')
    assert "step_with(" in convert(tmp_path, body(several))


def test_a_step_without_a_closure_is_lbfgs_s_to_refuse(tmp_path: Path) -> None:
    chosen = """
        model = Net()
        optimizer = getattr(torch.optim, "SGD" if len(data) else "LBFGS")(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            STEP
        """
    assert "engine.step()" in convert(tmp_path, body(chosen))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("        for x, y in loader:\n", "        with model.no_sync():\n            pass\n", "under no_sync()"),
        ("F.mse_loss(model(x), y).backward()", "scaler.scale(F.mse_loss(model(x), y)).backward()", "a GradScaler"),
    ],
)
def test_phases_that_an_engine_cannot_average_for_are_refused(old: str, new: str, reason: str, tmp_path: Path) -> None:
    text = body(SAM.replace(old, new if "scaler" in new else new + old))
    text = text.replace("class SAM", "scaler = torch.amp.GradScaler()\n\n\nclass SAM", 1) if "scaler" in new else text
    found = [message for code, message in blocked(tmp_path, text) if code == Code.PLAIN_CLOSURE]
    assert found and all(reason in message for message in found)


def test_ranks_that_decide_by_their_own_loss_are_refused(tmp_path: Path) -> None:
    text = body(CLOSURE).replace("model = Net()", 'torch.distributed.init_process_group("gloo")\nmodel = Net()')
    ((code, message),) = blocked(tmp_path, text)
    assert code == Code.PLAIN_CLOSURE and "decides on each rank by the loss of its share" in message
    assert text.startswith(HEADER)


def test_an_optimizer_clips_although_another_steps_the_same_module_later(tmp_path: Path) -> None:
    first = """
    first = torch.optim.Adam(model.parameters())
    for x, y in DataLoader(data, batch_size=4):
        first.zero_grad()
        F.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        first.step()
    optimizer ="""
    after = convert(tmp_path, body(CLOSURE.replace("\n    optimizer =", first)))
    assert "first_engine.allreduce_gradients()\n    torch.nn.utils.clip_grad_norm_(" in after
    assert "step_with(engine, closure)" in after


def test_all_engines_of_parts_average_before_the_whole_module_is_clipped(tmp_path: Path) -> None:
    text = """
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.decoder(self.encoder(x))

    model = Pair()
    first = torch.optim.SGD(model.encoder.parameters(), lr=0.1)
    second = torch.optim.SGD(model.decoder.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        first.zero_grad()
        second.zero_grad()
        F.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        first.step()
        second.step()
    """
    after = convert(tmp_path, body(text))
    assert "    encoder_engine.allreduce_gradients()\n    decoder_engine.allreduce_gradients()\n    torch.nn" in after
