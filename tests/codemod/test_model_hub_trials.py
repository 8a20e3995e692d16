"""Trials on ``model_hub``'s base classes: that of huggingface converts, that of mmdetection is refused."""

from __future__ import annotations

import ast
from pathlib import Path

import examples
import huggingface_project
import pytest
from ds_migrate.findings import FileResult, Report, Severity, TrialStatus
from ds_migrate.options import Options
from ds_migrate.project.library_bases import LIBRARY_SOURCE, TRANSFORMER_TRIAL
from guarantees import assert_guaranteed, assert_stable

LOADERS = """
    def build_training_data_loader(self):
        return make_loader(self.context)

    def build_validation_data_loader(self):
        return make_loader(self.context)

    def evaluate_batch(self, batch):
        return {"loss": self.model(**batch)[0]}
"""
TRIAL = f"""\
import model_hub.huggingface as hf


class MyTrial(hf.BaseTransformerTrial):
{LOADERS}"""


def converted(report_or_file: FileResult) -> str:
    assert examples.problems(report_or_file) == []
    assert report_or_file.after is not None
    return report_or_file.after.decode()


def blocked(result: FileResult) -> list[tuple[str, int, str]]:
    return [(f.code, f.line, f.message) for f in result.findings if f.severity is Severity.BLOCKED]


def test_a_subclass_is_built_on_the_class_with_an_engine_and_its_methods_take_an_iterator(tmp_path: Path) -> None:
    huggingface_project.write_project(tmp_path, "StepTrial")
    report = examples.run(tmp_path)
    assert {t.name: t.status for _, t in report.trials()} == dict.fromkeys(
        ("PlainTrial", "StepTrial", "InitTrial"), TrialStatus.CONVERTED
    )
    after = converted(file_named(report, "model_def.py"))
    assert "import trial_runtime.model_hub.huggingface as hf\n" in after
    assert "from trial_runtime.model_hub import utils\n" in after
    assert "class PlainTrial(hf.BaseTransformerDeepSpeedTrial):\n" in after
    assert "self.context.engines[self.optimizer].step()\n" in after  # StepTrial steps as the base class does
    assert "self.context.engines.initialize(ds_config)\n" in after  # InitTrial does not call super().__init__()
    assert after.count("next(dataloader_iter)") == 2  # PlainTrial evaluates, StepTrial trains
    assert file_named(report, "ds_config.json").after is not None
    assert {file.path.name for file in report.files if file.to_write} == {
        "model_def.py",
        "const.yaml",
        "ds_config.json",
    }
    assert_guaranteed((tmp_path / "model_def.py").read_bytes(), after.encode())
    for file in report.files:
        if file.after is not None:
            file.path.write_bytes(file.after)
    assert_stable(tmp_path)


def file_named(report: Report, name: str) -> FileResult:
    return next(file for file in report.files if file.path.name == name)


@pytest.mark.parametrize(
    ("imports", "base", "expected"),
    [
        ("import model_hub.huggingface", "model_hub.huggingface.BaseTransformerTrial",
         ("import trial_runtime.model_hub.huggingface",
          "trial_runtime.model_hub.huggingface.BaseTransformerDeepSpeedTrial")),
        ("from model_hub import huggingface", "huggingface.BaseTransformerTrial",
         ("from trial_runtime.model_hub import huggingface", "huggingface.BaseTransformerDeepSpeedTrial")),
        ("from model_hub.huggingface import BaseTransformerTrial, OptimizerKwargs", "BaseTransformerTrial",
         ("from trial_runtime.model_hub.huggingface import BaseTransformerDeepSpeedTrial, OptimizerKwargs",
          "BaseTransformerDeepSpeedTrial")),
        ("from model_hub.huggingface import BaseTransformerTrial as Base", "Base",
         ("from trial_runtime.model_hub.huggingface import BaseTransformerDeepSpeedTrial as Base", "Base")),
        ("from model_hub.huggingface._trial import BaseTransformerTrial", "BaseTransformerTrial",
         ("from trial_runtime.model_hub.huggingface import BaseTransformerDeepSpeedTrial",
          "BaseTransformerDeepSpeedTrial")),
    ],
)  # fmt: skip
def test_every_style_of_import_is_converted(imports: str, base: str, expected: tuple[str, str], tmp_path: Path) -> None:
    after = converted(examples.convert(tmp_path, f"{imports}\n\n\nclass MyTrial({base}):\n{LOADERS}"))
    assert after.splitlines()[0] == expected[0]
    assert f"class MyTrial({expected[1]}):" in after
    assert_stable_after(tmp_path, after)


def assert_stable_after(folder: Path, after: str) -> None:
    (folder / "model_def.py").write_text(after)
    assert_stable(folder)


def test_a_call_of_the_base_class_follows_its_new_name(tmp_path: Path) -> None:
    init = "\n    def __init__(self, context):\n        hf.BaseTransformerTrial.__init__(self, context)\n"
    after = converted(examples.convert(tmp_path, TRIAL + init))
    assert "        hf.BaseTransformerDeepSpeedTrial.__init__(self, context)\n" in after


