"""Experiment configs: how each field is converted, and which are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.experiment import TrialFacts
from ds_migrate.experiment.planning import terms_of
from ds_migrate.files.prefilter import may_name
from ds_migrate.findings import FileStatus, Severity, TrialStatus
from ds_migrate.project.loading import ConfigFile
from experiment_project import Project, codes, facts_for, plan, project

HEAD = "entrypoint: model_def:MyTrial\nhyperparameters:\n  global_batch_size: 64\n"
DONE = HEAD + "  deepspeed_config: ds_config.json\n"


@pytest.fixture
def here(tmp_path: Path) -> Project:
    return project(tmp_path)


def test_adds_the_path_of_the_deepspeed_config_as_last_hyperparameter(here: Project) -> None:
    assert here.convert(HEAD + "  # more to come\nname: x\n") == DONE + "  # more to come\nname: x\n"


def test_a_second_run_changes_nothing(here: Project) -> None:
    text = HEAD + "optimizations: {aggregation_frequency: 4}\nsearcher: {max_length: {batches: 100}}\n"
    once = here.convert(text)
    assert not any(result.to_write for result in here.results(once))


def test_the_path_is_relative_to_the_context_directory(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.py").touch()
    source = tmp_path / "pkg" / "model.py"
    facts = TrialFacts("MyTrial", source, TrialStatus.CONVERTED, {}, tmp_path / "pkg" / "ds_config.json")
    text = "entrypoint: pkg.model:MyTrial\nhyperparameters: {global_batch_size: 8}\n"
    for name in ("const.yaml", "configs/deep/const.yaml"):
        [result] = plan([ConfigFile(tmp_path / name, text.encode())], [facts], {}, root=tmp_path)
        assert result.after is not None
        assert b"{global_batch_size: 8, deepspeed_config: pkg/ds_config.json}" in result.after


def test_a_context_directory_beside_the_config_is_found(tmp_path: Path) -> None:
    facts = TrialFacts(
        "MyTrial", tmp_path / "src" / "model_def.py", TrialStatus.CONVERTED, {}, tmp_path / "src" / "ds_config.json"
    )
    [result] = plan([ConfigFile(tmp_path / "configs" / "const.yaml", HEAD.encode())], [facts], {}, root=tmp_path)
    assert result.after == DONE.encode()


def test_of_two_trials_with_one_name_the_one_of_its_own_folder_is_meant(tmp_path: Path) -> None:
    trials, configs = [], []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model_def.py").touch()
        status = TrialStatus.CONVERTED if folder == "a" else TrialStatus.BLOCKED
        where = tmp_path / folder
        trials.append(TrialFacts("MyTrial", where / "model_def.py", status, {}, where / "ds_config.json"))
        configs.append(ConfigFile(where / "const.yaml", HEAD.encode()))
    assert [result.path.parent.name for result in plan(configs, trials, {}, root=tmp_path)] == ["a"]


def test_a_class_that_the_entry_module_only_imports_is_found(here: Project) -> None:
    (here.root / "entry.py").write_text("from model_def import (\n    Other,\n    MyTrial,\n)\n")
    assert "deepspeed_config: ds_config.json" in here.convert(HEAD.replace("model_def", "entry"))


def test_a_module_of_that_name_without_the_trial_is_not_meant(here: Project) -> None:
    (here.root / "sub").mkdir()
    (here.root / "sub" / "model_def.py").write_text("class MyTrial(TFKerasTrial): ...\n")
    assert here.results(HEAD, name="sub/const.yaml") == []


def test_the_config_of_a_blocked_trial_is_left_alone(here: Project) -> None:
    other = TrialFacts("Other", here.root / "other.py", TrialStatus.CONVERTED, {}, here.root / "ds_config.json")
    blocked = here.with_trial(status=TrialStatus.BLOCKED)
    assert Project(here.root, (*blocked.trials, other)).results(HEAD + "# Other\n") == []


def test_a_config_that_was_not_named_is_reported_and_not_written(here: Project) -> None:
    result = here.result(HEAD, named=False)
    assert (result.after, result.status, codes(result)) == (None, FileStatus.UNCHANGED, [("DSM410", "review")])
    assert here.results(DONE, named=False) == []


def test_the_config_of_an_earlier_conversion_follows_later(here: Project) -> None:
    earlier = here.with_trial(status=TrialStatus.ALREADY_DEEPSPEED, reads_deepspeed_config=True)
    assert earlier.convert(HEAD) == DONE
    assert earlier.results(DONE) == []
    assert here.with_trial(status=TrialStatus.ALREADY_DEEPSPEED).results(HEAD) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hyperparameters:\n", "hyperparameters:\n  deepspeed_config: ds_config.json\n"),
        ("hyperparameters: {}\n", "hyperparameters: {deepspeed_config: ds_config.json}\n"),
        ("hyperparameters: null  # none\n", "hyperparameters: {deepspeed_config: ds_config.json}  # none\n"),
        ("hyperparameters:\n    lr: 1e-4", "hyperparameters:\n    lr: 1e-4\n    deepspeed_config: ds_config.json"),
        ("hyperparameters: {lr: 1e-4,}\n", "hyperparameters: {lr: 1e-4, deepspeed_config: ds_config.json,}\n"),
        (
            "hyperparameters: &h\n  lr: 1\n  text: |\n    a\n    # no comment\n\n# end\n",
            "hyperparameters: &h\n  lr: 1\n  text: |\n    a\n    # no comment\n"
            "  deepspeed_config: ds_config.json\n\n# end\n",
        ),
        (
            "hyperparameters: {\n  lr: 1 # a\n}\n",
            "hyperparameters: {\n  lr: 1, # a\n  deepspeed_config: ds_config.json\n}\n",
        ),
        (
            "hyperparameters:\n  text: |+\n    a\n\nname: x\n",  # blank lines are text here: the key goes first
            "hyperparameters:\n  deepspeed_config: ds_config.json\n  text: |+\n    a\n\nname: x\n",
        ),
    ],
)  # fmt: skip
def test_hyperparameters_in_every_layout(here: Project, before: str, after: str) -> None:
    entry = "entrypoint: model_def:MyTrial\n"
    assert here.convert(entry + before) == entry + after


def test_hyperparameters_are_added_where_there_are_none(here: Project) -> None:
    after = here.convert("entrypoint: model_def:MyTrial\r\nname: x\r\n")
    assert (
        after
        == "entrypoint: model_def:MyTrial\r\nhyperparameters:\r\n  deepspeed_config: ds_config.json\r\nname: x\r\n"
    )


def test_json_stays_json(here: Project) -> None:
    after = here.convert('{"entrypoint": "model_def:MyTrial", "hyperparameters": {"global_batch_size": 1}}')
    assert after == (
        '{"entrypoint": "model_def:MyTrial", '
        '"hyperparameters": {"global_batch_size": 1, "deepspeed_config": "ds_config.json"}}'
    )


def test_accumulation_moves_and_lengths_follow(here: Project) -> None:
    before = HEAD + (
        "searcher: {name: single, max_length: {batches: 1_000}}\n"
        "min_validation_period:\n  batches: 100  # often\n"
        "min_checkpoint_period: {epochs: 1}\nrecords_per_epoch: 5000\nscheduling_unit: 20\n"
        "profiling: {enabled: true, begin_on_batch: 7, end_after_batch: 13}\n"
        "optimizations:\n  aggregation_frequency: 4  # memory\n"
    )
    assert here.convert(before) == DONE + (
        "  overwrite_deepspeed_args:\n    gradient_accumulation_steps: 4  # memory\n"
        "searcher: {name: single, max_length: {batches: 250}}\n"
        "min_validation_period:\n  batches: 25  # often\n"
        "min_checkpoint_period: {epochs: 1}\nrecords_per_epoch: 5000\nscheduling_unit: 5\n"
        "profiling: {enabled: true, begin_on_batch: 1, end_after_batch: 4}\n"
    )


def test_a_search_by_batches_is_divided_too(here: Project) -> None:
    text = HEAD + "optimizations: {aggregation_frequency: 2}\nsearcher: {time_metric: %s, max_time: 64}\n"
    assert "max_time: 32}" in here.convert(text % "batches")
    assert "max_time: 64}" in here.convert(text % "epochs")


def test_a_length_that_does_not_divide_is_a_review_that_names_the_rest(here: Project) -> None:
    result = here.result(HEAD + "optimizations: {aggregation_frequency: 4}\nsearcher: {max_length: {batches: 103}}\n")
    [finding] = [f for f in result.findings if f.code == "DSM404"]
    assert (finding.severity, finding.line) == (Severity.REVIEW, 5)
    assert "103 batches" in finding.message
    assert "25 optimizer steps" in finding.message
    assert "last 3" in finding.message


def test_a_length_that_several_fields_share_is_divided_once(here: Project) -> None:
    shared = "min_validation_period: &period\n  batches: 12\nmin_checkpoint_period: *period\n"
    text = shared + "optimizations: {aggregation_frequency: 4}\n"
    assert shared.replace("12", "3") in here.convert(HEAD + text)


def test_a_shared_length_that_would_have_two_values_is_refused_with_its_reason(here: Project) -> None:
    text = "min_validation_period: {batches: &n 10}\nrecords_per_epoch: *n\noptimizations: {aggregation_frequency: 4}\n"
    result = here.result(HEAD + text)
    assert result.after is None
    assert ["shared through anchors" in f.message for f in result.findings] == [True]


def test_a_length_never_becomes_nothing(here: Project) -> None:
    assert "batches: 1}" in here.convert(
        HEAD + "optimizations: {aggregation_frequency: 8}\nmin_validation_period: {batches: 3}\n"
    )


def test_a_period_of_zero_stays(here: Project) -> None:
    assert "batches: 0}" in here.convert(
        HEAD + "optimizations: {aggregation_frequency: 8}\nmin_checkpoint_period: {batches: 0}\n"
    )


def test_lengths_without_accumulation_stay(here: Project) -> None:
    text = "searcher: {max_length: {batches: 100}}\noptimizations:\n  aggregation_frequency: 1\n"
    assert here.convert(HEAD + text) == DONE + "searcher: {max_length: {batches: 100}}\n"


def test_a_unitless_length_is_reviewed(here: Project) -> None:
    result = here.result(HEAD + "optimizations: {aggregation_frequency: 4}\nsearcher: {max_steps: 9}\n")
    assert ("DSM404", "review") in codes(result)
    assert result.after is not None
    assert b"max_steps: 9" in result.after


@pytest.mark.parametrize(
    ("option", "code", "severity"),
    [
        ("aggregation_frequency: 1", "DSM405", "converted"),
        ("mixed_precision: O0", "DSM405", "converted"),
        ("mixed_precision: O1", "DSM406", "review"),
        ("gradient_compression: false", "DSM405", "converted"),
        ("gradient_compression: true", "DSM406", "review"),
        ("tensor_fusion_threshold: 64", "DSM405", "converted"),
        ("tensor_fusion_cycle_time: 5", "DSM405", "converted"),
        ("auto_tune_tensor_fusion: true", "DSM405", "converted"),
        ("grad_updates_size_file: null", "DSM405", "converted"),
        ("average_training_metrics: true", "DSM405", "converted"),
        ("average_training_metrics: false", "DSM405", "review"),
        ("average_aggregated_gradients: false", "DSM407", "converted"),
    ],
)
def test_every_optimization_goes_with_a_word_on_it(here: Project, option: str, code: str, severity: str) -> None:
    result = here.result(HEAD + f"optimizations:\n  {option}\n")
    assert result.after == DONE.encode()
    assert codes(result)[1:] == [(code, severity)]


def test_an_unknown_optimization_stays_with_a_review(here: Project) -> None:
    before = "optimizations:\n  aggregation_frequency: 1\n  magic: 3  # keep\n"
    assert here.convert(HEAD + before) == DONE + "optimizations:\n  magic: 3  # keep\n"
    assert ("DSM405", "review") in codes(here.result(HEAD + before))


def test_comments_inside_removed_optimizations_stay(here: Project) -> None:
    before = "optimizations:\n  # why\n  aggregation_frequency: 1\n"
    assert here.convert(HEAD + before) == DONE + "  # why\n"


def test_a_file_without_final_newline_gets_none_except_where_it_is_text(here: Project) -> None:
    gone = "optimizations:\n  aggregation_frequency: 1"
    assert here.convert(f"{HEAD}name: x\n{gone}") == f"{DONE}name: x"
    assert here.convert(f"{HEAD}text: |\n  a\n{gone}") == f"{DONE}text: |\n  a\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{aggregation_frequency: 1, magic: 2}", "{magic: 2}"),
        ("{magic: 2, aggregation_frequency: 1}", "{magic: 2}"),
        ("{ magic: 2, aggregation_frequency: 1, }", "{ magic: 2, }"),
        ("{a: 1, aggregation_frequency: 1, mixed_precision: O0, b: 2}", "{a: 1, b: 2}"),
        ("{\n  magic: 2, # m\n  aggregation_frequency: 1\n}", "{\n  magic: 2 # m\n}"),
        ("{\n  aggregation_frequency: 1, # a\n  magic: 2\n}", "{\n  # a\n  magic: 2\n}"),
    ],
)
def test_flow_style_optimizations(here: Project, before: str, after: str) -> None:
    assert here.convert(f"{HEAD}optimizations: {before}\n") == f"{DONE}optimizations: {after}\n"


def test_a_config_whose_k_equals_that_of_the_ds_config_file_is_reported_nevertheless(here: Project) -> None:
    static = here.with_trial(ds_config={"gradient_accumulation_steps": 4})
    assert "gradient_accumulation_steps: 4" in static.convert(HEAD + "optimizations: {aggregation_frequency: 4}\n")
    assert "gradient_accumulation_steps: 1" in static.convert(HEAD)


def test_k_joins_existing_overrides(here: Project) -> None:
    before = "  overwrite_deepspeed_args: {steps_per_print: 5}\noptimizations: {aggregation_frequency: 2}\n"
    assert "{steps_per_print: 5, gradient_accumulation_steps: 2}\n" in here.convert(HEAD + before)


def test_summed_gradients_need_a_source_that_sums(here: Project) -> None:
    text = HEAD + "optimizations: {aggregation_frequency: 2, average_aggregated_gradients: false}\n"
    refused = here.result(text)
    assert (refused.after, refused.status, codes(refused)) == (None, FileStatus.BLOCKED, [("DSM407", "blocked")])
    summing = here.with_trial(sums_gradients=True)
    assert ("DSM407", "review") in codes(summing.result(text))
    assert summing.result(HEAD + "optimizations: {aggregation_frequency: 2}\n").status is FileStatus.BLOCKED
    assert here.with_trial(sums_gradients=None).result(text).status is FileStatus.CHANGED


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ('optimizations: {aggregation_frequency: "4"}\n', "DSM414"),
        ("optimizations: {aggregation_frequency: 0}\n", "DSM414"),
        ("optimizations: {aggregation_frequency: 4}\nsearcher: {max_length: {batches: many}}\n", "DSM404"),
        (
            "  overwrite_deepspeed_args: {gradient_accumulation_steps: 4}\noptimizations: {aggregation_frequency: 4}\n",
            "DSM403",
        ),
        ("base: &base {aggregation_frequency: 4}\noptimizations: *base\n", "DSM413"),
        ("base: &base {aggregation_frequency: 4}\noptimizations: {<<: *base}\n", "DSM413"),
        ("optimizations: {aggregation_frequency: 4}\nscheduling_unit: &n 100\nother: *n\n", "DSM413"),
        ("optimizations: {aggregation_frequency: 4}\nbase: &b {batches: 9}\nmin_validation_period: *b\n", "DSM413"),
    ],
)
def test_what_cannot_be_edited_safely_blocks_the_whole_config(here: Project, rest: str, code: str) -> None:
    result = here.result(HEAD + rest)
    assert (result.after, result.status, codes(result)) == (None, FileStatus.BLOCKED, [(code, "blocked")])


def test_an_alias_as_length_becomes_a_number_of_its_own(here: Project) -> None:
    before = "x: &n 100\noptimizations: {aggregation_frequency: 4}\nscheduling_unit: *n  # n\n"
    assert here.convert(HEAD + before).endswith("x: &n 100\nscheduling_unit: 25  # n\n")


def test_shared_hyperparameters_stay_and_the_rest_is_edited(here: Project) -> None:
    kept = "base: &h {global_batch_size: 1}\nhyperparameters: *h\nentrypoint: model_def:MyTrial\n"
    result = here.result(kept + "optimizations: {aggregation_frequency: 1}\n")
    assert result.after == kept.encode()
    assert ("DSM413", "review") in codes(result)


def test_another_deepspeed_config_is_kept_with_a_review(here: Project) -> None:
    result = here.result(HEAD + "  deepspeed_config: mine.json\n")
    assert (result.after, codes(result)) == (None, [("DSM415", "review")])


def test_a_missing_global_batch_size_is_reviewed(here: Project) -> None:
    assert ("DSM408", "review") in codes(here.result("entrypoint: model_def:MyTrial\nhyperparameters: {lr: 1}\n"))
    space = "entrypoint: model_def:MyTrial\nhyperparameters: {global_batch_size: {type: int, minval: 8, maxval: 64}}\n"
    assert codes(here.result(space)) == [("DSM401", "converted")]


@pytest.mark.parametrize("text", [HEAD + "x: [\n", HEAD + "name: a\nname: b\n", HEAD + "x: *nowhere\n", "\t" + HEAD])
def test_a_config_that_cannot_be_parsed_is_an_error_and_left_alone(here: Project, text: str) -> None:
    result = here.result(text)
    assert (result.after, result.status, codes(result)) == (None, FileStatus.ERROR, [("DSM411", "error")])
    assert here.result(text, named=False).status is FileStatus.UNCHANGED


def test_other_encodings_than_utf8_are_an_error(here: Project) -> None:
    assert codes(here.result(HEAD.encode("utf-16"))) == [("DSM411", "error")]
    assert codes(here.result(HEAD.encode() + b"name: \xff\n")) == [("DSM411", "error")]


def test_a_broken_file_that_only_mentions_the_trial_is_none_of_our_business(here: Project) -> None:
    assert here.results("# the entrypoint of MyTrial\nx: [\n") == []


def test_deep_and_exploding_files_do_no_harm(here: Project) -> None:
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 12))
    assert codes(here.result(HEAD + "l0: &l0 [x]\n" + levels)) == [("DSM411", "error")]
    assert codes(here.result(HEAD + "x: " + "[" * 5000 + "]" * 5000 + "\n")) == [("DSM411", "error")]


@pytest.mark.parametrize("entry", ["model_def:Gone", "elsewhere:MyTrial"])
def test_a_trial_that_is_not_there_is_a_review_and_left_alone(here: Project, entry: str) -> None:
    result = here.result(f"entrypoint: {entry}\n# model_def\n")
    assert (result.after, result.status, codes(result)) == (None, FileStatus.UNCHANGED, [("DSM412", "review")])


def test_a_class_of_another_kind_in_a_trials_module_is_none_of_our_business(here: Project) -> None:
    (here.root / "model_def.py").write_text("class Adapter(LightningAdapter): ...\n")
    assert here.results("entrypoint: model_def:Adapter\n") == []


def test_every_document_of_a_file_is_converted(here: Project) -> None:
    assert (
        here.convert(f"---\n{HEAD}---\nname: other\n---\n{HEAD}...\n")
        == f"---\n{DONE}---\nname: other\n---\n{DONE}...\n"
    )


def test_a_script_config_divides_by_what_the_script_gave_to_init(here: Project) -> None:
    text = (
        "entrypoint: python3 train.py\nhyperparameters: {}\n"
        "searcher: {max_length: {batches: 100}}\noptimizations: {aggregation_frequency: 5}\n"
    )
    script = here.with_trial(aggregation=4)
    after = script.convert(text)
    assert after == (
        "entrypoint: python3 train.py\nhyperparameters: {deepspeed_config: ds_config.json, "
        "overwrite_deepspeed_args: {gradient_accumulation_steps: 4}}\nsearcher: {max_length: {batches: 25}}\n"
    )
    assert not any(result.to_write for result in script.results(after))
    assert "batches: 20" in here.with_trial(aggregation_from_config=True).convert(text)
    assert "batches: 100" in here.convert(text)


def test_the_image_is_reviewed_for_determined_only(here: Project) -> None:
    text = HEAD + "environment: {image: {cuda: registry/pytorch:1.12, cpu: registry/cpu}}\n"
    assert ("DSM409", "review") in codes(here.result(text, target="determined"))
    assert ("DSM409", "review") not in codes(here.result(text))


def test_facts_gather_what_the_configs_of_a_trial_state(here: Project) -> None:
    configs = [
        HEAD + "  lr: 1e-3\n  clip: {type: double, minval: 0, maxval: 1}\nresources: {slots_per_trial: 2}\n",
        "entrypoint: python3 -m determined.launch.horovod --trial model_def:MyTrial\n"
        "hyperparameters: {lr: 0.1, clip: {type: const, val: 2}}\n"
        "optimizations: {aggregation_frequency: 4, average_aggregated_gradients: false}\n",
        HEAD + "x: [\n",
    ]
    files = [ConfigFile(here.root / f"{i}.yaml", text.encode(), named=False) for i, text in enumerate(configs)]
    blocked = here.with_trial(status=TrialStatus.BLOCKED)  # not planned yet: the status does not count
    facts = facts_for(files, blocked.trials, {})[here.root / "model_def.py", "MyTrial"]
    assert facts.configs == (here.root / "0.yaml", here.root / "1.yaml")
    assert facts.aggregation == {1, 4}
    assert facts.averages == {False}
    assert facts.slots == {2}
    assert facts.hparams == {"global_batch_size": (64,), "lr": (1e-3, 0.1), "clip": (2,)}
    assert facts.always == {"lr", "clip"}
    assert facts.launchers == {"", "horovod"}


def test_the_search_on_bytes_asks_for_both_entrypoint_and_name(here: Project) -> None:
    names = terms_of(here.trials, {here.root / "train.py": ["MyTrial"], here.root / "unrelated.py": ["Other"]})
    assert names == {"MyTrial", "model_def", "train"}
    assert may_name(HEAD.encode(), names)
    assert may_name(HEAD.encode("utf-16"), names)
    assert not may_name(b"entrypoint: other:Trial\n", names)
    assert not may_name(b"# MyTrial\n", names)
    assert not may_name(HEAD.encode(), [])


def test_each_script_divides_the_lengths_of_its_own_configs(here: Project) -> None:
    train, other = here.root / "train.py", here.root / "tools" / "run it.py"
    scripts = here.with_trial(aggregations={train: 2, other: 4})
    text = "{entrypoint: %s, hyperparameters: {a: 1}, searcher: {max_length: {batches: 16}}}\n"

    first, second = (scripts.convert(text % line) for line in ("python3 train.py", "'python3 \"tools/run it.py\"'"))

    assert "gradient_accumulation_steps: 2}}, searcher: {max_length: {batches: 8}}" in first
    assert "gradient_accumulation_steps: 4}}, searcher: {max_length: {batches: 4}}" in second


def test_lengths_of_a_script_whose_accumulation_is_not_known_are_reviewed(here: Project) -> None:
    script = here.with_trial(aggregations={here.root / "train.py": None})
    text = "entrypoint: python3 train.py\nhyperparameters: {a: 1}\nmin_validation_period: {%s: 16}\n"

    batches, epochs = script.result(text % "batches"), script.result(text % "epochs")

    assert b"{batches: 16}" in (batches.after or b"")
    assert codes(batches) == [("DSM401", "converted"), ("DSM404", "review")]
    assert codes(epochs) == [("DSM401", "converted")]


def test_a_length_that_is_null_stays(here: Project) -> None:
    text = HEAD + "optimizations: {aggregation_frequency: 4}\nprofiling: {begin_on_batch: 8, end_after_batch: null}\n"
    assert "profiling: {begin_on_batch: 2, end_after_batch: null}" in here.convert(text)
