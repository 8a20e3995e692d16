"""Tensors beside modules, and groups of parameters that are added, in the optimizers of plain training loops."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code
from plain_loops import blocked, body, convert, run

BESIDE = """
    model = Net()
    log_var = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [log_var], "lr": 0.1}])
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y) * torch.exp(-log_var) + log_var
        loss.backward()
        optimizer.step()
    """
AGENT = """
    class Agent:
        def __init__(self):
            self.actor = Net()
            self.log_alpha = torch.tensor(0.0).to("cpu")
            self.log_alpha.requires_grad = True
            self.actor_optim = torch.optim.Adam(self.actor.parameters())
            self.alpha_optim = torch.optim.Adam([self.log_alpha], lr=0.1)

        def update(self, x, y):
            loss = F.mse_loss(self.actor(x), y) * self.log_alpha.exp().detach()
            self.actor_optim.zero_grad()
            loss.backward()
            self.actor_optim.step()
            alpha_loss = -(self.log_alpha * (loss + 1).detach()).mean()
            self.alpha_optim.zero_grad()
            alpha_loss.backward()
            self.alpha_optim.step()


    agent = Agent()
    for x, y in DataLoader(data, batch_size=4):
        agent.update(x, y)
    """
ADDED = """
    first, second = Net(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    optimizer.add_param_group({"params": second.parameters(), "lr": 0.2})
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        F.mse_loss(second(first(x)), y).backward()
        optimizer.step()
    """


def test_an_engine_holds_a_tensor_beside_a_module_and_is_not_called(tmp_path: Path) -> None:
    after = convert(tmp_path, body(BESIDE))
    assert "engine, *_ = deepspeed.initialize(\n    model=EngineModule(optimizer, model=model),\n" in after
    assert '"managed_gradient_accumulation": False,' in after and '"zero_optimization": {"stage": 0},' in after
    assert "loss = F.mse_loss(model(x), y) * torch.exp(-log_var) + log_var\n    engine.backward(loss, " in after


def test_an_optimizer_of_a_tensor_alone_has_an_engine(tmp_path: Path) -> None:
    after = convert(tmp_path, body(AGENT))
    assert (
        "self.log_alpha_engine, *_ = deepspeed.initialize(\n            model=EngineModule(self.alpha_optim)," in after
    )
    assert (
        "self.log_alpha_engine.backward(alpha_loss, scale_wrt_gas=False)\n        self.log_alpha_engine.step()" in after
    )


@pytest.mark.parametrize(
    "kept",
    ["model.log_var = log_var", "model.register_parameter('log_var', log_var)", "all_of = nn.ParameterList([log_var])"],
)
def test_a_tensor_that_a_module_keeps_too_is_refused(kept: str, tmp_path: Path) -> None:
    text = body(BESIDE).replace("torch.zeros((), requires_grad=True)\n", f"nn.Parameter(torch.zeros(()))\n{kept}\n")
    ((code, message),) = blocked(tmp_path, text)
    assert code == Code.PLAIN_ENGINE and message.startswith("cannot determine the modules whose parameters")


def test_a_tensor_that_may_be_a_parameter_of_a_module_is_refused(tmp_path: Path) -> None:
    text = body(BESIDE).replace("torch.zeros((), requires_grad=True)", "model.fc.bias.detach()")
    ((code, _),) = blocked(tmp_path, text)
    assert code == Code.PLAIN_ENGINE


def test_a_parameter_of_a_module_by_a_name_is_in_the_module_s_engine(tmp_path: Path) -> None:
    text = body(BESIDE).replace("torch.zeros((), requires_grad=True)", "model.fc.bias")
    after = convert(tmp_path, text.replace("model.parameters()", "[model.fc.weight]"))
    assert "    model=model,\n" in after and '"zero_optimization": {"stage": 0}' in after


def test_the_engine_is_made_behind_a_group_that_is_added(tmp_path: Path) -> None:
    after = convert(tmp_path, body(ADDED))
    assert '"lr": 0.2})\nengine, *_ = deepspeed.initialize(\n    model=nn.ModuleList([first, second]),\n' in after


def test_a_tensor_that_is_added_during_training_is_refused(tmp_path: Path) -> None:
    line = 'optimizer.add_param_group({"params": second.parameters(), "lr": 0.2})\n'
    tensor = 'optimizer.add_param_group({"params": [scale]})\n'
    text = body(ADDED).replace(line, "scale = torch.zeros((), requires_grad=True)\n")
    ((code, message),) = blocked(tmp_path, text.replace("batch_size=4):\n", f"batch_size=4):\n    {tensor}"))
    assert code == Code.PLAIN_ENGINE and message.startswith("a group is added to the optimizer later, ")


def test_a_loader_that_a_loop_makes_once_needs_no_review(tmp_path: Path) -> None:
    assert "for x, y in shard(DataLoader(data, batch_size=4)):" in convert(tmp_path, body(BESIDE))


SEARCHED = """
    class Search(Net):
        def __init__(self):
            super().__init__()
            self.alphas = torch.zeros(3, requires_grad=True)
            self.kept = [self.alphas]

        def chosen(self):
            return self.kept


    model = Search()
    optimizer = torch.optim.Adam(model.chosen())
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        (F.mse_loss(model(x), y) * model.alphas.sum()).backward()
        optimizer.step()
    """


def test_what_a_method_of_a_module_returns_may_be_in_no_module(tmp_path: Path) -> None:
    assert "model=EngineModule(optimizer, model=model)," in convert(tmp_path, body(SEARCHED))
    selects = SEARCHED.replace("return self.kept", "return [p for p in self.parameters() if p.ndim > 1]")
    assert "EngineModule" not in convert(tmp_path, body(selects))


ENTROPY = """
    import math
    from torch.autograd import Variable

    model = Net()
    alpha = {made}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alpha_optimizer = torch.optim.SGD([alpha], lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        STEP
        alpha_optimizer.zero_grad()
        (alpha.exp() * y.mean()).sum().backward()
        alpha_optimizer.step()
    """


@pytest.mark.parametrize(
    "made",
    [
        "torch.ones_like(data[0][1]).detach().requires_grad_(True)",
        "Variable(torch.zeros(1).float(), requires_grad=True)",
        "Variable(torch.zeros(1).cuda() if torch.cuda.is_available() else torch.zeros(1), requires_grad=True)",
        "torch.zeros_like(model.fc.weight, requires_grad=True)",
        "Variable(torch.from_numpy(start).float().to(next(model.parameters()).device), requires_grad=True)",
        "torch.tensor([0.1], device=model.fc.weight.device).flatten().requires_grad_(True)",
    ],
)
def test_a_tensor_is_followed_through_methods_that_keep_its_memory(made: str, tmp_path: Path) -> None:
    assert "EngineModule(alpha_optimizer)," in convert(tmp_path, body(ENTROPY.format(made=made)))


SEVERAL = """
    model = Net()
    {made}
    optimizer = torch.optim.Adam(parts, lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = sum((part ** 2).mean() for part in parts) * F.mse_loss(model(x), y).detach()
        loss.backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    "made",
    [
        "parts = [torch.tensor([0.0], requires_grad=True) for _ in range(3)]",
        "parts = []\n    for i in range(3):\n        parts.append(torch.zeros(i + 1, requires_grad=True))",
        "held = {}\n    for i in range(3):\n        held[i] = torch.zeros(2, requires_grad=True)\n"
        "    parts = list(held.values())",
    ],
)
def test_tensors_that_a_list_or_dict_holds_are_followed(made: str, tmp_path: Path) -> None:
    assert "model=EngineModule(optimizer)," in convert(tmp_path, body(SEVERAL.format(made=made)))


def test_parameters_of_a_module_in_a_dict_are_those_of_the_module(tmp_path: Path) -> None:
    made = "held = {}\n    held[0] = nn.Parameter(model.fc.weight)\n    parts = list(held.values())"
    assert blocked(tmp_path, body(SEVERAL.format(made=made)))


def test_a_detached_parameter_of_a_module_stays_that_of_the_module(tmp_path: Path) -> None:
    found = blocked(tmp_path, body(ENTROPY.format(made="model.fc.weight.detach().requires_grad_(True)")))
    assert found and "EngineModule" not in str(found)


def test_a_tensor_that_a_module_keeps_is_no_parameter_of_it(tmp_path: Path) -> None:
    text = """
    class Policy(Net):
        def __init__(self):
            super().__init__()
            self.alpha = torch.tensor(0.1)
            self.alpha.requires_grad = True

        def tuned(self, y):
            self.alpha_optimizer.zero_grad()
            (self.alpha.exp() * y.mean()).backward()
            self.alpha_optimizer.step()

        def tune(self):
            self.alpha_optimizer = torch.optim.SGD([self.alpha], lr=0.1)

    model = Policy()
    model.tune()
    for x, y in DataLoader(data, batch_size=4):
        model.tuned(y)
    """
    assert "EngineModule(self.alpha_optimizer)," in convert(tmp_path, body(text))
    kept = text.replace("torch.tensor(0.1)", "nn.Parameter(torch.tensor(0.1))")
    assert "EngineModule" not in str(run(tmp_path, train=body(kept)).files[0].after)


@pytest.mark.parametrize("later", ["points = points.detach().numpy()", "for _ in range(2):\n    points = [points]"])
def test_what_a_name_holds_before_and_after_is_not_what_is_trained(later: str, tmp_path: Path) -> None:
    text = """
    import numpy as np


    def sample(n):
        return torch.as_tensor(np.vstack([np.arange(n), np.arange(n)]).T)


    points = sample(4)
    points = nn.Parameter(torch.as_tensor(points))
    optimizer = torch.optim.SGD([points], lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        (points.sum() * y).mean().backward()
        optimizer.step()
    """
    after = convert(tmp_path, body(text) + later + "\n")
    assert "model=EngineModule(optimizer),\n" in after and "engine.step()" in after


def test_what_a_name_gets_in_the_same_loop_may_be_trained(tmp_path: Path) -> None:
    text = """
    from points import load

    points = torch.zeros(4, requires_grad=True)
    for epoch in range(2):
        optimizer = torch.optim.SGD([points], lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            (points.sum() * y).mean().backward()
            optimizer.step()
        points = load("points.npy")
    """
    ((_, message),) = blocked(tmp_path, body(text))
    assert message.startswith("cannot determine the modules")


@pytest.mark.parametrize(
    "made", ["torch.tensor(np.log(args.temperature)).to('cpu')", "nn.Parameter(torch.ones(1) * args.temperature)"]
)
def test_a_tensor_that_an_option_begins_is_beside_modules(made: str, tmp_path: Path) -> None:
    text = body(AGENT).replace('torch.tensor(0.0).to("cpu")', made).replace("__init__(self)", "__init__(self, args)")
    options = "parser = argparse.ArgumentParser()\nparser.add_argument('--temperature', type=float, default=0.1)\n"
    text = text.replace("agent = Agent()", f"{options}agent = Agent(parser.parse_args())")
    after = convert(tmp_path, f"import argparse\nimport numpy as np\n{text}")
    assert "model=EngineModule(self.alpha_optim)" in after


def test_a_tensor_that_requires_gradients_from_where_it_is_given_is_followed(tmp_path: Path) -> None:
    text = """
        def make(image):
            return torch.optim.Adam([image.requires_grad_()])


        image = torch.rand(2, 4).clone()
        optimizer = make(image)
        net = Net()
        for _ in range(3):
            optimizer.zero_grad()
            net(image).mean().backward()
            optimizer.step()
        """
    report = run(tmp_path, train=body(text))
    assert "    model=EngineModule(optimizer),\n" in (report.files[0].after or b"").decode()


LEARNED_INPUT = """
    def invert(device, init=None):
        model = Net()
        if init is not None:
            z = init.to(device)
        else:
            z = torch.randn(1, 4).to(device)
        z = nn.Parameter(z)
        optimizer = torch.optim.Adam([z])
        for step in range(9):
            optimizer.zero_grad()
            model(z).mean().backward()
            optimizer.step()
    """


def test_a_tensor_is_what_its_name_is_last_assigned_before_the_optimizer(tmp_path: Path) -> None:
    assert "model=EngineModule(optimizer),\n" in convert(tmp_path, body(LEARNED_INPUT))
    text = body(LEARNED_INPUT).replace("    z = nn.Parameter(z)\n", "")
    ((code, message),) = blocked(tmp_path, text)
    assert code == Code.PLAIN_ENGINE and "the argument init of invert()" in message
