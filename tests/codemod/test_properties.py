"""What holds for every trial that idioms can be put together to."""

from __future__ import annotations

import tempfile
from pathlib import Path

import examples
import pytest
import strategies
from ds_migrate.files.writer import apply
from ds_migrate.findings import FileStatus, Report, TrialStatus
from ds_migrate.syntax.source import SourceFile
from ds_verify.compare import compare, table
from equivalence.runs import Runs
from equivalence.scenario import Scenario
from guarantees import assert_guaranteed, assert_patch_applies, assert_stable
from hypothesis import HealthCheck, given, settings

# Deep trees need a deep stack; asked for here, before Hypothesis looks at the limit.
SourceFile(Path("nothing.py"), b"")


def same_every_time(examples: int) -> settings:
    quiet = [HealthCheck.too_slow]
    return settings(max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=quiet)


# A line of the original that is not in the output must give a reason for it.
REASONS = (
    "determined", "PyTorchTrial", "import", "wrap_", "backward(", "step_optimizer(", "batch", "zero_grad(",
    "nn.Sequential", "DataLoader,", "LRScheduler,", "TorchData,", ")", "raw_",
)  # fmt: skip


def lay_out(folder: Path, trial: strategies.Trial) -> Path:
    (folder / "const.yaml").write_text(strategies.CONFIG)
    path = folder / "model_def.py"
    path.write_bytes(trial.source)
    return path


def plan(folder: Path) -> Report:
    return examples.run(folder)


@same_every_time(25)
@given(trial=strategies.trials())
def test_a_trial_converts_whole_and_keeps_what_concerns_no_rule(trial: strategies.Trial) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = lay_out(folder, trial)
        report = plan(folder)
        result = next(f for f in report.files if f.path.name == "model_def.py")
        assert examples.problems(result) == []
        assert [t.status for _, t in report.trials()] == [TrialStatus.CONVERTED]
        assert result.after is not None
        assert_guaranteed(trial.source, result.after)
        assert_untouched(trial, result.after)
        assert_patch_applies(folder, result)
        path.write_bytes(trial.source)
        apply(report, folder)
        assert path.read_bytes() == result.after
        assert_stable(folder)


def assert_untouched(trial: strategies.Trial, after: bytes) -> None:
    before_lines, after_lines = (data.splitlines(keepends=True) for data in (trial.source, after))
    for note in trial.notes:
        kept = [line for line in before_lines if line.strip() == note.encode()]
        assert [line for line in after_lines if line.strip() == note.encode()] == kept
    gone = set(before_lines) - set(after_lines)
    unexplained = [line for line in gone if not any(reason.encode() in line for reason in REASONS)]
    if not trial.source.endswith(b"\n"):
        unexplained = [line for line in unexplained if line != before_lines[-1]]
    assert unexplained == []
    ends = {line[len(line.rstrip(b"\r\n")) :] for line in after_lines[:-1]}
    assert ends == {b"\r\n" if b"\r\n" in trial.source else b"\n"}
    assert after.startswith(b"\xef\xbb\xbf") == trial.source.startswith(b"\xef\xbb\xbf")
    assert after.endswith(b"\n") == trial.source.endswith(b"\n")
    indents = {line[: len(line) - len(line.lstrip())].strip(b" ") for line in after_lines}
    assert (b"\t" in b"".join(indents)) == (b"\t" in trial.source)


@same_every_time(20)
@given(trial=strategies.trials(poisoned=True))
def test_a_trial_with_one_thing_that_no_engine_can_do_gets_no_byte(trial: strategies.Trial) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = lay_out(folder, trial)
        report = plan(folder)
        assert [t.status for _, t in report.trials()] == [TrialStatus.BLOCKED]
        result = next(f for f in report.files if f.path.name == "model_def.py")
        assert result.status is FileStatus.BLOCKED
        assert examples.problems(result)
        assert all(f.help for f in result.findings)
        assert not [f for f in report.files if f.to_write]
        apply(report, folder)
        assert path.read_bytes() == trial.source
        assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == ["const.yaml", "model_def.py"]


# Ways of owning parameters; the rest of each trial follows from its seed.
SAMPLE = {"own": 7, "joint": 2, "parts": 3}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_generated_trials_train_to_the_same_numbers(ranks: int, tmp_path: Path) -> None:
    pairs = [scenarios(tmp_path, ownership, seed, ranks) for ownership, seed in SAMPLE.items()]
    (tmp_path / "records").mkdir()
    runs = Runs(tmp_path / "records", tmp_path)
    for before, after in pairs:
        reference, candidate = runs.get(before), runs.get(after)
        losses = {float(v) for key, v in reference.values.items() if key.kind == "training" and key.name == "loss"}
        assert len(losses) > 10
        kinds = {"setup", "initial", "training", "window", "lr", "norm", "validation", "state"}
        assert {key.kind for key in reference.values} == kinds
        differences = compare(reference, candidate)
        assert not differences, f"{before}\n{table(differences)}"


def scenarios(folder: Path, ownership: str, seed: int, ranks: int) -> tuple[Scenario, Scenario]:
    """The original and the converted trial of a seed."""
    before, after = (folder / ownership / side for side in ("before", "after"))
    for place in (before, after):
        place.mkdir(parents=True)
        lay_out(place, strategies.drawn(seed, ownership))
    apply(plan(after), after)
    name = f"generated_{ownership}"
    reference = Scenario(name, "reference", ranks, source=str(before))
    return reference, Scenario(name, "candidate", ranks, zero=0, source=str(after))
