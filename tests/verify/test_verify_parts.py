"""The parts of ds-verify: limits, marked batches, the selection of a config, working copies, curves, explanations."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import ds_verify
import jsonschema
import numpy as np
import pytest
import torch
from ds_migrate.findings import Finding, Severity
from ds_migrate.options import Options
from ds_migrate.report.html_parts import contents
from ds_verify import cli, host_batches, weights
from ds_verify.compare import Difference, compare
from ds_verify.console import progress_bar, progress_reporter, show
from ds_verify.cuda_stand_in import cuda_on_cpu
from ds_verify.failure import Failure, write_failure
from ds_verify.html import _filled_table, render
from ds_verify.job import Job, JobRunner
from ds_verify.json_report import to_json
from ds_verify.record import Key, Record
from ds_verify.report import Verification, speed
from ds_verify.runs import Progress, Round, Settings, TrainingRun
from ds_verify.sample_metrics import SampleCounts, jumps
from ds_verify.select_trial import TrialSelection, plan_of, select_trial
from ds_verify.tolerance import Limits
from ds_verify.verdict import Outcome, advice, explanations, outcome
from ds_verify.working_copies import Sides, open_sides, working_copy
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from trial_runtime._ranks import Process, PythonProcess
from trial_runtime._svg_curves import curves
from trial_runtime.pytorch.deepspeed import EngineModule
from trial_runtime.train.config.errors import ConfigError

FIXTURES = Path(__file__).parents[2] / "fixtures"
LOSS = Key("training", 3, "loss")
BIAS = Key("state", 9, "model.bias")


def record(*values: tuple[Key, object]) -> Record:
    made = Record()
    for key, value in values:
        made.add(key, value)
    return made


class TestLimits:
    def test_a_difference_counts_from_ten_times_the_spread_of_the_control(self) -> None:
        original, control = record((LOSS, 1.0)), record((LOSS, 1.0 + 1e-4))
        limits = Limits.measured(original, control, floor=1e-6)
        assert compare(original, record((LOSS, 1.0 + 9e-4)), limits) == []
        assert len(compare(original, record((LOSS, 1.0 + 11e-4)), limits)) == 1

    def test_the_floor_holds_where_the_control_does_not_part(self) -> None:
        original = record((LOSS, 1.0))
        limits = Limits.measured(original, original, floor=1e-6)
        assert compare(original, record((LOSS, 1.0 + 9e-7)), limits) == []
        assert len(compare(original, record((LOSS, 1.0 + 2e-6)), limits)) == 1

    def test_values_above_one_are_compared_relative_to_their_size(self) -> None:
        original = record((LOSS, 1000.0))
        limits = Limits.measured(original, original, floor=1e-6)
        assert compare(original, record((LOSS, 1000.0 + 9e-4)), limits) == []

    def test_a_spread_counts_from_its_step_on_and_not_before(self) -> None:
        early, late = Key("training", 1, "loss"), Key("training", 9, "loss")
        original = record((early, 1.0), (late, 1.0))
        limits = Limits.measured(original, record((early, 1.0), (late, 1.1)), floor=1e-6)
        assert limits.of(early, np.array(1.0)) == 1e-6
        assert limits.of(late, np.array(1.0)) == pytest.approx(1.0)

    def test_a_weight_that_the_control_moves_is_named_as_driven_by_noise(self) -> None:
        limits = Limits.measured(record((BIAS, [0.0])), record((BIAS, [0.5])), floor=1e-6)
        assert limits.driven_by_noise() == {"model.bias": 0.5}

    def test_the_proof_is_called_weak_from_where_rounding_moves_a_metric_visibly(self) -> None:
        steps = [Key("training", step, "loss") for step in (1, 2, 3)]
        original = record(*((key, 2.0) for key in steps))
        control = record((steps[0], 2.0), (steps[1], 2.0 + 1e-6), (steps[2], 2.0 + 1e-2))
        assert Limits.measured(original, original, floor=1e-6).weak_from(original) is None
        assert Limits.measured(original, control, floor=1e-6).weak_from(original) == 3

    def test_a_tolerance_that_is_given_replaces_both(self) -> None:
        original = record((LOSS, 1.0))
        limits = Limits.measured(original, record((LOSS, 2.0)), floor=1e-6, given=1e-3)
        assert len(compare(original, record((LOSS, 1.01)), limits)) == 1


class TestSampleMetrics:
    """A metric that counts samples may differ by one sample, where rounding has moved the runs apart at all."""

    def training(self, *accuracies: float, losses: list[float], name: str = "accuracy") -> TrainingRun:
        made = Record()
        made.add(Key("setup", 0, "micro-batches in an optimizer step"), 1)
        for step, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True), 1):
            made.add_metrics("training", step, {name: accuracy, "loss": loss})
        return TrainingRun("run", made, {"training_samples": 8, "validation_samples": [], "precision": "float32"})

    def differences(self, original: TrainingRun, converted: TrainingRun) -> list[str]:
        found = outcome(Round(1, original, original, converted, Settings()))
        return [f"{difference.key.name} {difference.key.step}" for difference in found.differences]

    def test_one_sample_may_fall_otherwise_once_rounding_parts_the_runs(self) -> None:
        losses, parted = [0.5, 0.4, 0.3], [0.5, 0.4 + 1e-7, 0.3]
        original = self.training(0.5, 0.625, 0.75, losses=losses)
        assert self.differences(original, self.training(0.5, 0.625, 0.875, losses=parted)) == []
        assert self.differences(original, self.training(0.5, 0.625, 1.0, losses=parted)) == ["accuracy 3"]
        # Before the runs part, the weights are the same and so is every sample.
        assert self.differences(original, self.training(0.625, 0.625, 0.75, losses=parted)) == ["accuracy 1"]
        assert self.differences(original, self.training(0.5, 0.625, 0.875, losses=losses)) == ["accuracy 3"]

    def test_a_sample_that_the_control_moves_does_not_make_the_proof_weak(self) -> None:
        losses = [0.5, 0.4, 0.3]
        original, control = (self.training(0.5, 0.625, last, losses=losses) for last in (0.75, 0.625))
        found = outcome(Round(1, original, control, original, Settings()))
        assert found.same and found.weak_from is None

    @pytest.mark.parametrize(
        ("values", "step"),
        [
            ([0.5, 0.25, 0.375], 0.125),
            ([50.0, 62.5, 50.0], 12.5),
            ([4.0, 5.0, 3.0], 1.0),
            ([1.0, 2.0, 3.0], None),  # a counter
            ([0.5, 0.5, 0.5], None),  # a constant
            ([0.5, 0.31, 0.375], None),
            ([0.5, float("nan"), 0.375], None),
            ([9.0, 8.0, 9.0], None),
        ],
    )
    def test_a_metric_counts_samples_when_each_value_is_a_whole_number_of_them(
        self, values: list[float], step: float | None
    ) -> None:
        made = self.training(*values, losses=[0.11, 0.12, 0.13]).record
        found = jumps([made, made], SampleCounts(training=8))
        assert found == ({} if step is None else {("training", "accuracy"): pytest.approx(step)})

    def test_a_mean_over_validation_batches_of_other_sizes_counts_samples_too(self) -> None:
        steps = (4, 8)
        accuracy = [(3 / 4 + 2 / 4 + 1 / 2) / 3, (2 / 4 + 2 / 4 + 2 / 2) / 3]
        made = record(*((Key("validation", step, "acc"), value) for step, value in zip(steps, accuracy, strict=True)))
        assert jumps([made], SampleCounts(validation=(4, 4, 2))) == {("validation", "acc"): pytest.approx(1 / 6)}


class TestCudaOnCpu:
    def test_what_is_sent_to_cuda_stays_on_the_cpu(self) -> None:
        with cuda_on_cpu():
            made = [
                torch.ones(2).cuda(),
                torch.ones(2).to("cuda:0"),
                torch.ones(2).to(0),
                torch.ones(2).to(device="cuda", dtype=torch.float64),
                torch.zeros(2, device="cuda"),
                torch.tensor([1.0], device=torch.device("cuda", 0)),
                torch.zeros(2).new_zeros(2, device="cuda"),
                torch.zeros_like(torch.ones(1), device=0),
                torch.ones(2).type("torch.cuda.DoubleTensor"),
                torch.cuda.FloatTensor([1.0]),  # type: ignore[attr-defined]
                torch.ones(2).pin_memory(),
                torch.nn.Linear(1, 1).cuda().weight,
                torch.nn.Linear(1, 1).to(torch.device("cuda")).weight,
            ]
            torch.cuda.set_device(0)
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
                torch.cuda.Event(enable_timing=True).record()
        assert {tensor.device.type for tensor in made} == {"cpu"}
        assert made[3].dtype == made[8].dtype == torch.float64

    def test_a_file_from_a_gpu_is_read(self, tmp_path: Path) -> None:
        torch.save(torch.ones(3), tmp_path / "file")
        with cuda_on_cpu():
            for location in ("cuda:0", torch.device("cuda"), None):
                assert torch.load(tmp_path / "file", map_location=location).device.type == "cpu"

    def test_questions_get_true_answers_and_everything_is_as_it_was_afterwards(self) -> None:
        before = {name: getattr(torch.cuda, name) for name in dir(torch.cuda)}
        available = torch.cuda.is_available(), torch.cuda.device_count()
        with cuda_on_cpu():
            assert (torch.cuda.is_available(), torch.cuda.device_count()) == available
            assert torch.device("cuda", 1) == torch.device(type="cuda", index=1) != torch.device("cpu")
        assert {name: getattr(torch.cuda, name) for name in before} == before

    def test_a_batch_that_is_sent_to_cuda_is_no_longer_on_the_host(self) -> None:
        with cuda_on_cpu():
            moved = [host_batches.marked(torch.ones(1)).cuda(), host_batches.marked(torch.ones(1)).to("cuda")]
        assert [type(tensor) for tensor in moved] == [torch.Tensor, torch.Tensor]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Traceback:\n  File x\nValueError: one\n  two\n", "ValueError: one two"),
        ("Traceback:\n  File x\na.b.FirstError: no\n\nDuring:\n  File y\nRuntimeError", "RuntimeError"),
        ("loading\nKilled\n", "Killed"),
        (
            "Traceback:\n  File x\nRuntimeError: Application timeout caused pair closure\n",
            "RuntimeError: Application timeout caused pair closure: "
            "a rank waited in a collective that another one never joined",
        ),
        ("", "ended without output"),
    ],
)
def test_a_failure_is_reported_by_its_error_on_one_line(text: str, reason: str) -> None:
    assert Failure(0, text).reason == reason


def test_a_failure_that_was_not_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(file: Path, _: str) -> None:
        file.touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_text", killed)
        write_failure(tmp_path / "run", 1, {"text": "", "step": 0})
    assert not list(tmp_path.glob("*.error"))
    write_failure(tmp_path / "run", 1, {"text": "", "step": 0})
    assert [path.name for path in tmp_path.iterdir()] == ["run.rank1.error"]


def test_a_tensor_that_is_recorded_under_another_name_is_found() -> None:
    one, other = record((Key("state", 1, "model.w"), [1.0])), record((Key("state", 1, "engine.w"), [1.0]))
    assert len(compare(one, other)) == 2
    other.aliases["model.w"] = "engine.w"
    assert compare(one, other) == []


class TestMarkedBatches:
    @property
    def batch(self) -> dict[str, object]:
        return {"x": torch.ones(2, 3), "n": 4, "pair": (torch.zeros(2), "text")}

    def test_a_marked_tensor_that_meets_weights_raises(self) -> None:
        marked = host_batches.marked(self.batch)
        with pytest.raises(host_batches.NotMovedError, match=r"context\.to_device"):
            torch.nn.Linear(3, 1)(marked["x"])

    def test_a_moved_tensor_is_a_plain_one(self) -> None:
        moved = host_batches.marked(self.batch)["x"].to(torch.device("cpu"))
        assert type(moved) is torch.Tensor
        assert torch.nn.Linear(3, 1)(moved).shape == (2, 1)

    @pytest.mark.parametrize(
        "move", [lambda t: t.float(), lambda t: t * 2, lambda t: t[:1], lambda t: t.to(torch.float64)]
    )
    def test_work_on_the_host_keeps_the_mark(self, move: object) -> None:
        assert type(move(host_batches.marked(self.batch)["x"])) is host_batches.HostTensor  # type: ignore[operator]

    def test_containers_keep_their_shape_and_other_values(self) -> None:
        marked = host_batches.marked(self.batch)
        assert marked["n"] == 4 and marked["pair"][1] == "text"
        assert type(marked["pair"][0]) is host_batches.HostTensor

    def test_a_module_without_weights_may_work_on_the_host_but_not_on_a_mixture(self) -> None:
        on_host = host_batches.marked(torch.ones(3))
        host_batches.refuse_in_forward(torch.nn.ReLU(), (on_host,))
        with pytest.raises(host_batches.NotMovedError, match="MSELoss"):
            host_batches.refuse_in_forward(torch.nn.MSELoss(), (torch.ones(3), on_host))


class TestWeights:
    def test_modules_are_found_in_containers_and_in_the_users_objects(self) -> None:
        class Holder:
            def __init__(self) -> None:
                self.inner = torch.nn.Linear(1, 1)

        class Trial:
            def __init__(self) -> None:
                self.model = torch.nn.Linear(1, 1)
                self.several = {"a": [torch.nn.Linear(1, 1)]}
                self.holder = Holder()

        names = [name for name, _ in weights.modules_of(Trial(), str(Path(__file__).parent))]
        assert names == ["model", "several.a.0", "holder.inner"]

    def test_a_module_under_two_names_is_recorded_once_with_the_other_as_alias(self) -> None:
        class Trial:
            model = None

        trial = Trial()
        trial.model = torch.nn.Linear(1, 1, bias=False)  # type: ignore[assignment]
        trial.again = trial.model  # type: ignore[attr-defined]
        found, aliases = weights.tensors_of(trial, "/nowhere")
        assert list(found) == ["model.weight"] and aliases == {"again.weight": "model.weight"}

    def test_a_parameter_of_no_module_has_the_name_that_the_trial_gives_it(self) -> None:
        class Trial:
            def __init__(self) -> None:
                self.model = torch.nn.Linear(1, 1, bias=False)
                self.weights = {"loss": torch.nn.Parameter(torch.zeros(2))}

        trial = Trial()
        optimizer = torch.optim.SGD([*trial.model.parameters(), trial.weights["loss"]], lr=0.1)
        before, _ = weights.tensors_of(trial, "/nowhere")
        trial.engine = EngineModule(optimizer, model=trial.model)  # type: ignore[attr-defined]
        after, aliases = weights.tensors_of(trial, "/nowhere")
        assert list(before) == list(after) == ["model.weight", "weights.loss"]
        assert aliases == {"engine.model.weight": "model.weight", "engine.parameter_0": "weights.loss"}

    @given(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    def test_a_nudge_moves_every_weight_by_the_least_there_is(self, dtype: torch.dtype) -> None:
        weight = torch.nn.Parameter(torch.randn(50).to(dtype))
        before = weight.detach().clone()
        weights.move_by_one_ulp({"w": weight})
        up, down = (torch.nextafter(before, torch.full_like(before, end)) for end in (torch.inf, -torch.inf))
        assert bool(((weight == up) | (weight == down)).all()) and not bool((weight == before).any())


TRIAL = """
from determined.pytorch import PyTorchTrial

