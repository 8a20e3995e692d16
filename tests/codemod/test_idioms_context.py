"""Where a trial holds its context, and how it travels: through names, attributes, properties, classes and files."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from idiom_case import Idiom, assert_lines, idioms

METHODS = examples.METHODS


def called(name: str, *init: str) -> str:
    """A trial that calls its context ``name`` everywhere; ``init`` are the first lines of its ``__init__``."""
    text = "".join(METHODS.values()).replace("self.context", name)
    first = f"    {name} = context\n"
    assert first in text
    return examples.module(text.replace(first, "".join(f"    {line}\n" for line in init)))


ENGINE = ("self.model.backward(loss)", "self.model.step()")

NAMES = {
    "another attribute": Idiom(called("self.ctx", "self.ctx = context"), ENGINE),
    "one of several set at once": Idiom(called("self.ctx", "self.ctx, self.lr = context, 0.1"), ENGINE),
    "a property": Idiom(
        called("self.ctx", "self._kept = context") + "\n    @property\n    def ctx(self):\n        return self._kept\n",
        ENGINE,
    ),
}

HELPER = "class Stepper:\n    def __init__(self, {0}):\n        self.given = {0}\n\n    def take(self, loss):\n"
TAKE = "        self.given.backward(loss)\n"


@idioms(NAMES)
def test_names_of_the_context(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


def test_a_class_that_is_given_the_context_speaks_to_it_under_its_own_name(tmp_path: Path) -> None:
    text = stepping("Stepper(self.context)").replace("class MyTrial", HELPER.format("c") + TAKE + "\n\nclass MyTrial")
    Idiom(text, ("self.given.engines.backward(loss)",)).check(tmp_path)


def test_a_function_in_another_file_that_is_given_the_context_is_converted_with_the_trial(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def take(the_ctx, loss):\n    the_ctx.backward(loss)\n")
    (tmp_path / "model_def.py").write_text(
        "from steps import take\n"
        + examples.module(METHODS["train_batch"].replace("self.context.backward(loss)", "take(self.context, loss)"))
    )
    changed = {f.path.name: f.after for f in examples.run(tmp_path).files if f.to_write}
    assert changed["steps.py"] == b"def take(the_ctx, loss):\n    the_ctx.engines.backward(loss)\n"
    assert changed["model_def.py"] is not None
    assert_lines(changed["model_def.py"].decode(), ("take(self.context, loss)",))


def stepping(stepper: str) -> str:
    """A trial whose backward is made by a helper object."""
    init = METHODS["__init__"] + f"    self.stepper = {stepper}\n\n"
    return examples.module(
        init + METHODS["train_batch"].replace("self.context.backward(loss)", "self.stepper.take(loss)")
    )


SETTINGS = """

class Settings:
    def __init__(self, lr, global_batch_size{more}):
        self.lr = lr
"""


@pytest.mark.parametrize(
    ("made", "more", "named"),
    [
        ("Settings(**context.get_hparams())", "", False),
        ("Settings(**{k: v for k, v in self.hparams.items()})", "", False),
        ("Settings(**{k: v for k, v in self.hparams.items() if k != 'x'})", "", True),
        ("Settings(**context.get_hparams())", ", **others", True),
        ("AttrDict(**self.hparams)", "", True),
    ],
)
def test_a_hyperparameter_is_added_only_where_no_call_would_refuse_it(
    made: str, more: str, named: bool, tmp_path: Path
) -> None:
    init = METHODS["__init__"] + f"    self.hparams = context.get_hparams()\n    self.settings = {made}\n\n"
    (tmp_path / "model_def.py").write_text(examples.module(init) + SETTINGS.format(more=more))
    config = "entrypoint: model_def:MyTrial\nhyperparameters: {lr: 1, global_batch_size: 4}\n"
    (tmp_path / "const.yaml").write_text(config)

    after = {file.path.name: (file.after or b"").decode() for file in examples.run(tmp_path).files}

    assert ("deepspeed_config: ds_config.json" in after.get("const.yaml", "")) == named
    assert ('hparams.get("deepspeed_config"' in after["model_def.py"]) == named
    assert 'with_name("ds_config.json")' in after["model_def.py"]


def test_accumulation_does_not_reach_a_call_that_takes_all_hyperparameters(tmp_path: Path) -> None:
    made = "Settings(**self.context.get_hparams())"
    init = (
        METHODS["__init__"] + f"    self.settings = {made}\n    self.copy = Settings(**{{**context.get_hparams()}})\n\n"
    )
    (tmp_path / "model_def.py").write_text(examples.module(init) + SETTINGS.format(more=""))
    config = "entrypoint: model_def:MyTrial\nhyperparameters: {lr: 1, global_batch_size: 4}\n"
    (tmp_path / "const.yaml").write_text(config + "optimizations: {aggregation_frequency: 2}\n")

    after = {file.path.name: (file.after or b"").decode() for file in examples.run(tmp_path).files}

    assert "overwrite_deepspeed_args: {gradient_accumulation_steps: 2}" in after["const.yaml"]
    text = " ".join(after["model_def.py"].split())
    condition = 'if name != "overwrite_deepspeed_args"'
    for source in ("self.context.get_hparams()", "({**context.get_hparams()})"):
        assert f"name: value for name, value in {source}.items() {condition}" in text, after["model_def.py"]
