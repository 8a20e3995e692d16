"""Functions that plain training loops call several times: each call makes separate modules and optimizers."""

from __future__ import annotations

from pathlib import Path

from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, body, convert

TWO = """
    def make_net():
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        return net


    def make_optimizer(net, rate):
        params = [p for p in net.parameters()]
        return torch.optim.SGD(params, lr=rate)


    def train(net, optimizer, loader):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()


    teacher, student = make_net(), make_net()
    first = make_optimizer(teacher, 0.1)
    second = make_optimizer(student, 0.2)
    loader = DataLoader(data, batch_size=4)
    """
UNCLIPPED = body(TWO).replace("        nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n", "")
TRAINED = "train(teacher, first, loader)\ntrain(student, second, loader)\n"


def test_each_call_of_a_function_makes_a_separate_module_and_optimizer(tmp_path: Path) -> None:
    after = convert(tmp_path, body(TWO) + TRAINED)
    assert after.count('"gradient_clipping": 1.0,') == 2 and "clip_grad" not in after
    assert "    model=teacher,\n    optimizer=first," in after and "    model=student,\n    optimizer=second," in after
    assert "train(teacher, teacher_engine, loader)\ntrain(student, student_engine, loader)\n" in after
    assert "def train(net, engine, loader):" in after and "engine.backward(F.mse_loss(net(x), y), scale_" in after


def test_an_optimizer_that_is_returned_with_its_model_is_followed(tmp_path: Path) -> None:
    text = """
    def build(rate):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return model, optimizer


    loader = DataLoader(data, batch_size=4)
    a, optimizer_a = build(0.1)
    b, optimizer_b = build(0.2)
    for x, y in loader:
        for model, optimizer in ((a, optimizer_a), (b, optimizer_b)):
            pass
        optimizer_a.zero_grad()
        F.mse_loss(a(x), y).backward()
        optimizer_a.step()
        optimizer_b.zero_grad()
        F.mse_loss(b(x), a(x).detach()).backward()
        optimizer_b.step()
    """
    after = convert(tmp_path, body(text))
    assert "a_engine, *_ = deepspeed.initialize(\n    model=a,\n    optimizer=optimizer_a," in after
    assert "b_engine.backward(F.mse_loss(b(x), a(x).detach()), scale_wrt_gas=False)\n    b_engine.step()" in after


def test_engines_of_modules_that_cannot_be_separated_clear_no_gradients(tmp_path: Path) -> None:
    text = UNCLIPPED.replace("    return net\n", "    make_net.last = net\n    return net\n")
    after = convert(tmp_path, text + TRAINED)
    assert after.count(", keep_gradients=True)") == 2 and "        engine.optimizer.zero_grad()\n" in after


def test_modules_in_a_comprehension_are_refused(tmp_path: Path) -> None:
    old, new = "teacher, student = make_net(), make_net()", "teacher, student = [make_net() for _ in range(2)]"
    assert old in UNCLIPPED
    found = blocked(tmp_path, UNCLIPPED.replace(old, new) + TRAINED)
    assert {code for code, _ in found} == {Code.PLAIN_ENGINE}


def test_two_optimizers_of_one_module_have_an_engine_each(tmp_path: Path) -> None:
    after = convert(tmp_path, UNCLIPPED.replace("make_optimizer(student", "make_optimizer(teacher") + TRAINED)
    assert "train(teacher, first_engine, loader)\ntrain(student, second_engine, loader)\n" in after
    assert after.count("    model=teacher,\n") == after.count(", keep_gradients=True)") == 2


def test_clipping_of_another_module_than_the_optimizers_is_refused(tmp_path: Path) -> None:
    ((code, _),) = blocked(tmp_path, body(TWO) + TRAINED.replace("train(student, second", "train(teacher, second"))
    assert code == Code.PLAIN_CLIPPING