class A(PyTorchTrial):
    pass
"""


class TestTrialSelection:
    def project(self, folder: Path, **configs: str) -> Path:
        (folder / "model.py").write_text(TRIAL)
        for name, text in configs.items():
            (folder / f"{name}.yaml").write_text(f"entrypoint: model:A\nsearcher: {{name: single}}\n{text}")
        return folder

    def test_a_config_without_search_spaces_comes_first(self, tmp_path: Path) -> None:
        space = "hyperparameters: {lr: {type: log, base: 10, minval: -4, maxval: -1}}"
        chosen = select_trial(self.project(tmp_path, adaptive=space, const="hyperparameters: {lr: 0.1}"))
        assert str(chosen.config) == "const.yaml" and chosen.picked == {}

    def test_a_search_space_gives_its_first_value_unless_one_is_picked(self, tmp_path: Path) -> None:
        spaces = (
            "hyperparameters: {lr: {type: log, minval: -3, maxval: -1}, n: {type: int, minval: 2, maxval: 9}, "
            "net: {depth: {type: categorical, vals: [4, 8]}}}"
        )
        chosen = select_trial(self.project(tmp_path, search=spaces), picks={"n": 5})
        plan = plan_of(chosen, tmp_path, ranks=1)
        assert chosen.picked == {"lr": pytest.approx(1e-3), "net.depth": 4}
        assert plan.hparams == {"lr": pytest.approx(1e-3), "n": 5, "net": {"depth": 4}}

    def test_another_searcher_and_storage_do_not_matter(self, tmp_path: Path) -> None:
        project = self.project(tmp_path)
        (project / "a.yaml").write_text(
            "entrypoint: model:A\nsearcher: {name: adaptive_asha, max_trials: 9, max_length: {epochs: 2}}\n"
            "checkpoint_storage: {type: shared_fs, host_path: /nowhere}\nresources: {slots_per_trial: 64}\n"
        )
        plan = plan_of(select_trial(project), project, ranks=2)
        assert (plan.slots, plan.storage.root) == (2, None)

    def test_a_trial_without_a_config_is_run_by_its_class(self, tmp_path: Path) -> None:
        chosen = select_trial(self.project(tmp_path), picks={"lr": 0.5})
        assert (chosen.trial, chosen.document["hyperparameters"]) == ("model:A", {"lr": 0.5})

    def test_several_trials_are_an_error_that_names_them(self, tmp_path: Path) -> None:
        self.project(tmp_path, a="")
        (tmp_path / "b.yaml").write_text("entrypoint: model:B\nsearcher: {name: single}\n")
        with pytest.raises(ConfigError, match=r"model:A, model:B.*--trial"):
            select_trial(tmp_path)

    def test_a_hyperparameter_that_no_config_has_is_an_error_and_drops_no_config(self, tmp_path: Path) -> None:
        project = self.project(tmp_path, a="hyperparameters: {lr: 0.1}", b="hyperparameters: {lr: 0.1, width: 3}")
        assert str(select_trial(project, picks={"width": 4}).config) == "b.yaml"
        for config in (None, Path("a.yaml")):
            with pytest.raises(ConfigError, match=r"there is no such hyperparameter \(did you mean 'lr'\?\)"):
                select_trial(project, config, picks={"lrr": 1})

    def test_what_other_configs_train_is_named(self, tmp_path: Path) -> None:
        project = self.project(tmp_path, a="resources: {slots_per_trial: 4}")
        (tmp_path / "b.yaml").write_text("entrypoint: model:B\nsearcher: {name: single}\n")
        for chosen in (select_trial(project, trial="A"), select_trial(project, Path("a.yaml"))):
            assert (chosen.trial, chosen.others, chosen.slots) == ("model:A", ("model:B",), 4)


def test_a_working_copy_copies_code_and_links_the_rest(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "package").mkdir(parents=True)
    (source / "data").mkdir()
    (source / ".git").mkdir()
    for name in ("a.py", "package/b.py", "data/images.bin", "weights.pt"):
        (source / name).write_text(name)
    copy = working_copy(source, tmp_path / "copy")
    assert (copy / "package/b.py").read_text() == "package/b.py" and not (copy / "package").is_symlink()
    assert (copy / "data").is_symlink() and (copy / "weights.pt").is_symlink()
    assert not (copy / ".git").exists()
    (copy / "a.py").write_text("changed")
    assert (source / "a.py").read_text() == "a.py"


def test_a_finding_that_a_comment_accepts_may_still_explain_a_difference(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    text = (FIXTURES / "guide/before/model_def.py").read_text(encoding="utf-8")
    hook = (
        "\n\nclass Saved(PyTorchCallback):\n"
        "    def on_checkpoint_end(self, checkpoint_dir):  # ds-migrate: ignore[DSM350]\n"
        "        print(checkpoint_dir)\n"
    )
    text = f"from determined.pytorch import PyTorchCallback\n{text}{hook}"
    (tmp_path / "trial/model_def.py").write_text(text, encoding="utf-8")
    sides = open_sides(tmp_path / "trial", tmp_path, None, None, Options())
    assert [(name, f.severity) for name, f in sides.findings if f.code == "DSM350"] == [
        ("model_def.py", Severity.REVIEW)
    ]


def test_a_curve_leaves_out_what_is_not_finite_and_draws_zero_at_the_foot() -> None:
    drawn = curves([("a", "one", [(1, 1.0), (2, float("nan")), (3, 2.0)])])
    assert "nan" not in drawn and drawn.count(",") == 2
    assert "<polyline" in curves([("gap", "gap", [(1, 0.0), (2, 1e-3)])], log=True)
    assert "no finite values" in curves([("a", "one", [(1, float("inf"))])])


def test_review_findings_that_change_numbers_may_explain_a_difference_and_others_do_not() -> None:
    findings = [
        ("m.py", Finding("DSM340", Severity.REVIEW, 3, "autocast becomes the engine's")),
        ("m.py", Finding("DSM340", Severity.CONVERTED, 4, "converted")),
        ("m.py", Finding("DSM302", Severity.REVIEW, 5, "its page says Unchanged.")),
    ]
    assert [found.line for _, found in explanations(findings)] == [3]


def test_columns_that_no_row_fills_are_left_out() -> None:
    text = _filled_table(["", "speed", "gap"], [["1 rank", "-", "0"], ["2 ranks", "", "1"]], (1, 2))
    assert "speed" not in text
    assert text.count("<td class=n>") == 2


def test_headings_of_a_page_are_linked_above_it() -> None:
    nav, first, second = contents(["<h2>One</h2><p>text</p>", "<h2 id=rules>Rules</h2>"])
    assert '<a href="#part-0">One</a>' in nav and '<a href="#part-1">Rules</a>' in nav
    assert first == '<h2 id="part-0">One</h2><p>text</p>' and second == '<h2 id="part-1">Rules</h2>'


def test_values_of_a_logarithmic_axis_are_distinguishable() -> None:
    text = curves([("gap", "gap", [(1, 1e-6), (2, 1e-7)])], log=True)
    assert {"1e-06", "3e-07", "1e-07"} <= set(re.findall(r">(\de-\d\d)<", text))


@pytest.mark.parametrize("there, advice", [(0, "shows 0; use --device cpu"), (1, "shows 1; use --ranks 1, or")])
def test_gpus_that_are_missing_come_with_what_works(there: int, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    with pytest.raises(ConfigError, match=advice):
        cli._device("cuda", 2)


def test_the_loss_is_named_before_the_gradients_that_it_causes() -> None:
    gradients = Key("gradient", 2, "gradient norm")
    loss = Key("training", 2, "loss")
    found = compare(record((gradients, 1.0), (loss, 1.0)), record((gradients, 9.0), (loss, 1.5)))
    assert [difference.key for difference in found] == [loss, gradients]
    (only,) = compare(record((gradients, 1.0)), record((gradients, 9.0)))
    assert "clipping" in advice([Outcome(1, differences=[only], unit="step")])


def test_a_difference_without_a_number_stands_in_json(tmp_path: Path) -> None:
    training = TrainingRun("original-1ranks", record((LOSS, 1.0)))
    found = Verification(
        Sides(tmp_path, tmp_path, "here and there"),
        TrialSelection(Path("const.yaml"), {}, {}, {}, "model_def:Trial"),
        Settings(),
        [Round(1, training, training, training, Settings())],
        [Outcome(1, differences=[Difference(LOSS, float("inf"), "only there")])],
    )
    read = json.loads(to_json(found, None, []))
    schema = json.loads(Path(ds_verify.__file__).with_name("schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(read)
    assert read["verdict"] == "different"
    [difference] = read["comparisons"][0]["differences"]
    assert (difference["batch"], difference["gap"], difference["reason"]) == (3, None, "only there")


class _Killed:
    """A launcher whose processes end at once, as the system kills them."""

    def start(self, command: Sequence[str], *, environment: Mapping[str, str], directory: Path, log: Path) -> Process:
        del command, environment, directory
        log.touch()
        return PythonProcess(["-S", "-c", "import os; os.kill(os.getpid(), 9)"], {})

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def test_a_rank_that_a_signal_ended_is_reported_with_its_name(tmp_path: Path) -> None:
    job = Job("original-1ranks", str(tmp_path), "plain", "train.py", [], {})
    failures = JobRunner(tmp_path, _Killed()).run([job])
    assert failures["original-1ranks"].reason == "rank 0 was ended by SIGKILL, as where memory runs out"


def test_why_nothing_was_trained_is_reported_once_beside_the_verdict(tmp_path: Path) -> None:
    failure = Failure(0, "RuntimeError: the script ended with exit code 3")
    training = TrainingRun("original-1ranks", Record(), failure=failure)
    found = Verification(
        Sides(tmp_path, tmp_path, "here and there"),
        TrialSelection(None, {}, {}, {}, "train.py"),
        Settings(),
        [Round(1, training, TrainingRun("control"), TrainingRun("converted"), Settings())],
        failure=(1, failure),
    )
    console = Console(file=io.StringIO(), width=200)
    show(console, found)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("exit code 3") == 2 and "did not train" not in console.file.getvalue()
    assert "Memory" not in render(found) and render(found).count("exit code 3") == 2


def test_a_curve_of_what_is_not_negative_begins_at_0_and_names_its_steps() -> None:
    drawn = curves([("a", "one", [(1, 0.01), (2, 1.0)])], unit="step")
    assert ">0</text>" in drawn and "step 2" in drawn and "batch" not in drawn
    assert ">-0.55<" in curves([("a", "one", [(1, -0.5), (2, 0.5)])])


def test_a_cpu_has_no_speed_which_would_be_noise() -> None:
    assert speed({"seconds_a_batch": 0.5, "samples": 16, "device": "cpu"}) == "-"
    assert speed({"seconds_a_batch": 0.5, "samples": 16, "device": "cuda"}) == "32 samples/s"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_one_bar_goes_over_all_runs_and_names_the_present_one(is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    bar = progress_bar(console, "batch")
    report = progress_reporter(bar, "batch")
    for trained in (10, 20):
        report(Progress("converted, 1 rank", 2, 6, trained, 60))
    (task,) = bar.tasks
    assert (task.description, task.completed, task.total) == ("run 2 of 6: converted, 1 rank", 20, 60)
    assert isinstance(console.file, io.StringIO)
    printed = "" if is_terminal else "run 2 of 6: converted, 1 rank, 10 of 60 batches\n"
    assert console.file.getvalue() == printed
