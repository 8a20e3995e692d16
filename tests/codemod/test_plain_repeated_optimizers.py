"""Optimizers that another one replaces, that are made anew, and that get further groups while they train."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.options import Options
from plain_loops import blocked, body, convert

EPOCH = """
    def epoch(model, optimizer):
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


    model = nn.Sequential(Net(), nn.Linear(1, 1))
    """
PHASES = """
    optimizer = torch.optim.Adam(model[1].parameters(), lr=0.1)
    epoch(model, optimizer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    epoch(model, optimizer)
    """
IN_METHODS = """
    class Trainer:
        def __init__(self):
            self.model = Net()
            self.optimizer = None

        def warm_up(self):
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)

        def settle(self):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def fit(self):
            for x, y in DataLoader(data, batch_size=4):
                OWN_STEP


    trainer = Trainer()
    trainer.warm_up()
    trainer.fit()
    trainer.settle()
    trainer.fit()
    """
TASKS = """
    def train(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            STEP


    def run():
        model = Net()
        {calls}


    for fold in range(3):
        run()
    """


def test_each_optimizer_of_a_variable_has_an_engine_that_leaves_gradients(tmp_path: Path) -> None:
    after = convert(tmp_path, body(EPOCH + PHASES))
    assert after.count("engine, *_ = deepspeed.initialize(\n    model=model,\n") == 2
    assert after.count("match_torch(engine, keep_gradients=True)\nepoch(model, engine)\n") == 2
    assert after.count('"stage": 0') == 2
    assert "        engine.optimizer.zero_grad()\n" in after


def test_optimizers_that_several_methods_make_have_their_engine_beside_them(tmp_path: Path) -> None:
    after = convert(tmp_path, body(IN_METHODS))
    assert after.count("self.engine, *_ = deepspeed.initialize(") == 2
    assert "self.optimizer.zero_grad()\n            self.engine.backward(" in after


def test_an_optimizer_that_another_name_keeps_leads_to_its_own_engine(tmp_path: Path) -> None:
    text = (
        EPOCH + PHASES.replace("    epoch(model, optimizer)\n", "    first = optimizer\n", 1) + "epoch(model, first)\n"
    )
    after = convert(tmp_path, body(text))
    assert "epoch(model, optimizer)\n" in after and "engine_of(optimizer).step()" in after


def test_a_parameter_that_a_function_replaces_leads_to_the_engine_of_what_it_holds(tmp_path: Path) -> None:
    again = "if late:\n            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n        for x, y in"
    text = EPOCH.replace("optimizer):\n", "optimizer, late):\n").replace("for x, y in", again, 1)
    text += "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n    epoch(model, optimizer, True)\n"
    after = convert(tmp_path, body(text))
    assert "engine_of(optimizer).step()" in after and after.count("deepspeed.initialize(") == 2


def test_clipping_between_phases_acts_on_averaged_gradients(tmp_path: Path) -> None:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n            "
    after = convert(tmp_path, body(EPOCH.replace("optimizer.step()", clip + "optimizer.step()") + PHASES))
    assert f"engine.allreduce_gradients()\n        {clip.strip()}\n        engine.step()" in after
    assert after.count('"gradient_clipping": 0.0,') == 2


@pytest.mark.parametrize(
    "calls, stage",
    [
        ("train(model)", 1),
        ("train(model)\n        train(model)", 0),
        ("for _ in range(2):\n            train(model)", 0),
    ],
)
def test_an_optimizer_that_is_made_again_for_its_module_has_no_shards(calls: str, stage: int, tmp_path: Path) -> None:
    assert f'"stage": {stage}' in convert(tmp_path, body(TASKS.format(calls=calls)))


def test_an_optimizer_that_is_made_in_each_epoch_has_an_engine_there(tmp_path: Path) -> None:
    text = """
        model = Net()
        for epoch in range(3):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1 / (epoch + 1))
            for x, y in DataLoader(data, batch_size=4):
                STEP
        """
    after = convert(tmp_path, body(text))
    assert "    engine, *_ = deepspeed.initialize(" in after and '"stage": 0' in after


def test_a_group_that_is_added_during_training_is_in_the_engine_from_the_start(tmp_path: Path) -> None:
    text = """
        first, second = Net(), nn.Linear(1, 1)
        optimizer = torch.optim.SGD(first.fc.parameters(), lr=0.1)
        for epoch in range(2):
            if epoch == 1:
                optimizer.add_param_group({"params": PARAMS, "lr": 0.2})
            for x, y in DataLoader(data, batch_size=4):
                optimizer.zero_grad()
                F.mse_loss(second(first(x)), y).backward()
                optimizer.step()
        """
    after = convert(tmp_path, body(text.replace("PARAMS", "second.parameters()")))
    assert "    model=nn.ModuleList([first, second]),\n" in after
    assert "\nmatch_torch(engine, keep_gradients=True)\n" in after
    unknown = "[p for p in getattr(first, 'fc').parameters()]"  # of the one module, or match_torch() refuses them
    after = convert(tmp_path, body(text.replace("PARAMS", unknown)))
    assert "    model=first,\n" in after and '"stage": 0' in after
    text = text.replace("first.fc.parameters()", "[*first.parameters(), *second.parameters()]")
    ((code, _),) = blocked(tmp_path, body(text.replace("PARAMS", unknown)))
    assert code == "DSM601"


def test_optimizers_of_one_assignment_have_an_engine_each(tmp_path: Path) -> None:
    text = """
        first, second = Net(), nn.Linear(1, 1)
        one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            one.zero_grad()
            two.zero_grad()
            F.mse_loss(second(first(x)), y).backward()
            one.step()
            two.step()
        """
    after = convert(tmp_path, body(text))
    assert "    optimizer=one,\n" in after and "    optimizer=two,\n" in after
    assert "first_engine.step()\n    second_engine.step()\n" in after


def test_an_optimizer_that_is_replaced_needs_the_runtime(tmp_path: Path) -> None:
    text = body(EPOCH + PHASES).replace("data = ", "torch.manual_seed(0)\ndata = ")
    ((code, message),) = blocked(tmp_path, text, Options(plain=True, runtime=False))
    assert code == "DSM601" and message.startswith("the optimizer is replaced, or gets further groups, and DeepSpeed")
    after = convert(tmp_path, text, Options(plain=True, optimizer_in_config=True))
    assert after.count("    optimizer=optimizer,\n") == 2


TWO = """
def train(loader, model, opt, {other}):
    {made}
    for x, y in loader:
        opt.zero_grad()
        {name}.zero_grad()
        loss = F.mse_loss(head(model(x)), y)
        loss.backward()
        opt.step()
        {name}.step()


