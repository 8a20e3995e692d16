"""A blocked trial does not keep others from being converted that share no changed code with it, and unused code is no
part of a trial."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import examples
import pytest
from ds_migrate.findings import FileResult, Report, Severity, TrialStatus

# A use of the context that no rule converts.
BLOCKING = "self.keep = self.context.step_optimizer"
BLOCKED, CONVERTED = TrialStatus.BLOCKED, TrialStatus.CONVERTED


def module(block: str = "", between: str = "", bases: str = "PyTorchTrial") -> str:
    """Return a file with GoodTrial and BadTrial; ``block`` is a statement of BadTrial's ``__init__``."""
    text = examples.module().replace("(PyTorchTrial)", f"({bases})")
    head, at, body = text.partition("class MyTrial")
    own = body.replace("self.context = context\n", f"self.context = context\n        {block or 'pass'}\n")
    good = (at + body).replace("MyTrial", "GoodTrial")
    return f"{head}{between}{good}\n\n{(at + own).replace('MyTrial', 'BadTrial')}"


def converted(folder: Path, text: str, others: dict[str, str] | None = None) -> tuple[Report, FileResult]:
    for name, content in {"model_def.py": text, **(others or {})}.items():
        (folder / name).write_text(content)
    report = examples.run(folder)
    return report, next(file for file in report.files if file.path.name == "model_def.py")


def statuses(report: Report) -> dict[str, TrialStatus]:
    return {trial.name: trial.status for _, trial in report.trials()}


def class_in(text: str, name: str) -> str:
    found = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0].strip()


def test_the_sibling_of_a_blocked_trial_is_converted_and_the_blocked_one_keeps_every_byte(tmp_path: Path) -> None:
    text = module(f"{BLOCKING}  # step_optimizer, to be called later")
    report, result = converted(tmp_path, text)
    after = (result.after or b"").decode()
    assert statuses(report) == {"GoodTrial": CONVERTED, "BadTrial": BLOCKED}
    assert class_in(after, "BadTrial") == class_in(text, "BadTrial")
    assert "class GoodTrial(DeepSpeedTrial)" in after and "deepspeed.initialize(" in class_in(after, "GoodTrial")
    kept = next(line for line in text.splitlines() if line.startswith("from determined.pytorch"))
    assert kept in after and "from trial_runtime.pytorch.deepspeed import" in after
    blocked = [f for f in result.findings if f.severity is Severity.BLOCKED]
    assert [(f.trial, f.code) for f in blocked] == [("BadTrial", "DSM390")]
    assert blocked[0].line == text.splitlines().index(f"        {BLOCKING}  # step_optimizer, to be called later") + 1
    assert [f.code for f in result.findings if f.severity is Severity.REVIEW] == ["DSM015"]
    settled, again = converted(tmp_path, after)
    assert statuses(settled)["BadTrial"] is BLOCKED and not again.to_write
    fixed = converted(tmp_path, after.replace(BLOCKING, "pass"))[1]
    assert "PyTorchTrial" not in (fixed.after or b"").decode() and b"determined" not in (fixed.after or b"")


LOADERS = """\
class Loading:
    context: PyTorchTrialContext

    def build_training_data_loader(self):
        return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())


"""
HELPER = "def step(context: PyTorchTrialContext, optimizer):\n    context.step_optimizer(optimizer)\n\n\n"
REGISTRY = """\
STEPS = {}


def register(function):
    STEPS[function.__name__] = function
    return function


@register
"""
STEPPING = """\
class Base(PyTorchTrial):
    def advance(self):
        self.context.step_optimizer(self.optimizer)


"""
BASE = """\
class Base(PyTorchTrial):  # data of both
    limit = 1

    def rows(self):
        return make_data()


"""
SHARED = {
    "a base that steps": (STEPPING, "Base", "Base"),
    "a mixin without engines": ("class Data:\n    def rows(self):\n        return [1]\n\n\n", "Data, PyTorchTrial", ""),
    "a mixin with a loader": (LOADERS, "Loading, PyTorchTrial", ""),
    "a helper that steps": (HELPER, "PyTorchTrial", "step"),
    "a helper in a registry": (REGISTRY + HELPER, "PyTorchTrial", "step"),
}


@pytest.mark.parametrize("case", SHARED)
def test_shared_code_that_would_change_keeps_both(case: str, tmp_path: Path) -> None:
    between, bases, shared = SHARED[case]
    text = module(BLOCKING, between, bases)
    if between is LOADERS:
        own = examples.METHODS["build_training_data_loader"]
        text = text.replace(textwrap.indent(own, "    "), "")
    if HELPER in between:
        call = "STEPS['st' + 'ep']" if "STEPS" in between else "step"
        text = text.replace("self.context.step_optimizer(self.optimizer)", f"{call}(self.context, self.optimizer)")
    report, result = converted(tmp_path, text)
    found = statuses(report)
    assert (found["GoodTrial"], found["BadTrial"]) == (BLOCKED if shared else CONVERTED, BLOCKED)
    moved = [f.message for f in result.findings if f.severity is Severity.BLOCKED and f.trial == "GoodTrial"]
    assert moved == ([f"GoodTrial shares {shared} with BadTrial, which is blocked"] if shared else [])
    assert result.to_write is not bool(shared)
    if between is LOADERS:
        assert LOADERS in (result.after or b"").decode()


