"""Plain training loops whose modules keep their optimizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.options import Options
from plain_loops import blocked, body, convert

POLICY = """
    class Policy(Net):
        def __init__(self):
            super().__init__()
            self.optimizer = torch.optim.Adam(self.parameters())

        def learn(self, x, y):
            self.optimizer.zero_grad()
            loss = F.mse_loss(self(x), y)
            loss.backward()
            self.optimizer.step()


    policy = Policy()
    for x, y in DataLoader(data, batch_size=4):
        policy.learn(x, y)
    """
AGENT = """
    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = Net(), Net()
            self.actor_opt = torch.optim.Adam(self.actor.parameters())
            self.critic_opt = torch.optim.Adam(self.critic.parameters())

        def update(self, x, y):
            self.critic_opt.zero_grad()
            F.mse_loss(self.critic(x), y).backward()
            nn.utils.clip_grad_value_(self.critic.parameters(), 0.5)
            self.critic_opt.step()
            self.actor_opt.zero_grad()
            (-self.critic(x + self.actor(x)).mean()).backward()
            self.actor_opt.step()


    agent = Agent()
    for x, y in DataLoader(data, batch_size=4):
        agent.update(x, y)
    """
FIT = """
    class Model(Net):
        def fit(self, loader):
            optimizer = torch.optim.Adam(self.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(self(x), y)
                loss.backward()
                optimizer.step()


    Model().fit(DataLoader(data, batch_size=4))
    """
OUTSIDE = """
    model = Net()
    model.optimizer = torch.optim.Adam(model.parameters())
    for x, y in DataLoader(data, batch_size=4):
        model.optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        model.optimizer.step()
    """
TRAINER = """
    class Trainer(nn.Module):
        def __init__(self, model, optimizer):
            super().__init__()
            self.model, self.optimizer = model, optimizer

        def learn(self, x, y):
            OWN_STEP


    model = Net()
    trainer = Trainer(model, torch.optim.Adam(model.parameters()))
    for x, y in DataLoader(data, batch_size=4):
        trainer.learn(x, y)
    """


def test_the_optimizer_that_a_module_keeps_leads_to_its_engine(tmp_path: Path) -> None:
    after = convert(tmp_path, body(POLICY))
    assert "        engine, *_ = deepspeed.initialize(\n            model=self,\n" in after
    assert "        match_torch(engine, keep_gradients=True)\n" in after and "self.engine" not in after
    assert "        loss.backward()\n        engine_of(self.optimizer).step()\n" in after


def test_each_part_of_a_module_has_an_engine_which_the_module_does_not_keep(tmp_path: Path) -> None:
    after = convert(tmp_path, body(AGENT))
    assert "        critic_engine, *_ = deepspeed.initialize(\n            model=self.critic,\n" in after
    assert "        engine_of(self.critic_opt).allreduce_gradients()\n        nn.utils.clip_grad_value_(" in after
    assert "self.critic_engine" not in after and "engine_of(self.actor_opt).step()" in after


def test_a_method_of_a_module_may_train_it(tmp_path: Path) -> None:
    after = convert(tmp_path, body(FIT))
    assert "            model=self,\n            optimizer=optimizer,\n" in after
    assert "            engine.backward(loss)\n            engine.step()\n" in after


@pytest.mark.parametrize("text", [OUTSIDE, TRAINER], ids=["set from outside", "handed to a trainer"])
def test_no_engine_becomes_an_attribute_of_a_module(text: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(text))
    assert ".engine" not in after and ".optimizer).step()" in after


def test_a_step_outside_of_the_module_that_keeps_the_optimizer_is_followed(tmp_path: Path) -> None:
    loop = "policy = Policy()\nfor x, y in DataLoader(data, batch_size=4):\n    policy.optimizer.zero_grad()\n"
    loop += "    F.mse_loss(policy(x), y).backward()\n    policy.optimizer.step()\n"
    text = body(POLICY)
    after = convert(tmp_path, text[: text.index("    def learn")] + "\n\n" + loop)
    assert "    engine_of(policy.optimizer).step()\n" in after


def test_the_loader_whose_batches_a_module_trains_on_in_its_forward_is_divided(tmp_path: Path) -> None:
    text = TRAINER.replace("def learn(", "def forward(").replace("trainer.learn(", "trainer(")
    assert "in shard(DataLoader(data, batch_size=4)):" in convert(tmp_path, body(text))


def test_modules_of_one_class_keep_gradients_that_another_one_s_step_left(tmp_path: Path) -> None:
    text = (
        body(POLICY)
        .replace("self(x), y)", "self(x) + other(x), y)")
        .replace("= Policy()", "= Policy()\nother = Policy()")
    )
    assert "match_torch(engine, keep_gradients=True)" in convert(tmp_path, text)


@pytest.mark.parametrize("text", [POLICY, OUTSIDE], ids=["in the module", "set from outside"])
def test_without_the_runtime_a_module_that_keeps_its_optimizer_is_refused(text: str, tmp_path: Path) -> None:
    found = blocked(tmp_path, body(text), Options(plain=True, runtime=False))
    assert [code for code, message in found if "is an attribute of a module" in message] == ["DSM652"]


def test_a_module_that_clears_its_own_gradients_is_seen_to_do_so(tmp_path: Path) -> None:
    text = body(FIT).replace("optimizer.zero_grad()", "self.zero_grad()")
    after = convert(tmp_path, text)
    assert "zero_grad" not in after and "\n        match_torch(engine)\n" in after


MADE_IN_MODULE = """
    class Base(Net):
        def get_optimizer(self, lr):
            return torch.optim.Adam(self.parameters(), lr=lr)


    class Deep(Base):
        def get_optimizer(self, lr):
            return torch.optim.Adam([{"params": self.fc.parameters()}], lr=lr)


    class Wide(Base):
        pass


    model = MODEL
    optimizer = model.get_optimizer(0.1)
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """


@pytest.mark.parametrize(
    ("model", "stage"), [("Wide()", 1), ("Deep()", 0), ("{'deep': Deep, 'wide': Wide}[name]()", 0)]
)
def test_the_module_whose_method_makes_an_optimizer_of_it_or_of_parts_gets_the_engine(
    model: str, stage: int, tmp_path: Path
) -> None:
    after = convert(tmp_path, body(MADE_IN_MODULE).replace("MODEL", model))
    assert "    model=model,\n    optimizer=optimizer,\n" in after and f'{{"stage": {stage}}}' in after
    assert "    engine.backward(F.mse_loss(engine(x), y))\n    engine.step()\n" in after


def test_a_module_that_trains_its_own_parameters_is_in_the_engine_as_a_whole(tmp_path: Path) -> None:
    text = """
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift, self.fc = nn.Parameter(torch.zeros(4)), nn.Linear(4, 1)

        def forward(self, x):
            return self.fc(x + self.shift)

        def warm_up(self, loader):
            optimizer = torch.optim.Adam([self.shift] + list(self.fc.parameters()))
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(self(x), y).backward()
                optimizer.step()


    Shifted().warm_up(DataLoader(data, batch_size=4))
    """
    after = convert(tmp_path, body(text))
    assert "            model=self,\n" in after and '"zero_optimization": {"stage": 0}' in after


def test_a_module_makes_its_optimizer_of_what_its_method_chooses_of_its_parameters(tmp_path: Path) -> None:
    text = body("""
        class Learner(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 1)
                self.optimizer = torch.optim.SGD(self.trained(), lr=0.1)

            def trained(self):
                return (p for p in self.parameters() if p.requires_grad)

            def update(self, x, y):
                self.optimizer.zero_grad()
                F.mse_loss(self.fc(x), y).backward()
                self.optimizer.step()


        learner = Learner()
        for x, y in DataLoader(data, batch_size=4):
            learner.update(x, y)
        """)
    after = convert(tmp_path, text)
    assert "model=self,\n" in after and "engine_of(self.optimizer).step()\n" in after
