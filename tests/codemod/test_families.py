"""Trials over several files: converted whole or not at all, whichever of the files are named."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.findings import FileResult, Report, Severity, TrialStatus
from guarantees import assert_guaranteed, assert_stable
from idiom_case import assert_lines

BASE = """\
import torch
from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext

from {net} import Net


class BaseTrial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {{"loss": loss}}

    def build_training_data_loader(self):
        return DataLoader(make(), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return DataLoader(make(), batch_size=self.context.get_per_slot_batch_size())
"""
DERIVED = """\
{imports}


class DerivedTrial({base}):
    def evaluate_batch(self, batch):
        inputs, targets = batch
        return {{"loss": self.model(inputs).mean()}}
"""
EVALUATE = "    def evaluate_batch(self, batch):\n        return {'loss': self.model(batch).mean()}\n"
NET = "import torch\n\nNet = torch.nn.Identity\n"
STEP, HIDDEN = "step_optimizer(self.optimizer)", "step_optimizer(self.optimizer, **{})"
WHOLE = BASE.format(net="net") + "\n" + EVALUATE


def tree(folder: Path, files: dict[str, str]) -> dict[str, bytes]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / ".git").mkdir()  # the project is this folder, whichever of its files are named
    return {name: text.encode() for name, text in files.items()}


def statuses(report: Report) -> dict[str, TrialStatus]:
    return {trial.name: trial.status for _, trial in report.trials()}


def changed(report: Report) -> dict[str, FileResult]:
    return {file.path.name: file for file in report.files if file.to_write}


def codes(report: Report, severity: Severity = Severity.BLOCKED) -> set[str]:
    return {finding.code for _, finding in report.findings(severity)}


def assert_converted(report: Report, before: dict[str, bytes], folder: Path, names: set[str]) -> None:
    """All of these files change, each keeps what is guaranteed, and the tree is settled afterwards."""
    assert set(statuses(report).values()) == {TrialStatus.CONVERTED}
    assert codes(report) == set()
    files = {str(f.path.relative_to(folder)): f for f in report.files if f.to_write and f.path.suffix == ".py"}
    assert set(files) == names
    for name, file in files.items():
        assert file.after is not None
        assert_guaranteed(before[name], file.after)
        file.path.write_bytes(file.after)
    assert_stable(folder)


LAYOUTS = {
    "beside": ("base.py", "derived.py", "from base import BaseTrial", "BaseTrial"),
    "module": ("base.py", "derived.py", "import base", "base.BaseTrial"),
    "alias": ("base.py", "derived.py", "from base import BaseTrial as B", "B"),
    "relative": ("pkg/base.py", "pkg/derived.py", "from .base import BaseTrial", "BaseTrial"),
    "relative, above": ("pkg/base.py", "pkg/inner/derived.py", "from ..base import BaseTrial", "BaseTrial"),
    "relative module": ("pkg/base.py", "pkg/derived.py", "from . import base", "base.BaseTrial"),
    "absolute": ("pkg/base.py", "pkg/inner/derived.py", "from pkg.base import BaseTrial", "BaseTrial"),
    "absolute module": ("pkg/base.py", "derived.py", "import pkg.base", "pkg.base.BaseTrial"),
    "from above": ("base.py", "sub/derived.py", "from base import BaseTrial", "BaseTrial"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_base_class_in_another_file_is_converted_along(layout: str, tmp_path: Path) -> None:
    base, derived, imports, name = LAYOUTS[layout]
    files = {base: BASE.format(net="net"), derived: DERIVED.format(imports=imports, base=name), "net.py": NET}
    before = tree(tmp_path, files)
    report = examples.run(tmp_path)
    assert set(statuses(report)) == {"BaseTrial", "DerivedTrial"}
    assert_converted(report, before, tmp_path, {base, derived})
    after = (tmp_path / derived).read_text()
    assert imports in after
    assert_lines(after, (f"class DerivedTrial({name}):", "def evaluate_batch(self, dataloader_iter):",
                         "inputs, targets = self.context.to_device(next(dataloader_iter))"))  # fmt: skip


def test_a_base_class_that_a_package_exports_is_followed(tmp_path: Path) -> None:
    derived = DERIVED.format(imports="from pkg import BaseTrial", base="BaseTrial")
    files = {"pkg/__init__.py": "from .inner import BaseTrial\n",
             "pkg/inner/__init__.py": "from .base import BaseTrial\n",
             "pkg/inner/base.py": BASE.format(net="net"), "derived.py": derived}  # fmt: skip
    before = tree(tmp_path, files)
    assert_converted(examples.run(tmp_path), before, tmp_path, {"pkg/inner/base.py", "derived.py"})


def test_a_chain_of_base_classes_is_converted_from_end_to_end(tmp_path: Path) -> None:
    middle = "from base import BaseTrial\n\n\nclass Middle(BaseTrial):\n    extra = 1\n"
    files = {"base.py": BASE.format(net="net"), "middle.py": middle,
             "derived.py": DERIVED.format(imports="from middle import Middle", base="Middle")}  # fmt: skip
    before = tree(tmp_path, files)
    report = examples.run(tmp_path)
    assert set(statuses(report)) == {"BaseTrial", "Middle", "DerivedTrial"}
    assert_converted(report, before, tmp_path, {"base.py", "derived.py"})


def test_several_trials_of_a_file_are_each_converted(tmp_path: Path) -> None:
    second = WHOLE[WHOLE.index("class ") :].replace("BaseTrial", "SecondTrial")
    before = tree(tmp_path, {"model_def.py": WHOLE + "\n\n" + second, "net.py": NET})
    report = examples.run(tmp_path)
    assert set(statuses(report)) == {"BaseTrial", "SecondTrial"}
    assert_converted(report, before, tmp_path, {"model_def.py"})
    assert (tmp_path / "model_def.py").read_text().count("deepspeed.initialize(") == 2


HELPER = "def optimize(context, loss, optimizer):\n    context.backward(loss)\n    context.step_optimizer(optimizer)\n"
TYPED = HELPER.replace("context,", "context: PyTorchTrialContext,", 1)


@pytest.mark.parametrize("helper", [HELPER, "from determined.pytorch import PyTorchTrialContext\n\n\n" + TYPED])
def test_a_helper_that_is_given_the_context_is_converted_along(helper: str, tmp_path: Path) -> None:
    call = "        optimize(self.context, loss, self.optimizer)\n"
    trial = WHOLE.replace("import Net\n", "import Net\nfrom helper import optimize\n").replace(
        "        self.context.backward(loss)\n        self.context.step_optimizer(self.optimizer)\n", call
    )
    before = tree(tmp_path, {"model_def.py": trial, "helper.py": helper, "net.py": NET})
    assert_converted(examples.run(tmp_path), before, tmp_path, {"model_def.py", "helper.py"})
    assert_lines((tmp_path / "helper.py").read_text(), ("context.engines.backward(loss)",
        "if context.is_gradient_accumulation_boundary():", "context.engines[optimizer].step()"))  # fmt: skip


SCRIPT = """\
from determined import pytorch

from model_def import BaseTrial

if __name__ == "__main__":
    with pytorch.init(hparams={"global_batch_size": 4}) as context:
        pytorch.Trainer(BaseTrial(context), context).fit(max_length=pytorch.Batch(4))
"""


def test_a_script_that_trains_is_converted_along(tmp_path: Path) -> None:
    before = tree(tmp_path, {"model_def.py": WHOLE, "train.py": SCRIPT, "net.py": NET})
    assert_converted(examples.run(tmp_path), before, tmp_path, {"model_def.py", "train.py"})
    assert_lines((tmp_path / "train.py").read_text(), ("from trial_runtime import pytorch",
        "with det_ds.init(hparams={", '"global_batch_size": 4,',
        '"deepspeed_config": str(Path(__file__).with_name("ds_config.json")),', "}) as context:",
        "det_ds.Trainer(BaseTrial(context), context).fit(max_length=pytorch.Batch(4))"))  # fmt: skip


def test_a_package_that_imports_determined_is_converted_with_the_trial_in_it(tmp_path: Path) -> None:
    init = "import determined as det\n\nFORMAT = det.LOG_FORMAT\n"
    before = tree(tmp_path, {"lib/__init__.py": init, "lib/inner/__init__.py": "", "net.py": NET,
                             "lib/inner/model_def.py": WHOLE, "other/__init__.py": init})  # fmt: skip
    report = examples.run(tmp_path)
    assert [f.path.name for f, found in report.findings() if found.code == "DSM017"] == ["__init__.py"]
    assert_converted(report, before, tmp_path, {"lib/__init__.py", "lib/inner/model_def.py"})
    assert (tmp_path / "lib/__init__.py").read_text() == init.replace("determined", "trial_runtime")


CALLER = """\
from {module} import BaseTrial


def smoke(context, loader, {name}):
    {made}
    for index, batch in enumerate(loader):
        print({name}.train_batch(batch, epoch_idx=0, batch_idx=index))
    return {name}.evaluate_batch(batch=batch)
"""


@pytest.mark.parametrize(("module", "name", "made"), [
    ("model_def", "t", "t = BaseTrial(context)"), ("passed_on", "trial", "pass"),
    ("model_def", "t: BaseTrial", "pass"),
])  # fmt: skip
def test_a_file_that_gives_the_trial_batches_gives_it_iterators(
    module: str, name: str, made: str, tmp_path: Path
) -> None:
    text = CALLER.replace("loader, {name}", "loader, " + name)
    text = text.format(module=module, name=name.partition(":")[0], made=made)
    passing = "from model_def import BaseTrial\n"
    before = tree(tmp_path, {"model_def.py": WHOLE, "passed_on.py": passing, "try_it.py": text, "net.py": NET})
    assert_converted(examples.run(tmp_path), before, tmp_path, {"model_def.py", "try_it.py"})
    after = (tmp_path / "try_it.py").read_text()
    assert ".train_batch(iter([batch]), epoch_idx=0" in after
    assert ".evaluate_batch(dataloader_iter=iter([batch]))" in after


def test_a_batch_given_to_what_may_be_the_trial_is_a_review_and_stays(tmp_path: Path) -> None:
    text = CALLER.format(module="model_def", name="it", made="pass")
    tree(tmp_path, {"model_def.py": WHOLE, "try_it.py": text, "net.py": NET})
    report = examples.run(tmp_path)
    found = [(f.path.name, x.line) for f, x in report.findings(Severity.REVIEW) if x.code == "DSM310"]
    assert found == [("try_it.py", 7), ("try_it.py", 8)]


def test_a_file_that_gives_batches_and_imports_no_trial_is_named(tmp_path: Path) -> None:
    helper = "def smoke(trial, batch):\n    return trial.train_batch(batch, 0, 0)\n"
    done = "def smoke(trial, batch):\n    return trial.train_batch(iter([batch]), 0, 0)\n"
    tree(tmp_path, {"model_def.py": WHOLE, "try_it.py": helper, "net.py": NET, "done.py": done})
    report = examples.run(tmp_path)
    found = [(f.path.name, x.line, x.help) for f, x in report.findings(Severity.REVIEW) if x.code == "DSM310"]
    assert found == [("try_it.py", 2, "pass iter([batch]) in place of the batch")]


def test_many_files_that_still_need_determined_are_one_finding(tmp_path: Path) -> None:
    others = {f"lib/part_{n}.py": "import determined\n" for n in range(9)}
    tree(tmp_path, {"model_def.py": WHOLE, "net.py": NET, **others})
    found = [x for _, x in examples.run(tmp_path).findings(Severity.REVIEW) if x.code == "DSM017"]
    assert [x.message.partition(" import ")[0] for x in found] == ["it and 8 other files"]


def test_a_script_that_only_submits_to_a_cluster_is_left_alone(tmp_path: Path) -> None:
    client = "from determined.experimental import client\nfrom model_def import BaseTrial\n\nclient.login()\n"
    before = tree(tmp_path, {"model_def.py": WHOLE, "submit.py": client, "net.py": NET})
    report = examples.run(tmp_path)
    assert "DSM016" in codes(report, Severity.REVIEW)
    assert_converted(report, before, tmp_path, {"model_def.py"})


def test_a_copy_of_determined_in_the_project_is_no_trial(tmp_path: Path) -> None:
    harness = "import determined as det\n\n\nclass PyTorchTrial(det.LegacyTrial):\n" + "".join(
        f"    def {name}(self):\n        pass\n"
        for name in ("train_batch", "evaluate_batch", "build_training_data_loader")
    )
    adapter = "from determined.pytorch import PyTorchTrial\n\n\nclass LightningAdapter(PyTorchTrial):\n    pass\n"
    vendored = {
        "determined/__init__.py": "from determined import pytorch\n",
        "determined/pytorch/__init__.py": "from determined.pytorch._trial import PyTorchTrial\n",
        "determined/pytorch/_trial.py": harness,
        "determined/pytorch/_lightning.py": adapter,
    }
    before = tree(tmp_path, {"model_def.py": WHOLE, "net.py": NET, **vendored})
    report = examples.run(tmp_path)
    assert not [file.path for file in report.files if "determined" in file.path.parts]
    assert_converted(report, before, tmp_path, {"model_def.py"})


USERS = {
    "inference": "import torch\nfrom determined.experimental import client\nfrom model_def import Net\n\n"
    "path = client.get_experiment(1).top_checkpoint().download()\n",
    "a Core API program": "import determined as det\nfrom model_def import Net\n\nwith det.core.init() as context:\n"
    "    context.train.report_progress(1.0)\n",
    "a trial that is loaded": "from determined.pytorch import load_trial_from_checkpoint_path\n"
    "from model_def import Net\n\nload_trial_from_checkpoint_path('c')\n",
}


@pytest.mark.parametrize("source", USERS.values(), ids=list(USERS))
def test_a_file_that_only_uses_the_trials_module_stays_and_need_not_be_named(source: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    before = tree(folder, {"model_def.py": WHOLE, "use.py": source, "net.py": NET})
    assert_converted(examples.run(folder / "model_def.py", folder / "net.py"), before, folder, {"model_def.py"})
    (folder / "model_def.py").write_text(WHOLE)
    report = examples.run(folder)
    (used,) = (file for file in report.files if file.path.name == "use.py")
    assert {finding.code for finding in used.findings} <= {"DSM016", "DSM017"}
    assert not used.to_write


SPLIT = {
    "base.py": BASE.format(net="net"),
    "derived.py": DERIVED.format(imports="from base import BaseTrial", base="BaseTrial"),
    "net.py": NET,
}


@pytest.mark.parametrize(("named", "missing"), [("base.py", "derived.py"), ("derived.py", "base.py")])
def test_a_trial_of_which_a_file_was_not_named_is_blocked_and_names_it(
    named: str, missing: str, tmp_path: Path
) -> None:
    tree(tmp_path, SPLIT)
    report = examples.run(tmp_path / named)
    if named == "base.py":  # the base class does not need the class built on it; that one is not this run's
        assert set(statuses(report)) <= {"BaseTrial"}
    blocked = [finding for _, finding in report.findings(Severity.BLOCKED)]
    assert blocked and all(f.code == "DSM014" for f in blocked)
    assert missing in blocked[0].message
    assert str(tmp_path / missing) in str(blocked[0].help)
    assert changed(report) == {}


def test_all_files_named_one_by_one_are_as_good_as_their_folder(tmp_path: Path) -> None:
    before = tree(tmp_path, SPLIT)
    report = examples.run(tmp_path / "derived.py", tmp_path / "base.py")
    assert_converted(report, before, tmp_path, {"base.py", "derived.py"})


def test_trials_that_share_a_helper_stand_and_fall_together(tmp_path: Path) -> None:
    helped = WHOLE.replace("import Net\n", "import Net\nfrom helper import note\n").replace(
        "self.context.backward(loss)", "note(self.context, loss)"
    )
    other = helped.replace("BaseTrial", "OtherTrial").replace(STEP, HIDDEN)
    helper = (
        "from determined.pytorch import PyTorchTrialContext as C\n\n\ndef note(c: C, loss):\n    c.backward(loss)\n"
    )
    tree(tmp_path, {"one.py": helped, "two.py": other, "helper.py": helper, "net.py": NET})
    report = examples.run(tmp_path)
    assert statuses(report) == {"BaseTrial": TrialStatus.BLOCKED, "OtherTrial": TrialStatus.BLOCKED}
    assert codes(report) == {"DSM015", "DSM302"}
    together = next(f for _, f in report.findings() if f.code == "DSM015")
    assert together.trial == "BaseTrial" and "OtherTrial" in together.message
    assert changed(report) == {}


def test_trials_that_share_a_helper_without_the_trial_api_do_not_wait_for_each_other(tmp_path: Path) -> None:
    helped = WHOLE.replace("import Net\n", "import Net\nfrom helper import note\n")
    other = helped.replace("BaseTrial", "OtherTrial").replace(STEP, HIDDEN)
    helper = "from determined.pytorch import PyTorchTrialContext\n\n\ndef note(c: PyTorchTrialContext):\n    pass\n"
    tree(tmp_path, {"one.py": helped, "two.py": other, "helper.py": helper, "net.py": NET})
    report = examples.run(tmp_path)
    assert statuses(report) == {"BaseTrial": TrialStatus.CONVERTED, "OtherTrial": TrialStatus.BLOCKED}
    assert {name for name in changed(report) if name.endswith(".py")} == {"one.py"}


def test_trials_that_share_nothing_do_not_wait_for_each_other(tmp_path: Path) -> None:
    other = WHOLE.replace("BaseTrial", "OtherTrial").replace(STEP, HIDDEN)
    tree(tmp_path, {"one.py": WHOLE, "two.py": other, "net.py": NET})
    report = examples.run(tmp_path)
    assert statuses(report) == {"BaseTrial": TrialStatus.CONVERTED, "OtherTrial": TrialStatus.BLOCKED}
    assert {name for name in changed(report) if name.endswith(".py")} == {"one.py"}


OLD = """\
from determined.pytorch import PyTorchTrial


class OldTrial(PyTorchTrial):
    def build_model(self):
        return Net()

    def optimizer(self, model, rate):
        return make(model)

    def train_batch(self, batch, model, epoch_idx, batch_idx):
        return {"loss": model(batch)}
"""
LIGHTNING = """\
from determined.pytorch import lightning


class LitTrial(lightning.LightningAdapter):
    def train_batch(self, batch, epoch_idx, batch_idx):
        return {}
"""
DEEPSPEED = """\
from determined.pytorch.deepspeed import DeepSpeedTrial


class DoneTrial(DeepSpeedTrial):
    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        return {}
"""
KERAS = """\
from determined.keras import TFKerasTrial


class KerasTrial(TFKerasTrial):
    def build_model(self):
        return None
"""
ESTIMATOR = """\
from determined import estimator


class ClassifierTrial(estimator.EstimatorTrial):
    def build_estimator(self):
        return None
"""
NOT_IMPORTED = """\
class BareTrial(PyTorchTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        return {}
"""
UNKNOWN = """\
from company.training import Base


class Classifier(Base):
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.net(batch)
        self.context.backward(loss)
        return {"loss": loss}
"""
FOREIGN = """\
import some_library as lib
from determined.pytorch import DataLoader


class LibraryTrial(lib.BaseTrial):
    def build_training_data_loader(self):
        return None

    def evaluate_batch(self, batch):
        return {}
"""


@pytest.mark.parametrize(
    ("source", "status", "code"),
    [
        pytest.param(LIGHTNING, TrialStatus.UNSUPPORTED_API, "DSM012", id="Lightning"),
        pytest.param(DEEPSPEED, TrialStatus.ALREADY_DEEPSPEED, None, id="DeepSpeed"),
        pytest.param(FOREIGN, TrialStatus.BLOCKED, "DSM013", id="a library's base class"),
        pytest.param(KERAS, TrialStatus.UNSUPPORTED_API, "DSM018", id="Keras"),
        pytest.param(ESTIMATOR, TrialStatus.UNSUPPORTED_API, "DSM018", id="an estimator"),
        pytest.param(NOT_IMPORTED, TrialStatus.BLOCKED, "DSM013", id="PyTorchTrial that is not imported"),
        pytest.param(UNKNOWN, TrialStatus.BLOCKED, "DSM013", id="a base class that cannot be found"),
    ],
)
def test_what_cannot_or_need_not_be_converted_is_recognised(
    source: str, status: TrialStatus, code: str | None, tmp_path: Path
) -> None:
    result = examples.convert(tmp_path, source)
    assert [trial.status for trial in result.trials] == [status]
    assert {finding.code for finding in result.findings} == ({code} if code else set())
    assert all(finding.help and finding.line == result.trials[0].line for finding in result.findings)
    assert not result.to_write


@pytest.mark.parametrize("source", [OLD, LIGHTNING, DEEPSPEED, FOREIGN, KERAS, UNKNOWN])
def test_what_is_not_converted_does_not_stop_its_neighbour(source: str, tmp_path: Path) -> None:
    tree(tmp_path, {"other.py": source, "model_def.py": WHOLE, "net.py": NET})
    report = examples.run(tmp_path)
    assert statuses(report)["BaseTrial"] is TrialStatus.CONVERTED
    assert {name for name in changed(report) if name.endswith(".py")} == {"model_def.py"}


@pytest.mark.parametrize(
    ("facade", "taken"),
    [("from determined.pytorch import PyTorchTrial, DataLoader\n", "from facade import PyTorchTrial\n"),
     ("", "from determined.pytorch import *\n")],
    ids=["passed on by another file", "star import"],
)  # fmt: skip
def test_a_base_class_that_is_not_taken_from_determined_itself_is_reported(
    facade: str, taken: str, tmp_path: Path
) -> None:
    (tmp_path / "facade.py").write_text(facade)
    source = examples.module().replace(
        "from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial", "from x import DataLoader, LRScheduler"
    )
    result = examples.convert(tmp_path, taken + source)
    assert [(f.code, f.message) for f in result.findings if f.severity is Severity.BLOCKED] == [
        ("DSM013", "MyTrial does not take PyTorchTrial from determined itself")
    ]


def test_a_name_that_two_classes_of_a_file_share_is_blocked(tmp_path: Path) -> None:
    once = examples.module()
    line = once.count("\n") + once[: once.index("class MyTrial")].count("\n") + 1
    result = examples.convert(tmp_path, once + once)
    assert [(f.code, f.severity) for f in result.findings] == [("DSM015", Severity.BLOCKED)]
    assert f"line {line} " in result.findings[0].message
    assert not result.to_write


@pytest.mark.parametrize("helper", [
    "def total(context):\n    return context.get_experiment_config()['searcher']['max_length']['batches']\n",
    "class total:\n    def __init__(self, context):\n        self.given = context\n\n    def read(self):\n"
    "        return self.given.get_experiment_config()['searcher']['max_length']['batches']\n",
], ids=["function", "class"])  # fmt: skip
def test_a_helper_that_imports_nothing_reads_the_lengths_that_the_config_had(helper: str, tmp_path: Path) -> None:
    text = "from helpers import total\n" + WHOLE.replace(
        "context = context\n", "context = context\n        total(context)\n"
    )
    before = tree(tmp_path, {"model_def.py": text, "net.py": NET, "helpers.py": helper})
    (tmp_path / "const.yaml").write_text(
        "name: x\nentrypoint: model_def:BaseTrial\noptimizations: {aggregation_frequency: 2}\n"
        "hyperparameters: {global_batch_size: 8}\nsearcher: {name: single, metric: loss, max_length: {batches: 8}}\n"
    )
    assert_converted(examples.run(tmp_path), before, tmp_path, {"model_def.py", "helpers.py"})
    assert "get_experiment_config(in_micro_batches=True)['searcher']" in (tmp_path / "helpers.py").read_text()