def test_classes_built_on_a_subclass_in_another_file_are_converted_with_it(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(TRIAL)
    (tmp_path / "model_def.py").write_text(
        "from base import MyTrial\n\n\nclass Best(MyTrial):\n"
        "    def train_batch(self, batch, epoch_idx, batch_idx):\n"
        "        return {'loss': super().train_batch(batch, epoch_idx, batch_idx)}\n"
    )
    (tmp_path / "data.py").write_text("from model_hub.utils import numpify\n")
    (tmp_path / "base.py").write_text(TRIAL.replace("\n\n", "\nimport data\n\n", 1))
    report = examples.run(tmp_path)
    assert "train_batch(dataloader_iter, epoch_idx, batch_idx)}" in converted(file_named(report, "model_def.py"))
    assert "BaseTransformerDeepSpeedTrial" in converted(file_named(report, "base.py"))
    assert converted(file_named(report, "data.py")) == "from trial_runtime.model_hub.utils import numpify\n"


def test_two_unrelated_trials_on_the_base_class_are_two_conversions(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(TRIAL)
    (tmp_path / "two.py").write_text(
        TRIAL.replace("MyTrial", "Other") + "\n    def train_batch(self, batch, epoch_idx, batch_idx):\n"
        "        self.context.step_optimizer(self.optimizer, auto_zero_grads=False)\n"
    )
    report = examples.run(tmp_path)
    assert {t.name: t.status for _, t in report.trials()} == {
        "MyTrial": TrialStatus.CONVERTED,
        "Other": TrialStatus.BLOCKED,
    }


def test_what_is_wrapped_beside_the_base_class_is_blocked(tmp_path: Path) -> None:
    source = TRIAL + (
        "\n    def __init__(self, context):\n        super().__init__(context)\n"
        "        self.teacher = context.wrap_model(make_teacher())\n"
    )
    assert blocked(examples.convert(tmp_path, source)) == [
        ("DSM205", 17, "BaseTransformerTrial.__init__ makes the engine of the model that it wraps, and MyTrial wraps "
         "another model or optimizer beside it")
    ]  # fmt: skip


def test_summed_gradients_are_blocked_where_the_base_class_steps(tmp_path: Path) -> None:
    config = huggingface_project.write_project(tmp_path, "PlainTrial", aggregation=2)
    config.write_text(config.read_text() + "  average_aggregated_gradients: false\n")
    result = file_named(examples.run(tmp_path), "model_def.py")
    assert [message for _, _, message in blocked(result) if "average_aggregated_gradients: false" in message]


def test_the_official_package_has_no_such_class_for_deepspeed(tmp_path: Path) -> None:
    result = examples.convert(tmp_path, TRIAL, options=Options(target="determined"))
    assert blocked(result) == [
        ("DSM205", 4, "MyTrial is built on BaseTransformerTrial, and determined has none for DeepSpeed")
    ]


def test_a_name_that_nothing_serves_is_blocked(tmp_path: Path) -> None:
    source = TRIAL.replace("\n\n", "\nfrom model_hub.utils import no_such_helper\n\n", 1)
    assert blocked(examples.convert(tmp_path, source)) == [
        ("DSM101", 2, "model_hub.utils.no_such_helper has no counterpart in trial_runtime")
    ]


@pytest.mark.parametrize(("value", "reviews"), [("true", 1), ("false", 0)])
def test_mixed_precision_of_the_base_class_is_reviewed_where_a_config_asks_for_it(
    value: str, reviews: int, tmp_path: Path
) -> None:
    config = huggingface_project.write_project(tmp_path, "PlainTrial")
    config.write_text(config.read_text().replace("use_apex_amp: false", f"use_apex_amp: {value}"))
    result = file_named(examples.run(tmp_path), "model_def.py")
    found = [f for f in result.findings if f.code == "DSM340" and f.severity is Severity.REVIEW]
    assert [f.message.startswith("use_apex_amp: ") for f in found] == [True] * reviews


def test_a_base_class_in_the_project_is_the_one_that_is_meant(tmp_path: Path) -> None:
    package = tmp_path / "model_hub"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "huggingface.py").write_text(examples.module().replace("class MyTrial", "class BaseTransformerTrial"))
    (tmp_path / "model_def.py").write_text(TRIAL)
    report = examples.run(tmp_path)
    assert "class BaseTransformerTrial(DeepSpeedTrial):" in converted(file_named(report, "huggingface.py"))
    assert "import model_hub.huggingface as hf\n" in converted(file_named(report, "model_def.py"))


def test_mmdetection_is_refused_with_its_reason(tmp_path: Path) -> None:
    source = "from model_hub.mmdetection import MMDetTrial\n\n\nclass Detector(MMDetTrial):\n    pass\n"
    result = examples.convert(tmp_path, source)
    assert blocked(result) == [
        ("DSM013", 4, "Detector is built on model_hub.mmdetection.MMDetTrial, and mmdetection is no longer maintained")
    ]
    assert not result.to_write


def test_the_class_that_is_read_has_what_the_runtimes_class_has() -> None:
    (read,) = [node for node in ast.parse(LIBRARY_SOURCE).body if isinstance(node, ast.ClassDef)]
    assert read.name == TRANSFORMER_TRIAL
    folder = Path(__file__).parents[2] / "runtime/trial_runtime/model_hub/huggingface"
    own = [
        node
        for name in ("_parts.py", "_pytorch_trial.py")
        for cls in ast.parse((folder / name).read_text()).body
        if isinstance(cls, ast.ClassDef)
        for node in cls.body
        if isinstance(node, ast.FunctionDef)
    ]
    public = {f.name: [a.arg for a in f.args.args] for f in own if not f.name.startswith("_") or f.name == "__init__"}
    assert {f.name: [a.arg for a in f.args.args] for f in read.body if isinstance(f, ast.FunctionDef)} == public
    assert attributes(read) <= {name for function in own for name in attributes(function)}
    assert {"model", "optimizer", "lr_scheduler", "grad_clip_fn", "context"} <= attributes(read)


def attributes(tree: ast.AST) -> set[str]:
    """Return what is set on ``self``."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }  # fmt: skip
