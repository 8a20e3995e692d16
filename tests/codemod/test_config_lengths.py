"""Lengths that a trial reads from its experiment config, which the conversion divides by the accumulation steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import examples
import pytest
import yaml
from ds_migrate.experiment import lengths
from ds_migrate.findings import Report, Severity
from ds_migrate.options import Options
from ds_verify.select_trial import plan_of, select_trial
from trial_runtime.pytorch.deepspeed import _config_lengths

READ = "length = self.context.get_experiment_config()['searcher']['max_length']['batches']"
CONFIG = """\
name: lengths
entrypoint: model_def:MyTrial
searcher: {name: single, metric: validation_loss, time_metric: batches, max_length: {batches: 24}, max_time: 48}
min_validation_period: {batches: 12}
min_checkpoint_period: {batches: 8}
profiling: {enabled: false, begin_on_batch: 4, end_after_batch: 20}
hyperparameters: {global_batch_size: 8}
"""
ACCUMULATION = "optimizations: {aggregation_frequency: 4}\n"


def convert(folder: Path, line: str, config: str = CONFIG + ACCUMULATION, **options: Any) -> Report:
    init = examples.METHODS["__init__"] + f"    {line}\n"
    (folder / "model_def.py").write_text(examples.module(init))
    (folder / "const.yaml").write_text(config)
    return examples.run(folder, options=Options(**options))


def source(report: Report) -> str:
    data = next(f for f in report.files if f.path.name == "model_def.py").after
    assert data is not None
    return data.decode()


def test_with_accumulation_the_trial_reads_the_lengths_that_it_had(tmp_path: Path) -> None:
    report = convert(tmp_path, READ)
    assert "self.context.get_experiment_config(in_micro_batches=True)['searcher']" in source(report)
    data = next(f for f in report.files if f.path.name == "const.yaml").after
    assert data is not None
    converted, original = yaml.safe_load(data), yaml.safe_load(CONFIG)
    assert converted["searcher"]["max_length"] == {"batches": 6}
    seen = _config_lengths.in_micro_batches(converted)
    for field in ("searcher", "min_validation_period", "min_checkpoint_period", "profiling"):
        assert seen[field] == original[field]
    assert converted["searcher"]["max_length"] == {"batches": 6}  # it is a copy


def test_without_accumulation_the_read_stays(tmp_path: Path) -> None:
    assert READ in source(convert(tmp_path, READ, CONFIG))
    assert _config_lengths.in_micro_batches(yaml.safe_load(CONFIG)) == yaml.safe_load(CONFIG)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("read = self.context.get_experiment_config", {}),
        ("unit = self.context.get_experiment_config().get('scheduling_unit', 1)", {}),
        (READ, {"target": "determined"}),
    ],
)
def test_what_cannot_be_given_back_is_reviewed(line: str, options: dict[str, Any], tmp_path: Path) -> None:
    found = [f for file in convert(tmp_path, line, **options).files for f in file.findings if f.code == "DSM353"]
    assert [f for f in found if f.severity is Severity.REVIEW and f.help]


def test_what_is_divided_is_what_is_given_back() -> None:
    assert set(lengths._FIELDS) - set(_config_lengths._FIELDS) == {("scheduling_unit",)}
    assert set(_config_lengths._FIELDS) <= set(lengths._FIELDS)


@pytest.mark.parametrize(("given", "seen"), [({"batches": 24}, {"batches": 24}), (24, {"batches": 1})])
def test_the_proof_leaves_lengths_that_the_trial_can_see(given: Any, seen: Any, tmp_path: Path) -> None:
    document = yaml.safe_load(CONFIG)
    document["searcher"]["max_length"] = given
    (tmp_path / "model_def.py").write_text(examples.module())
    (tmp_path / "const.yaml").write_text(yaml.safe_dump(document))
    assert plan_of(select_trial(tmp_path), tmp_path, ranks=1).document["searcher"]["max_length"] == seen
