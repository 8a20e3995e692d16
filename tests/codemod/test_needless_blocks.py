"""What looks like an obstacle and is none: the trial converts, and a review names what a person should know."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Severity
from idiom_case import Idiom

TRAIN = """\
    def train_batch(self, batch, epoch_idx, batch_idx):
        inputs, targets = batch
        loss = self.criterion(self.model(inputs), targets)
        self.context.backward(loss{arguments})
        self.context.step_optimizer(self.optimizer)
        return {{"loss": loss}}
"""
TWO = """\
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.g = context.wrap_model(Net())
        self.model = context.wrap_model(Net())
        self.og = context.wrap_optimizer(torch.optim.SGD(self.g.parameters(), lr=0.1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.criterion = nn.MSELoss()
        {apex}
"""
LISTS = "context.configure_apex_amp(models=[self.g, self.model], optimizers=[self.og, self.optimizer])"
WITH_INIT = """\
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.optimizer = self.context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.1))
        self.criterion = {criterion}
"""
LOSSES = (
    "self.context.wrap_loss(nn.MSELoss())",
    "context.wrap_loss(x) if hasattr(context, 'wrap_loss') else nn.MSELoss()",
)
IDIOMS = {
    "a flag that may ask for the graph of the gradients": Idiom(
        TRAIN.format(arguments=", create_graph=self.second_order"),
        has=("if self.second_order:",
             'raise NotImplementedError("an engine\'s backward cannot create a graph of the gradients")',
             "self.model.backward(loss)"),
        review=("DSM301",),
    ),
    "a flag that does not": Idiom(
        TRAIN.format(arguments=", create_graph=False"), has=("self.model.backward(loss)",), lacks=("raise",)
    ),
    "a literal that does": Idiom(
        TRAIN.format(arguments=", create_graph=True"), blocked=("DSM301", "create_graph=True")
    ),
    "apex over lists that are unpacked later": Idiom(
        TWO.format(apex=f"models, optimizers = {LISTS}\n        self.g, self.model = models\n"
                        "        self.og, self.optimizer = optimizers"),
        has=("models, optimizers = [self.g, self.model], [self.og, self.optimizer]", "self.g, self.model = models",
             "self.og, self.optimizer = optimizers",
             'autocast_forward(self.g, enabled=context.device.type == "cuda")'),
        review=("DSM340",),
    ),
    "apex over lists that are taken apart by index": Idiom(
        TWO.format(apex=f"models, optimizers = {LISTS}\n        self.g = models[0]\n        self.model = models[1]"),
        has=("models, optimizers = [self.g, self.model], [self.og, self.optimizer]", "self.model = models[1]"),
        review=("DSM340",),
    ),
    "a name that no context has": Idiom(
        WITH_INIT.format(criterion=LOSSES[0]), has=(f"self.criterion = {LOSSES[0]}",)
    ),
    "a test for a name that no context has": Idiom(
        WITH_INIT.format(criterion=LOSSES[1]), has=(f"self.criterion = {LOSSES[1]}",)
    ),
    "a test for a name that the context loses": Idiom(
        WITH_INIT.format(criterion="nn.MSELoss() if hasattr(context, 'wrap_scaler') else 1"),
        has=("self.criterion = nn.MSELoss()",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IDIOMS)
def test_it_converts(name: str, tmp_path: Path) -> None:
    idiom = IDIOMS[name]
    replace(idiom, source=textwrap.dedent(idiom.source)).check(tmp_path)


STAND_IN = """\


class FakeContext:
    def wrap_model(self, model):
        return model

    def wrap_optimizer(self, optimizer):
        return optimizer

    def backward(self, loss):
        loss.backward()

    def step_optimizer(self, optimizer):
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    {made}
    trial.train_batch(batch, 0, 0)
"""
PATCHED = """\


def test_it():
    context = Mock()
    context.wrap_model = lambda model: model
    trial = MyTrial(context)
    trial.train_batch(batch, 0, 0)
"""


@pytest.mark.parametrize("text", [
    STAND_IN.format(made="trial = MyTrial(FakeContext())"),
    STAND_IN.format(made="context = FakeContext()\n    trial = MyTrial(context)"),
    PATCHED,
], ids=["at once", "by name", "patched"])  # fmt: skip
def test_a_stand_in_for_the_context_stays_and_the_place_that_uses_it_is_marked(text: str, tmp_path: Path) -> None:
    trial = examples.module().replace("lr=0.1)", "lr=0.1, momentum=0.9)")
    result = examples.convert(tmp_path, trial + text)
    assert examples.problems(result) == []
    after = (result.after or b"").decode()
    kept = text[: text.index("trial = MyTrial") - 4].rstrip()
    assert kept in after
    assert "trial.train_batch(iter([batch]), 0, 0)" in after
    [found] = [f for f in result.findings if f.severity is Severity.REVIEW]
    assert found.code == "DSM390" and "which has no engines" in found.message
    assert "TODO(ds-migrate DSM390)" in after
    assert "ZeRO stage 1" in next(f.message for f in result.findings if f.code == "DSM205")
