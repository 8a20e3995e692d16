"""Plain training loops whose optimizers are attributes that are set by their names as texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import blocked, body, convert

TRAINER = """
    class Trainer:
        def __init__(self, model, **kwargs):
            self.model = model
            {keep}

        def train(self):
            for x, y in DataLoader(data, batch_size=4):
                OWN_STEP


    model = Net()
    Trainer(model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1), epochs=3).train()
    """


@pytest.mark.parametrize(
    "keep",
    [
        "self.__dict__.update(kwargs)",
        "vars(self).update(kwargs)",
        "self.__dict__.update(optimizer=kwargs['optimizer'])",
        "setattr(self, 'optimizer', kwargs['optimizer'])",
        "for name, value in kwargs.items():\n                setattr(self, name, value)",
    ],
)
def test_attributes_that_are_set_by_their_names_are_followed(keep: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(TRAINER.format(keep=keep)))
    assert "adam_optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n" in after
    assert "Trainer(model, optimizer=adam_optimizer, epochs=3).train()\n" in after
    assert "engine_of(self.optimizer).step()\n" in after


CURVE = """
    class Curve(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.register_parameter("weight", nn.Parameter(weight))

        def forward(self, x):
            return x @ self.weight

        def fit(self):
            optimizer = torch.optim.SGD([self.weight], lr=0.1)
            for x, y in DataLoader(data, batch_size=4):
                optimizer.zero_grad()
                loss = F.mse_loss(self(x), y)
                loss.backward()
                optimizer.step()


    Curve(torch.ones(4, 1)).fit()
    """


def test_a_parameter_that_a_module_registers_by_its_name_belongs_to_the_module(tmp_path: Path) -> None:
    assert "model=self," in convert(tmp_path, body(CURVE))


ENSEMBLE = """
    class Ensemble:
        def __init__(self, n):
            self.n = n
            for i in range(n):
                setattr(self, f"model_{i}", Net())
                setattr(self, f"optimizer_{i}", torch.optim.Adam(getattr(self, f"model_{i}").parameters(), lr=0.1))

        def train(self):
            for x, y in DataLoader(data, batch_size=4):
                for i in range(self.n):
                    optimizer = getattr(self, f"optimizer_{i}")
                    optimizer.zero_grad()
                    F.mse_loss(getattr(self, f"model_{i}")(x), y).backward()
                    optimizer.step()


    Ensemble(3).train()
    """


def test_each_of_several_optimizers_with_a_number_in_its_name_has_an_engine(tmp_path: Path) -> None:
    after = convert(tmp_path, body(ENSEMBLE))
    assert '            model=getattr(self, f"model_{i}"),\n' in after
    assert 'setattr(self, f"optimizer_{i}", adam_optimizer)\n' in after
    assert "engine_of(optimizer).step()\n" in after


def test_a_name_that_is_not_written_is_not_followed(tmp_path: Path) -> None:
    unknown = ENSEMBLE.replace('f"optimizer_{i}"', "str(i)")
    assert blocked(tmp_path, body(unknown))