def test_a_base_without_engines_becomes_a_plain_class_for_both(tmp_path: Path) -> None:
    text = module(BLOCKING, BASE, "Base").replace("make_data(), batch", "self.rows(), batch")
    report, result = converted(tmp_path, text)
    after = (result.after or b"").decode()
    assert statuses(report) == {"GoodTrial": CONVERTED, "BadTrial": BLOCKED}
    assert class_in(after, "Base") == class_in(BASE, "Base").replace("(PyTorchTrial)", "")
    assert class_in(after, "BadTrial") == class_in(text, "BadTrial").replace("(Base)", "(Base, PyTorchTrial)")
    assert "class GoodTrial(Base, DeepSpeedTrial):" in after
    (review,) = [f for f in result.findings if f.severity is Severity.REVIEW]
    assert review.message.endswith("but Base, which is a plain class now: trials name PyTorchTrial beside it")
    settled, again = converted(tmp_path, after)
    assert statuses(settled)["BadTrial"] is BLOCKED and not again.to_write


def test_a_base_of_trials_in_another_file_stays_a_trial(tmp_path: Path) -> None:
    third = module("", "", "Base").replace("GoodTrial", "Third").partition("\n\nclass BadTrial")[0]
    others = {"third.py": third.replace("PyTorchTrial, ", "") + "\n\nfrom model_def import Base\n"}
    found = statuses(converted(tmp_path, module(BLOCKING, BASE, "Base"), others)[0])
    assert found["GoodTrial"] is found["BadTrial"] is BLOCKED


MAIN = """\
from determined import pytorch
from model_def import BadTrial, GoodTrial

if __name__ == "__main__":
    with pytorch.init(hparams={{"global_batch_size": 4}}) as context:
        pytorch.Trainer({trial}, context).fit(max_length=pytorch.Batch(2))
"""


@pytest.mark.parametrize(
    ("trial", "good"),
    [("GoodTrial(context)", CONVERTED), ("BadTrial(context)", CONVERTED),
     ("(BadTrial if context.get_hparam('x') else GoodTrial)(context)", BLOCKED)],
    ids=["the good one", "the blocked one", "either"],
)  # fmt: skip
def test_a_script_goes_with_the_trial_that_it_runs(trial: str, good: TrialStatus, tmp_path: Path) -> None:
    report, _ = converted(tmp_path, module(BLOCKING), {"main.py": MAIN.format(trial=trial)})
    assert statuses(report) == {"GoodTrial": good, "BadTrial": BLOCKED}
    [main] = [(f.after or b"").decode() for f in report.files if f.path.name == "main.py"] or [""]
    assert ("det_ds.init(" in main) == (trial == "GoodTrial(context)")


def test_a_trial_that_the_user_skips_stays_beside_the_others(tmp_path: Path) -> None:
    text = module().replace("class BadTrial", "# ds-migrate: skip\nclass BadTrial")
    report, result = converted(tmp_path, text)
    assert statuses(report)["GoodTrial"] is CONVERTED
    assert class_in((result.after or b"").decode(), "BadTrial") == class_in(text, "BadTrial")


def test_each_config_goes_with_its_trial(tmp_path: Path) -> None:
    config = "entrypoint: model_def:{}\nhyperparameters:\n  global_batch_size: 8\n"
    configs = {f"{name}.yaml": config.format(f"{name}Trial") for name in ("Good", "Bad")}
    report, _ = converted(tmp_path, module(BLOCKING), configs)
    written = {file.path.name: (file.after or b"").decode() for file in report.files if file.to_write}
    assert "Bad.yaml" not in written and "deepspeed_config: " in written["Good.yaml"]
    path = written["Good.yaml"].partition("deepspeed_config: ")[2].split("\n")[0]
    assert json.loads(written[path])["zero_optimization"]["stage"] == 0


LEARNER = """\


class Learner:
    def __init__(self, context: PyTorchTrialContext, net):
        self.net = context.wrap_model(net)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.net.parameters()))
"""


@pytest.mark.parametrize(
    ("more", "is_unused"),
    [
        ("", True),
        ("\n\ndef make(context):\n    return Learner(context, Net())\n", True),  # which nothing calls either
        ("\n\ndef wrap(context: PyTorchTrialContext, net):\n    return context.wrap_model(net)\n", True),
        ("\n\nLEARNERS = {'learner': Learner}\n", False),
        ("\n\nKIND = 'Learner'\n", False),
        ("\n\ndef find(name):\n    return globals()[name]\n", False),
        ("\n\nclass Better(Learner):\n    pass\n\n\nlearners = [Better]\n", False),
        ("\n\n__all__ = ['Learner']\n", False),
    ],
)
def test_a_helper_that_nothing_names_is_no_part_of_the_trial(more: str, is_unused: bool, tmp_path: Path) -> None:
    text = examples.module() + LEARNER + more
    report, result = converted(tmp_path, text)
    after = (result.after or b"").decode()
    assert statuses(report) == {"MyTrial": CONVERTED}
    assert ("context.engines" in after) is not is_unused
    if is_unused:
        assert "context.wrap_model(net)" in class_in(after, "Learner") and "determined" not in after
        reviews = [f for f in result.findings if f.severity is Severity.REVIEW]
        assert {f.code for f in reviews} == {"DSM390"} and len(reviews) == 1 + ("def wrap" in more)
        assert "nothing in the files of MyTrial uses Learner" in reviews[0].message
        assert not converted(tmp_path, after)[1].to_write


def test_a_helper_that_a_package_exports_is_part_of_the_trial(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "learner.py").write_text(
        "import torch\nfrom determined.pytorch import PyTorchTrialContext\n" + LEARNER
    )
    exporting = {"lib/__init__.py": "from lib.learner import Learner\n"}
    text = examples.module().replace("import torch\n", "import lib\nimport torch\n", 1)
    report, _ = converted(tmp_path, text, exporting)
    assert statuses(report) == {"MyTrial": CONVERTED}
    learner = next((file.after or b"").decode() for file in report.files if file.path.name == "learner.py")
    assert "context.engines.add_model(net)" in learner