def test_engines_of_separate_functions_have_the_short_name(tmp_path: Path) -> None:
    loop = "".join(f"    {line}\n" for line in LOOP.splitlines())
    after = convert(tmp_path, f"{HEADER}\n\ndef first():\n{loop}\n\ndef second():\n{loop}\n\nfirst()\nsecond()\n")
    assert after.count("    engine, *_ = deepspeed.initialize(\n") == 2 and after.count("        engine.step()\n") == 2


def test_a_function_that_calls_itself_with_its_argument_is_followed_once(tmp_path: Path) -> None:
    text = """
    def visit(net, depth):
        if depth:
            visit(net, depth - 1)


    def make_net():
        net = nn.Linear(4, 1)
        visit(net, 3)
        return net


    other = make_net()
    model = make_net()
    """
    after = convert(tmp_path, body(text) + LOOP.replace("model = Net()\n", ""))
    assert "    model=model," in after


BY_METHOD = """
    class Trainer:
        def __init__(self):
            self.first, self.second = Net(), nn.Linear(1, 1)
            self.optim_first = self.get_optimizer("SGD", self.first.parameters())
            self.optim_second = self.get_optimizer("Adam", self.second.parameters())

        def get_optimizer(self, kind, params):
            if kind == "SGD":
                return torch.optim.SGD(params, lr=0.1)
            optimizer = torch.optim.Adam(params)
            return optimizer

        def step(self, x, y):
            self.optim_first.zero_grad()
            self.optim_second.zero_grad()
            F.mse_loss(self.second(self.first(x)), y).backward()
            self.optim_first.step()
            self.optim_second.step()


    trainer = Trainer()
    for x, y in DataLoader(data, batch_size=4):
        trainer.step(x, y)
    """


def test_each_call_of_a_method_makes_a_separate_optimizer(tmp_path: Path) -> None:
    after = convert(tmp_path, body(BY_METHOD))
    assert "model=self.first,\n            optimizer=self.optim_first," in after
    assert "model=self.second,\n            optimizer=self.optim_second," in after


def test_a_method_that_is_called_on_what_it_has_returned_is_followed_to_an_end(tmp_path: Path) -> None:
    text = """
        class Stage:
            def __init__(self):
                self.net = Net()

            def parts(self):
                return {"first": Stage(), "second": Stage()}


        parts = Stage().parts()
        for _ in range(3):
            parts = parts["first"].parts()
        other = parts["second"]
        MAKE_MODEL
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x) + other.net(x).detach(), y).backward()
            optimizer.step()
        """
    assert "engine.step()" in convert(tmp_path, body(text))


def test_functions_whose_results_wrap_their_own_arguments_are_read_to_the_end(tmp_path: Path) -> None:
    wrapping = """
        def first(x):
            return second(x).join(x)


        def second(x):
            return first(x).join(x)


        first(1)
        """
    assert "engine.step()" in convert(tmp_path, body(wrapping) + LOOP)


def test_engines_of_one_function_are_made_in_the_order_of_its_calls(tmp_path: Path) -> None:
    names = ["d", "e", "a", "c", "b", "f"]
    made = "".join(f"{name} = Net()\n{name}.to(device)\n" for name in names)
    made += "".join(f"optimizer_{name} = make_optimizer({name}, 0.1)\n" for name in names)
    steps = "".join(
        f"    optimizer_{name}.zero_grad()\n"
        f"    F.mse_loss({name}(x.to(device)), y.to(device)).backward()\n    optimizer_{name}.step()\n"
        for name in names
    )
    text = HEADER + "def make_optimizer(net, rate):\n    return torch.optim.SGD(net.parameters(), lr=rate)\n\n\n"
    text += 'loader = DataLoader(data, batch_size=4)\ndevice = torch.device("cuda")\n'
    after = convert(tmp_path, f"{text}{made}for x, y in loader:\n{steps}")
    assert [line.split("_")[0] for line in after.split("\n") if "_engine, *_ = deepspeed.init" in line] == names
    assert after.count("device = d_engine.device\n") == 1 and after.count("engine.device\n") == 1
