"""Reasons why an optimizer, or its model, cannot be followed: which argument it is, of which function."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import GIVEN_TRAINER, HEADER, blocked, body, convert, run

OUTSIDE = "the optimizer of self.optimizer.step() comes from outside of these files: it is the argument optimizer of "
CDO = "cannot determine which optimizer self.optimizer.step() moves: "


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        pytest.param("", OUTSIDE + "Trainer(), which no call in them gives", id="nothing makes a trainer"),
        pytest.param(
            """
    class Longer(Trainer):
        def __init__(self, epochs, *args, **kwargs):
            super().__init__(*args, **kwargs)


    if isinstance(data, Trainer) or type(data) in (Trainer, Longer):
        print(Trainer.__doc__)
    """,
            OUTSIDE + "Longer(), which no call in them gives",
            id="a class below it hands all on",
        ),
        pytest.param(
            """
    def make(net, moved_by):
        return Trainer(net, optimizer=moved_by)
    """,
            OUTSIDE.replace("argument optimizer", "argument moved_by") + "make(), which no call in them gives",
            id="a function makes one",
        ),
        pytest.param(
            "\n    import other\n\n    other.run(Trainer)\n",
            CDO + "it is the argument optimizer of Trainer(), whose call cannot be followed from train.py:32",
            id="a class is handed on",
        ),
        pytest.param(
            "\n    import other\n\n    Trainer(Net(), optimizer=other.make(1))\n",
            CDO + "other.make() of a library returns it",
            id="a library makes it",
        ),
        pytest.param(
            "\n    import other, typing\n\n    Trainer(Net(), optimizer=typing.cast(object, other.make(1)))\n",
            CDO + "other.make() of a library returns it",
            id="a library makes what is cast",
        ),
        pytest.param(
            "\n    class Own:\n        pass\n\n\n    Trainer(Net(), Own())\n",
            CDO + "self.optimizer may be of the class Own, which is no optimizer of torch",
            id="a class of the program",
        ),
    ],
)
def test_the_reason_names_the_argument_and_its_function(more: str, reason: str, tmp_path: Path) -> None:
    assert blocked(tmp_path, body(GIVEN_TRAINER + more)) == [(Code.PLAIN_UNTRACED, reason)]


def test_a_call_through_an_unknown_object_is_followed_to_its_argument(tmp_path: Path) -> None:
    text = """
        class Step:
            def take(self, model, optim, x, y):
                optim.zero_grad()
                F.mse_loss(model(x), y).backward()
                optim.step()


        class Trainer:
            def __init__(self, model, stepper, optimizer):
                self.model, self.stepper, self.optimizer = model, stepper, optimizer

            def fit(self, loader):
                for x, y in loader:
                    self.stepper.take(self.model, optim=self.optimizer, x=x, y=y)
        """
    ((_, message),) = blocked(tmp_path, body(text))
    assert message.endswith("it is the argument optimizer of Trainer(), which no call in them gives")


def test_a_call_of_another_method_of_that_name_is_no_reason(tmp_path: Path) -> None:
    text = """
        class Model:
            def update(self, batch, optim):
                optim.zero_grad()
                F.mse_loss(*batch).backward()
                optim.step()


        class Meter:
            def log(self, value, n):
                self.mean.update(value, n)


        def fit(model, loader, optim):
            for batch in loader:
                model.update(batch, optim)
        """
    ((_, message),) = blocked(tmp_path, body(text))
    assert message.endswith("it is the argument optim of fit(), which no call in them gives")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("list_of(self.model)", "it is the argument model of Trainer(), which no call in them gives"),
        ("self.model.net.parameters()", "it is the argument model of Trainer(), which no call in them gives"),
        ("self.model.parameters()", ""),
    ],
)
def test_a_model_that_callers_outside_give_has_an_engine_where_it_is_all_that_they_give(
    given: str, message: str, tmp_path: Path
) -> None:
    text = GIVEN_TRAINER.replace("model, optimizer)", "model)").replace("= optimizer", f"= torch.optim.SGD({given})")
    report = run(tmp_path, train=body(text))
    assert [f.message.rpartition(": ")[2] for _, f in report.findings(Severity.BLOCKED)] == [message] * bool(message)
    after = (report.files[0].after or b"").decode()
    assert after.count("model=self.model,") == after.count("self.engine.step()") == int(not message)


def test_a_class_below_a_generic_one_has_its_attributes(tmp_path: Path) -> None:
    text = """
        import typing

        T = typing.TypeVar("T")


        class Base(typing.Generic[T]):
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


        class Trainer(Base[Net]):
            def fit(self, loader):
                for x, y in loader:
                    OWN_STEP


        Trainer(Net()).fit(DataLoader(data, batch_size=4))
        """
    assert "self.engine.step()\n" in convert(tmp_path, body(text))


RETURNED = """
    def fit(model, loader):
        def trained():
            return (p for p in model.parameters() if p.requires_grad)

        optimizer = torch.optim.Adam(trained(), lr=0.1)
        for x, y in loader:
            STEP


    CALL
    """


def test_parameters_that_a_function_beside_the_optimizer_returns_are_of_its_module(tmp_path: Path) -> None:
    after = convert(tmp_path, body(RETURNED.replace("CALL", "fit(Net(), DataLoader(data, batch_size=4))")))
    assert "        model=model," in after and "engine.step()\n" in after


def test_a_model_that_no_call_gives_is_named_as_such(tmp_path: Path) -> None:
    text = RETURNED.replace("CALL", "").replace("trained()", "list_of(model)")
    ((code, message),) = blocked(tmp_path, body(text))
    assert code == Code.PLAIN_ENGINE
    assert message.endswith("it is the argument model of fit(), which no call in them gives")


def test_a_model_that_is_an_attribute_of_an_argument_is_named_as_such(tmp_path: Path) -> None:
    text = RETURNED.replace("CALL", "").replace("def fit(model, loader)", "def fit(agent, loader)")
    text = text.replace("        def trained", "        model = agent.net\n        def trained")
    ((_, message),) = blocked(tmp_path, body(text))
    assert message.endswith("it is the argument agent of fit(), which no call in them gives")


OF_PARTS = """
    def fit(model, loader, by_part=False):
        if by_part:
            optimizer = torch.optim.Adam([{"params": model.fc.parameters()}, {"params": [model.scale], "lr": 0.1}])
        else:
            optimizer = torch.optim.Adam(model.parameters())
        for x, y in loader:
            STEP
    """


def test_parts_of_a_model_that_callers_outside_give_are_of_it(tmp_path: Path) -> None:
    after = convert(tmp_path, body(OF_PARTS))
    assert "        model=model,\n" in after and after.count("engine.step()") == 1
    unasked = body(OF_PARTS).replace("model.parameters()", "model.fc.parameters()")
    ((_, message),) = blocked(tmp_path, unasked)
    assert message.endswith("it is the argument model of fit(), which no call in them gives")


TRAINER = """
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            F.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
"""
USES_IT = """
from trainer import Trainer

