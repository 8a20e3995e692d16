"""Optimizers in keyword arguments without a parameter, named tuples and dataclasses."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.options import Options
from plain_loops import blocked, body, convert

STEPPED = "engine_of(self.optimizer).step()\n"
TRAINER = """
    class Trainer:
        def __init__(self, *args, **kwargs):
            self.model = kwargs["model"]
            self.optimizer = OPTIMIZER

        def fit(self, loader):
            for x, y in loader:
                OWN_STEP


    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    Trainer(model=model, optimizer=optimizer, epochs=2).fit(DataLoader(data, batch_size=4))
    """


@pytest.mark.parametrize("held", ['kwargs["optimizer"]', 'kwargs.get("optimizer")', 'kwargs.pop("optimizer", None)'])
def test_an_optimizer_among_keyword_arguments_is_found_by_itself(held: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(TRAINER.replace("OPTIMIZER", held)))
    assert STEPPED in after and "    optimizer=optimizer,\n" in after and f"self.optimizer = {held}\n" in after


def test_keyword_arguments_are_followed_through_a_call(tmp_path: Path) -> None:
    text = TRAINER.replace("OPTIMIZER", 'kwargs["optimizer"]').replace("Trainer(model=", "make(model=")
    function = "def make(**options):\n        return Trainer(**options)\n\n\n    model = Net()"
    assert STEPPED in convert(tmp_path, body(text.replace("model = Net()", function)))


def test_a_parameter_is_given_by_a_dict(tmp_path: Path) -> None:
    text = TRAINER.replace("OPTIMIZER", "optimizer").replace("*args, **kwargs", "optimizer, **kwargs")
    text = text.replace("optimizer=optimizer, epochs=2)", 'epochs=2, **{"optimizer": optimizer})')
    assert STEPPED in convert(tmp_path, body(text))


def test_another_key_is_no_optimizer(tmp_path: Path) -> None:
    ((_, message),) = blocked(tmp_path, body(TRAINER.replace("OPTIMIZER", 'kwargs["solver"]')))
    assert message.startswith("cannot determine which optimizer self.optimizer.step() moves: ")


RECORD = """
    import collections
    import dataclasses
    import typing

    DEFINITION


    def make():
        first, second = Net(), nn.Linear(1, 1)
        first_optimizer = torch.optim.Adam(first.parameters(), lr=0.1)
        return Nets(first, second, first_optimizer, second_optimizer=torch.optim.SGD(second.parameters(), lr=0.1))


    nets = make()
    for x, y in DataLoader(data, batch_size=4):
        nets.first_optimizer.zero_grad()
        nets.second_optimizer.zero_grad()
        F.mse_loss(nets.second(nets.first(x)), y).backward()
        nets.first_optimizer.step()
        nets.second_optimizer.step()
    """
FIELDS = """
        first: nn.Module
        second: nn.Module
        first_optimizer: torch.optim.Optimizer
        second_optimizer: torch.optim.Optimizer = None"""


@pytest.mark.parametrize(
    "definition",
    [
        'Nets = collections.namedtuple("Nets", ["first", "second", "first_optimizer", "second_optimizer"])',
        'Nets = collections.namedtuple("Nets", "first second, first_optimizer second_optimizer")',
        f"class Nets(typing.NamedTuple):{FIELDS}",
        f"@dataclasses.dataclass\n    class Nets:{FIELDS}",
        f"@dataclasses.dataclass(frozen=True)\n    class Nets:{FIELDS}",
    ],
)
def test_optimizers_in_records_are_followed(definition: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(RECORD.replace("DEFINITION", definition)))
    assert after.count("deepspeed.initialize(") == 2
    assert after.endswith("    engine_of(nets.first_optimizer).step()\n    engine_of(nets.second_optimizer).step()\n")


def test_a_class_that_is_no_record_is_not_followed(tmp_path: Path) -> None:
    assert blocked(tmp_path, body(RECORD.replace("DEFINITION", f"class Nets(collections.UserDict):{FIELDS}")))


def test_optimizers_in_a_dict_that_a_function_returns_are_made_before_it(tmp_path: Path) -> None:
    text = """
    def make(nets):
        return {"first": torch.optim.Adam(nets[0].parameters()), "second": torch.optim.SGD(nets[1].parameters())}


    nets = [Net(), nn.Linear(1, 1)]
    optimizers = make(nets)
    for x, y in DataLoader(data, batch_size=4):
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        F.mse_loss(nets[1](nets[0](x)), y).backward()
        for optimizer in optimizers.values():
            optimizer.step()
    """
    after = convert(tmp_path, body(text))
    assert '    return {"first": adam_optimizer, "second": sgd_optimizer}\n' in after
    assert after.endswith("        engine_of(optimizer).step()\n")


PARTIAL = """
    from functools import partial


    def backwards(scale, loss, optimizer, **kwargs):
        (loss * scale).backward(**kwargs)


    def fit(model, make_optimizer, loader):
        optimizer = make_optimizer(model.parameters())
        backward = partial(backwards, 0.5)
        for x, y in loader:
            optimizer.zero_grad()
            backward(F.mse_loss(model(x), y), optimizer)
            optimizer.step()


    fit(Net(), partial(torch.optim.AdamW, lr=0.1), DataLoader(data, batch_size=4))
    """


def test_partial_calls_are_those_of_their_functions(tmp_path: Path) -> None:
    after = convert(tmp_path, body(PARTIAL))
    assert (
        "def backwards(scale, loss, engine, **kwargs):\n    engine.backward(loss * scale, scale_wrt_gas=False)" in after
    )
    assert "        backward(F.mse_loss(model(x), y), engine)\n        engine.step()\n" in after


def test_an_optimizer_that_a_partial_gives_is_replaced_there(tmp_path: Path) -> None:
    text = PARTIAL.replace("partial(backwards, 0.5)", "partial(backwards, 0.5, optimizer=optimizer)")
    after = convert(tmp_path, body(text.replace("y), optimizer)", "y))")))
    assert "partial(backwards, 0.5, engine=engine)" in after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y), optimizer)", "y), optimizer, retain_graph=True)"),
        ("0.5)", "0.5, create_graph=True)"),
        ("(loss * scale)", 'kwargs["inputs"] = [loss]\n        (loss * scale)'),
    ],
)
def test_keyword_arguments_that_a_call_gives_to_backward_are_refused(old: str, new: str, tmp_path: Path) -> None:
    ((_, message),) = blocked(tmp_path, body(PARTIAL.replace(old, new)))
    assert message == "backward() is given *arguments, which engine.backward() does not take"


def test_the_optimizer_of_a_partial_stays_in_the_program(tmp_path: Path) -> None:
    after = convert(tmp_path, body(PARTIAL), Options(plain=True, optimizer_in_config=True))
    assert "    optimizer = make_optimizer(model.parameters())\n" in after and '"optimizer": {' not in after


def test_a_lambda_that_gives_parameters_to_an_optimizer_makes_it(tmp_path: Path) -> None:
    text = PARTIAL.replace("partial(torch.optim.AdamW, lr=0.1)", "lambda params: torch.optim.AdamW(params, lr=0.1)")
    after = convert(tmp_path, body(text))
    assert "        engine.step()\n" in after and "optimizer = make_optimizer(model.parameters())\n" in after


@pytest.mark.parametrize(
    "other",
    [
        "lambda params: torch.optim.AdamW(list(params)[:1], lr=0.1)",
        "lambda params, lr=0.1: torch.optim.AdamW(params, lr)",
        "lambda params: torch.optim.AdamW(params, foreach=len(list(params)) > 1)",
    ],
)
def test_a_lambda_that_does_more_than_that_is_not_followed(other: str, tmp_path: Path) -> None:
    found = blocked(tmp_path, body(PARTIAL.replace("partial(torch.optim.AdamW, lr=0.1)", other)))
    ((code, message),) = found
    assert code == "DSM650" and message.startswith("cannot determine which optimizer optimizer.step() moves: ")
