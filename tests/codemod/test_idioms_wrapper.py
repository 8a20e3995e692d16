"""Attributes set on a wrapped model, and what looks like them and reached the model all along."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Severity

INIT = """\
def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    net = Net()
    {above}
    self.model = self.context.wrap_model(net)
    {below}
    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    self.criterion = nn.MSELoss()
"""
HELPERS = """

def set_rate(rate, net):
    net.rate = rate


def read_rate(net):
    net.layer.rate = net.rate


class Holder:
    def __init__(self, model):
        self.model = model
"""


def reviews(folder: Path, block: str) -> list[tuple[str, str]]:
    """The lines that DSM352 is about, each with its message."""
    text = examples.module(block) + HELPERS
    result = examples.convert(folder, text)
    assert examples.problems(result) == []
    found = [f for f in result.findings if f.code == "DSM352"]
    assert all(f.severity is Severity.REVIEW for f in found)
    return [(text.splitlines()[f.line - 1].strip(), f.message) for f in found]


def in_training(*lines: str) -> str:
    usual = examples.METHODS["train_batch"].splitlines(keepends=True)
    return "".join([*usual[:1], *(f"    {line}\n" for line in lines), *usual[1:]])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["self.model.rate = 0.1"], "self.model.rate"),
        (["self.model.rate += 0.1"], "self.model.rate"),
        (["self.model.rate: float = 0.1"], "self.model.rate"),
        (["self.model.rate, other = 0.1, 2"], "self.model.rate"),
        (["net = self.model", "net.rate = 0.1"], "net.rate"),
        (["setattr(self.model, 'rate', 0.1)"], "self.model.rate"),
        (["setattr(self.model, name, 0.1)"], "an attribute of self.model"),
        (["set_rate(0.1, self.model)"], "net.rate"),
        (["set_rate(0.1, net=self.model)"], "net.rate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "; ".join(value),
)
def test_what_the_wrapper_kept_is_reported(lines: list[str], said: str, tmp_path: Path) -> None:
    ((line, message),) = reviews(tmp_path, in_training(*lines))
    assert message == (
        f"{said} is set on the model now: on several ranks DistributedDataParallel kept it, and the forward pass "
        "never saw it"
    )
    assert line in (lines[-1], "net.rate = rate")


@pytest.mark.parametrize(
    "line",
    [
        "self.model.layer.rate = 0.1",
        "self.model.layers[0].rate = 0.1",
        "self.model.module.rate = 0.1",
        "self.model.require_backward_grad_sync = False",
        "self.rate = self.model.rate",
        "self.criterion.rate = 0.1",
        "setattr(self, 'rate', self.model)",
        "setattr(self.model.layer, 'rate', 0.1)",
        "read_rate(self.model)",
        "print(self.model.rate == 0.1)",
    ],
)
def test_what_reached_the_model_is_not_reported(line: str, tmp_path: Path) -> None:
    assert reviews(tmp_path, in_training(line)) == []


def test_in_the_set_up_only_what_follows_the_wrap_is_reported(tmp_path: Path) -> None:
    assert reviews(tmp_path, INIT.format(above="net.rate = 0.1", below="")) == []
    assert len(reviews(tmp_path, INIT.format(above="", below="self.model.rate = 0.1"))) == 1


def test_a_method_called_before_the_wrap_meets_the_model_itself(tmp_path: Path) -> None:
    methods = """
def prepare(self) -> None:
    self.model.rate = 0.1
"""
    early = INIT.format(above="self.model = net; self.prepare()", below="")
    late = INIT.format(above="", below="self.prepare()")
    assert reviews(tmp_path, early + methods) == []
    assert len(reviews(tmp_path, late + methods)) == 1


def test_each_of_several_models_is_reported(tmp_path: Path) -> None:
    train = examples.GAN_TRAIN.replace(
        "    loss_d", "    self.generator.rate = self.discriminator.rate = 1\n    loss_d", 1
    )
    assert len(reviews(tmp_path, examples.GAN_INIT + train)) == 2


def test_training_past_the_wrapper_names_gradients_and_buffers(tmp_path: Path) -> None:
    train = examples.METHODS["train_batch"].replace("self.model(inputs)", "self.model.encode(inputs)")
    result = examples.convert(tmp_path, examples.module(train))
    (message,) = [f.message for f in result.findings if f.code == "DSM301" and f.severity is Severity.REVIEW]
    assert "left each its own gradients and buffers" in message
    assert "the buffers stay each rank's own" in message


STRUCTURE = """