def test_fit():
    model = nn.Linear(4, 4)
    Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1)).fit(DataLoader(data, batch_size=4))

test_fit()
"""


@pytest.mark.parametrize(("name", "is_blocked"), [("test_trainer", True), ("example", False)])
def test_a_library_that_gets_optimizers_from_its_tests_alone_stays(name: str, is_blocked: bool, tmp_path: Path) -> None:
    """Code outside gave it an optimizer, for which it found no engine any more."""
    report = run(tmp_path, **{"trainer": HEADER + TRAINER, name: HEADER + USES_IT})
    found = [f.message for _, f in report.findings(Severity.BLOCKED)]
    assert any("only their tests make one" in message for message in found) is is_blocked
    assert any(file.after is not None for file in report.files) is not is_blocked


def test_a_call_that_nothing_reaches_and_that_gives_an_optimizer_is_for_review(tmp_path: Path) -> None:
    text = """
    def train(model, optimizer):
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


    def fit(state):
        train(state["model"], optimizer=state["optimizer"])


    def evaluate(model, optimizer=None):
        train(model, None)


    MAKE_MODEL
    train(model, optimizer)
    """
    found = [f.message for _, f in run(tmp_path, train=body(text)).findings(Severity.REVIEW)]
    assert found == [
        "train() takes an engine now, and this call, which nothing in these files reaches, gives it an optimizer"
    ]
