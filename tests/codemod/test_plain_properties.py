"""Optimizers behind properties, and steps of what no name shows to be one."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code
from plain_loops import blocked, body, convert

TRAINER = """
    class Trainer:
        def __init__(self):
            self._model = self._optimizer = None

        @property
        def model(self):
            if self._model is None:
                raise ValueError("setup() first")
            return self._model

        @property
        def optimizer(self):
            return self._optimizer

        def setup(self):
            self._model = Net()
            self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def fit(self, loader):
            for x, y in loader:
                loss = F.mse_loss(self.model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()


    trainer = Trainer()
    trainer.setup()
    trainer.fit(DataLoader(data, batch_size=4))
    """
MADE_LATE = """\
            if self._optimizer is None:
                self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            return self._optimizer
"""
UNKNOWN = """
    def fit(model, {name}, loader):
        for x, y in loader:
            {name}.zero_grad()
            F.mse_loss(model(x), y).backward()
            {name}.step()
    """


def test_an_optimizer_behind_a_property_is_the_attribute_that_it_returns(tmp_path: Path) -> None:
    after = convert(tmp_path, body(TRAINER))
    assert "            self.engine.backward(loss)\n            self.engine.step()\n" in after
    assert '"gradient_clipping": 1.0' in after and "zero_grad" not in after
    assert "optimizer=self._optimizer," in after and "return self._optimizer\n" in after


SETTER = """\
        @optimizer.setter
        def optimizer(self, value):
            self._optimizer = value

        def setup(
"""


def test_a_setter_gives_its_property_a_value(tmp_path: Path) -> None:
    text = TRAINER.replace("        def setup(", SETTER.rstrip())
    after = convert(tmp_path, body(text.replace("self._optimizer = torch", "self.optimizer = torch")))
    assert "self.engine.step()" in after and "optimizer=self.optimizer," in after


def test_an_optimizer_that_a_property_makes_is_refused(tmp_path: Path) -> None:
    making = "            self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)\n"
    text = TRAINER.replace(making, "").replace("            return self._optimizer\n", MADE_LATE)
    ((code, message),) = blocked(tmp_path, body(text))
    assert code == Code.PLAIN_ENGINE and message.endswith(
        "made in a property, which may run after the first backward()"
    )


@pytest.mark.parametrize("name", ["optimizer", "o", "solver"])
def test_a_step_of_what_is_cleared_is_that_of_an_optimizer_whatever_its_name(name: str, tmp_path: Path) -> None:
    ((code, message),) = blocked(tmp_path, body(UNKNOWN.format(name=name)))
    assert code == Code.PLAIN_UNTRACED
    assert message.endswith(
        f"from outside of these files: it is the argument {name} of fit(), which no call in them gives"
    )


def test_a_step_by_a_scaler_that_is_not_known_is_refused(tmp_path: Path) -> None:
    text = """
        def fit(model, scaler, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.mse_loss(model(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
        """
    assert (Code.PLAIN_PRECISION, "cannot determine which GradScaler this is") in blocked(tmp_path, body(text))
    given = text.replace("step(optimizer)", "step(the_optimizer)").replace("(model, ", "(model, the_optimizer, ")
    assert any(
        "the optimizer of the_optimizer.step() comes from outside" in why for _, why in blocked(tmp_path, body(given))
    )


def test_a_step_of_an_object_of_the_program_is_followed_into_its_method(tmp_path: Path) -> None:
    text = """
        class Both:
            def __init__(self, optimizer):
                self.optimizer = optimizer

            def zero_grad(self):
                self.optimizer.zero_grad()

            def step(self):
                self.optimizer.step()


        model = Net()
        optimizer = Both(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in DataLoader(data, batch_size=4):
            STEP
        """
    assert "deepspeed.initialize(" in convert(tmp_path, body(text))