def layers(net):
    return list(net.named_children())


def groups(net):
    return [p for name, p in net.named_parameters() if name.startswith("fc")]
"""


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("parts = list(self.model.children())", "self.model.children()"),
        ("parts = layers(self.model)", "net.named_children()"),
        ("chosen = groups(self.model)", 'name.startswith("fc")'),
        ("chosen = [p for n, p in self.model.named_parameters() if n == 'fc.weight']", "n == 'fc.weight'"),
        ("chosen = [p for n, p in list(self.model.named_parameters()) if n.split('.')[0] in 'ab']", "n.split('.')"),
        ("chosen = {n for n, m in self.model.named_modules() if n in ('fc', 'head')}", "n in ('fc', 'head')"),
        ("chosen = [p for n, p in self.model.named_parameters() if re.match('fc', n)]", "re.match('fc', n)"),
    ],
    ids=lambda value: value,
)
def test_what_the_wrapper_changed_in_names_and_children_is_reported(line: str, place: str, tmp_path: Path) -> None:
    text = examples.module(INIT.format(above="pass", below=line)) + STRUCTURE
    result = examples.convert(tmp_path, text)
    assert examples.problems(result) == []
    [found] = [f for f in result.findings if f.code == "DSM352"]
    assert found.severity is Severity.REVIEW
    assert place in found.message
    assert place in text.splitlines()[found.line - 1]


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("parts = layers(net)", "pass"),
        ("pass", "decay = [p for n, p in self.model.named_parameters() if 'bias' in n]"),
        ("pass", "decay = [p for n, p in self.model.named_parameters() if n.endswith('.bias')]"),
        ("pass", "self.shadow = {n: p.clone() for n, p in self.model.named_parameters() if n not in self.skipped}"),
        ("pass", "count = sum(p.numel() for p in self.model.parameters())"),
        ("pass", "kinds = [m for m in self.model.modules() if isinstance(m, nn.Linear)]"),
    ],
)
def test_names_and_children_that_the_wrapper_left_alone_are_not(above: str, below: str, tmp_path: Path) -> None:
    text = examples.module(INIT.format(above=above, below=below)) + STRUCTURE
    assert [f for f in examples.convert(tmp_path, text).findings if f.code == "DSM352"] == []


BESIDE = """
def embed(net, x):
    return net.head(net.encode(x))


def run(net, x):
    return net(net.encode(x))


def rate(net, value):
    net.rate = value


def optimize(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def log(loss, optimizer):
    print(loss.item(), optimizer.param_groups[0]["lr"])
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("self.model(inputs)", "beside.embed(self.model, inputs)", ("DSM301", "beside.embed() goes past Distributed")),
        ("self.model(inputs)", "beside.run(self.model, inputs)", None),
        (
            "inputs, targets = batch",
            "inputs, targets = batch; beside.rate(self.model, 1)",
            ("DSM352", "net.rate is set"),
        ),
        (
            "self.context.step_optimizer(self.optimizer)",
            "self.context.step_optimizer(self.optimizer); beside.optimize(loss, self.optimizer)",
            ("DSM301", "a helper calls loss.backward() past the context, in beside.py"),
        ),
        ("return {", "beside.log(loss, self.optimizer)\n    return {", None),
    ],
)
@pytest.mark.parametrize("style", ["import beside", "from beside import embed, log, optimize, rate, run"])
def test_functions_in_a_file_that_stays_are_seen_where_they_are_called(
    old: str, new: str, found: tuple[str, str] | None, style: str, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text(BESIDE)
    new = new if style == "import beside" else new.replace("beside.", "")
    train = examples.METHODS["train_batch"].replace(old, new)
    text = f"{style}\n{examples.module(train)}"
    result = examples.convert(tmp_path, text)
    concerned = [f for f in result.findings if f.severity in (Severity.REVIEW, Severity.BLOCKED)]
    if found is None:
        assert concerned == []
    else:
        [finding] = concerned
        message = found[1] if style == "import beside" else found[1].replace("beside.embed", "embed")
        assert finding.code == found[0] and message in finding.message
        assert new.partition("(")[0] in text.splitlines()[finding.line - 1]
