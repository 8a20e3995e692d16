"""Trials made of several classes, and trials whose methods are called by other code of the project."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import examples
import pytest
from idiom_case import Idiom, idioms

TAKES = "x, y = self.context.to_device(next(dataloader_iter))"
GATE = "if self.context.is_gradient_accumulation_boundary():"


def derived(*lines: str) -> str:
    """A whole trial, and one built on it with these lines in its class."""
    return examples.module() + "\n\nclass Derived(MyTrial):\n" + textwrap.indent("\n".join(lines) + "\n", "    ")


def train(*lines: str) -> str:
    return derived("def train_batch(self, batch, epoch_idx, batch_idx):", *(f"    {line}" for line in lines))


def with_callback(line: str) -> str:
    """A trial that hands itself to a callback with this line in it."""
    callback = f"""
class Peek(pytorch.PyTorchCallback):
    def __init__(self, owner):
        self.owner = owner

    def on_validation_end(self, metrics):
        {line}
"""
    return examples.module("def build_callbacks(self):\n    return {'peek': Peek(self)}\n") + callback


CALLS = {
    "handed on by super()": Idiom(
        train("return super().train_batch(batch, epoch_idx, batch_idx)"),
        ("return super().train_batch(dataloader_iter, epoch_idx, batch_idx)",),
    ),
    "handed on by super() in a branch": Idiom(
        train("if epoch_idx:", "    return super().train_batch(batch, epoch_idx, batch_idx)", "return {}"),
        ("batch = self.context.to_device(next(dataloader_iter))",
         "return super().train_batch(iter([batch]), epoch_idx, batch_idx)"),
    ),
    "trained on twice": Idiom(
        train("for _ in range(2):", "    out = super().train_batch(batch, epoch_idx, batch_idx)", "return out"),
        (GATE, "self.model.step()", "batch = self.context.to_device(next(dataloader_iter))",
         "out = super().train_batch(iter([batch]), epoch_idx, batch_idx)"),
    ),
    "something else given to super()": Idiom(
        train("return super().train_batch(batch=tuple(batch), epoch_idx=0, batch_idx=0)"),
        ("return super().train_batch(dataloader_iter=iter([tuple(batch)]), epoch_idx=0, batch_idx=0)",),
    ),
    "another method of super()": Idiom(
        train("return {**super().train_batch(batch, 0, 0), **super().evaluate_batch(batch)}"),
        ("return {**super().train_batch(iter([batch]), 0, 0), **super().evaluate_batch(iter([batch]))}",),
    ),
    "the base class by its name": Idiom(
        train("return MyTrial.train_batch(self, batch, epoch_idx, batch_idx)"),
        ("return MyTrial.train_batch(self, iter([batch]), epoch_idx, batch_idx)",),
    ),
    "a callback that holds the trial": Idiom(
        with_callback("self.owner.evaluate_batch(torch.ones(2, 4))"),
        ("self.owner.evaluate_batch(iter([torch.ones(2, 4)]))",),
    ),
    "a method that is called as a hook is": Idiom(
        with_callback("self.owner.save('w.pt')").replace(
            "    def build_training", "    def save(self, path):\n        print(path)\n\n    def build_training"
        ),
        ("def save_(self, path):", "self.owner.save_('w.pt')"),
    ),
    "a callback that looks at the trial's model": Idiom(
        with_callback("torch.save(self.owner.model.state_dict(), 'weights.pt')"),
        ("torch.save(self.owner.model.module.state_dict(), 'weights.pt')",),
    ),
    "something that is no trial": Idiom(
        with_callback("self.server.evaluate_batch(torch.ones(2, 4))"),
        ("self.server.evaluate_batch(torch.ones(2, 4))",),
    ),
    "hidden arguments": Idiom(
        train("return super().train_batch(*[batch, epoch_idx, batch_idx])"), blocked=("DSM310", "hidden behind")
    ),
    "a method called backward": Idiom(
        derived("def backward(self):", "    pass", "def build_callbacks(self):", "    self.backward()"),
        ("self.model.step()", "self.backward()"), (GATE,),
    ),
}  # fmt: skip


@idioms(CALLS)
def test_calls_of_the_trials_methods(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


METHODS = {name: textwrap.indent(text, "    ") for name, text in examples.METHODS.items()}


def split(mixin: str, bases: str) -> str:
    """A trial whose ``mixin`` method stands in a class of its own."""
    own = "\n".join(text for name, text in METHODS.items() if name != mixin)
    header = examples.HEADER.replace(
        "class MyTrial(PyTorchTrial)", f"class Part:\n{METHODS[mixin]}\n\nclass MyTrial({bases})"
    )
    return header + own


BASES = {
    "train_batch in a mixin": Idiom(
        split("train_batch", "Part, PyTorchTrial"),
        ("class Part:", "inputs, targets = self.context.to_device(next(dataloader_iter))", "self.model.backward(loss)",
         "self.model.step()", "class MyTrial(Part, DeepSpeedTrial):"),
        (GATE,),
    ),
    "evaluate_batch in a mixin that comes last": Idiom(
        split("evaluate_batch", "PyTorchTrial, Part"),
        ("class Part:", "inputs, targets = self.context.to_device(next(dataloader_iter))"),
    ),
    "two trials as bases": Idiom(
        split("train_batch", "PyTorchTrial").replace("class Part:", "class Part(PyTorchTrial):")
        + "\n\nclass Both(Part, MyTrial):\n    pass\n",
        ("class Part(DeepSpeedTrial):", "self.model.step()", "class MyTrial(DeepSpeedTrial):"),
    ),
}  # fmt: skip


@idioms(BASES)
def test_several_bases(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


def test_a_trial_and_one_built_on_it_share_the_engines_that_helpers_make(tmp_path: Path) -> None:
    helper = (
        "def make(context, model):\n    return context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))\n"
    )
    init = examples.METHODS["__init__"].splitlines(keepends=True)
    init[3] = "    self.optimizer = make(self.context, self.model)\n"
    text = examples.module("".join(init)).replace("class MyTrial", f"{helper}\n\nclass MyTrial", 1)
    text += "\n\nclass Derived(MyTrial):\n    def __init__(self, context):\n        super().__init__(context)\n"
    result = examples.convert(tmp_path, text)
    assert result.after is not None
    after = result.after.decode()
    assert after.count("engines.initialize(ds_config)") == 1
    assert after.index("engines.initialize(ds_config)") < after.index("class Derived")


def test_an_abstract_base_is_converted_for_the_trials_that_are_built_on_it(tmp_path: Path) -> None:
    loaders = {name: text for name, text in METHODS.items() if name.startswith("build")}
    own = "".join(text for name, text in METHODS.items() if name not in loaders)
    text = examples.HEADER + own.replace("torch.optim.SGD(self.model.parameters(), lr=0.1)", "self.make_optimizer()")
    text += "\n\nclass Derived(MyTrial):\n" + "".join(loaders.values())
    text += "    def make_optimizer(self):\n        return torch.optim.SGD(self.model.parameters(), lr=0.1)\n"
    Idiom(text, ("class MyTrial(DeepSpeedTrial):", "class Derived(MyTrial):")).check(tmp_path)


@pytest.mark.parametrize("method", ["__init__", "train_batch", "evaluate_batch", "build_callbacks", "helper"])
def test_a_trial_that_a_method_calls_otherwise_than_self_is_blocked(method: str, tmp_path: Path) -> None:
    """Names of one method are written into another, where they may not exist."""
    source = examples.module(
        "def helper(self):\n    return self.model\n\ndef build_callbacks(self):\n    return {'a': self}\n"
    )
    lines, inside = [], False
    for line in source.splitlines():
        if line.startswith("    def ") or not line.startswith(" "):
            inside = line.startswith(f"    def {method}(")
        lines.append(re.sub(r"\bself\b", "this", line) if inside else line)
    text = "\n".join(lines) + "\n"
    assert text.count("this") > 1
    Idiom(text, blocked=("DSM205", f"{method}() calls the trial this")).check(tmp_path)


@pytest.mark.parametrize("decorator", ["staticmethod", "classmethod"])
def test_a_method_without_the_trial_may_call_its_parameter_anything(decorator: str, tmp_path: Path) -> None:
    source = examples.module("def scale(this):\n    return this\n")
    Idiom(source.replace("    def scale", f"    @{decorator}\n    def scale")).check(tmp_path)