def main():
    model, head = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    train(DataLoader(data, batch_size=4), model, optimizer, {given})


main()
"""


@pytest.mark.parametrize(
    ("other", "made", "name", "given", "engines"),
    [
        ("head", "own = torch.optim.SGD(head.parameters(), lr=0.2)", "own", "head", ["ds_engine", "engine"]),
        ("optimizer", "pass", "optimizer", "head_optimizer", ["engine", "ds_engine"]),
    ],
)
def test_engines_that_a_function_makes_and_is_given_have_other_names(
    other: str, made: str, name: str, given: str, engines: list[str], tmp_path: Path
) -> None:
    text = TWO.format(other=other, made=made, name=name, given=given)
    if given == "head":
        text = text.replace("    head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)\n", "")
    after = convert(tmp_path, body(text))
    assert [line.strip() for line in after.splitlines() if ".step()" in line] == [f"{one}.step()" for one in engines]


OF_THE_SAME_CLASS = """
    class Trainer:
        def __init__(self, model, optimizer):
            kind = CLASS
            self.model = model
            self.optimizer = kind(model[1].parameters(), lr=optimizer.defaults["lr"])

        def fit(self):
            for x, y in DataLoader(data, batch_size=4):
                OWN_STEP


    model = nn.Sequential(Net(), nn.Linear(1, 1))
    Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1)).fit()
    """


@pytest.mark.parametrize("kind", ["type(optimizer)", "optimizer.__class__"])
def test_an_optimizer_of_the_class_of_another_one_gets_an_engine(kind: str, tmp_path: Path) -> None:
    """The step ended with an error there, as no engine was made for it."""
    after = convert(tmp_path, body(OF_THE_SAME_CLASS).replace("CLASS", kind))
    assert "optimizer=self.optimizer," in after and "self.engine.step()" in after
