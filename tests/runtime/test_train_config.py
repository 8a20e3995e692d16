"""From an experiment config to a plan: values, defaults, and one error for everything that is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from trial_runtime._cluster_info import FitDefaults, Length
from trial_runtime.train.config.document import assign, load, parse_yaml, split_assignment
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import RunPlan, make_plan

BASE = """
name: mnist
entrypoint: model_def:Trial
hyperparameters: {global_batch_size: 16, lr: 1e-4}
searcher: {name: single, metric: loss, max_length: {epochs: 2}}
"""


def plan(text: str = "", context: Path = Path("/nowhere"), **options: Any) -> RunPlan:
    """The plan of BASE with the top-level fields of ``text`` in place of its own."""
    document = {**parse_yaml(BASE), **(parse_yaml(text) or {})}
    return make_plan(document, "c.yaml", context, **options)


def problem(text: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        plan(text, **options)
    return str(error.value)


def test_a_plain_config_becomes_a_plan() -> None:
    made = plan()

    assert made.name == "mnist"
    assert made.hparams == {"global_batch_size": 16, "lr": 1e-4}
    assert made.fit == FitDefaults(max_length=Length(2, "epochs"))
    assert (made.slots, made.seed, made.max_restarts, made.searcher_metric) == (1, None, 0, "loss")
    assert made.notices == []


def test_numbers_are_read_as_yaml_1_2_does() -> None:
    assert parse_yaml("[1e-4, 0.1, .5, 1_0, yes, on]") == [1e-4, 0.1, 0.5, 10, "yes", "on"]


@pytest.mark.parametrize(
    ("written", "length"),
    [
        ("{batches: 100}", Length(100, "batches")),
        ("{epochs: 3}", Length(3, "epochs")),
        ("{records: 170}", Length(10, "batches")),
        ("{records: 3}", Length(1, "batches")),
        ("{batches: 1e3}", Length(1000, "batches")),
        ("100", Length(100, "batches")),
    ],
)
def test_lengths_in_every_unit(written: str, length: Length) -> None:
    assert plan(f"searcher: {{name: single, max_length: {written}}}").fit.max_length == length


def test_periods_and_the_other_arguments_of_fit() -> None:
    made = plan(
        "min_validation_period: {records: 32}\nmin_checkpoint_period: {epochs: 1}\nscheduling_unit: 7\n"
        "checkpoint_policy: all\nperform_initial_validation: true"
    )

    assert made.fit == FitDefaults(
        max_length=Length(2, "epochs"),
        validation_period=Length(2, "batches"),
        checkpoint_period=Length(1, "epochs"),
        reporting_period=Length(7, "batches"),
        checkpoint_policy="all",
        step_zero_validation=True,
    )


def test_a_period_of_zero_is_none() -> None:
    assert plan("min_validation_period: {batches: 0}").fit.validation_period is None


@pytest.mark.parametrize(
    "deepspeed",
    [
        "overwrite_deepspeed_args: {gradient_accumulation_steps: 4}",
        "deepspeed_config: {gradient_accumulation_steps: 4}",
        "deepspeed_config: ds_config.json",
    ],
)
def test_records_count_the_micro_batches_of_one_step(deepspeed: str, tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text(json.dumps({"gradient_accumulation_steps": 4}))
    text = f"searcher: {{max_length: {{records: 640}}}}\nhyperparameters: {{global_batch_size: 16, {deepspeed}}}"

    assert plan(text, tmp_path).fit.max_length == Length(10, "batches")


def test_test_mode_needs_no_length() -> None:
    assert plan("searcher: {name: single}", test_mode=True).fit.test_mode


def test_a_script_brings_its_own_length(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()

    assert plan("searcher: {name: single}\nentrypoint: python3 train.py", tmp_path).fit.max_length is None


def test_the_document_gets_the_defaults_that_trial_code_reads() -> None:
    document = plan("optimizations: {aggregation_frequency: 2}").document

    assert document["optimizations"]["aggregation_frequency"] == 2
    assert document["optimizations"]["average_aggregated_gradients"] is True
    assert document["resources"]["slots_per_trial"] == 1
    assert document["min_validation_period"] == {"batches": 0}
    assert document["searcher"]["smaller_is_better"] is True


def test_hyperparameters_of_all_kinds() -> None:
    tree = """
    hyperparameters:
      global_batch_size: {type: const, val: 16}
      lr: {type: log, minval: -4, maxval: -1}
      layers: [1, 2]
      optimizer:
        name: {type: categorical, vals: [adam, sgd]}
        type: adam
        decay: {type: double, minval: 0, maxval: 1}
      width: {type: int, minval: 1, maxval: 8}
      only: {type: categorical, vals: [x]}
    """
    picks = {"lr": 1e-4, "optimizer.name": "sgd", "optimizer.decay": 0, "width": 8, "layers": [3]}

    assert plan(tree, picks=picks).hparams == {
        "global_batch_size": 16,
        "lr": 1e-4,
        "layers": [3],
        "optimizer": {"name": "sgd", "type": "adam", "decay": 0},
        "width": 8,
        "only": "x",
    }


def test_every_search_space_without_a_value_is_named_in_one_error() -> None:
    message = problem(
        "hyperparameters: {lr: {type: log, minval: -4, maxval: -1}, g: {w: {type: int, minval: 1, maxval: 8}}}"
    )

    assert "--hparam lr=VALUE  (log, from 0.0001 to 0.1)" in message
    assert "--hparam g.w=VALUE  (int, from 1 to 8)" in message


@pytest.mark.parametrize(
    ("space", "value"),
    [
        ("{type: int, minval: 1, maxval: 8}", 9),
        ("{type: int, minval: 1, maxval: 8}", 2.0),
        ("{type: int, minval: 1, maxval: 8}", True),
        ("{type: double, minval: 0, maxval: 1}", 1.1),
        ("{type: double, minval: 0, maxval: 1}", "x"),
        ("{type: log, minval: -4, maxval: -1}", 0.2),
        ("{type: categorical, vals: [1, 2]}", 3),
        ("{type: categorical, vals: [1, 2]}", True),
    ],
)
def test_a_pick_outside_of_its_space_is_refused(space: str, value: object) -> None:
    assert f"--hparam x={value!r}: the search space is" in problem(
        f"hyperparameters: {{x: {space}}}", picks={"x": value}
    )


def test_an_unknown_pick_is_refused_with_a_near_name() -> None:
    assert "--hparam learning_rte: there is no such hyperparameter (did you mean 'learning_rate'?)" in problem(
        "hyperparameters: {learning_rate: 1}", picks={"learning_rte": 2}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entrypoint: null", "entrypoint: is missing"),
        ("entrypoint: bash x.sh", "entrypoint: 'bash x.sh' is not allowed: ds-train starts Python"),
        ("entrypoint: python3 train.py", "entrypoint: there is no file 'train.py' in /nowhere"),
        ("hyperparameters: 3", "hyperparameters: 3 is not allowed: write a mapping"),
        ("hyperparameters: {global_batch_size: 1.5}", "hyperparameters.global_batch_size: 1.5 is not allowed"),
        (
            "hyperparameters: {global_batch_size: 1}\nresources: {slots_per_trial: 2}",
            "write a whole number of at least slots_per_trial (2)",
        ),
        ("searcher: {name: single}", "searcher.max_length: is missing"),
        (
            "searcher: {max_length: {steps: 3}}",
            "searcher.max_length: {'steps': 3} is not allowed: write one of {batches: N}",
        ),
        ("searcher: {max_length: {batches: 1, epochs: 1}}", "searcher.max_length"),
        ("searcher: {max_length: {epochs: -1}}", "searcher.max_length"),
        ("searcher: {max_length: {epochs: 1.5}}", "searcher.max_length"),
        (
            "searcher: {max_length: {records: 0}}",
            "searcher.max_length: {'records': 0} is not allowed: write for how long",
        ),
        ("searcher: {name: sinlge}", "searcher.name: 'sinlge' is not allowed: write single (did you mean 'single'?)"),
        (
            "hyperparameters: {lr: {type: lgo, minval: -4, maxval: -1}}",
            "hyperparameters.lr.type: 'lgo' is not allowed: write one of int, double, log, categorical, const (did you",
        ),
        ("hyperparameters: {a: {lr: {type: log, minval: -4}}}", "hyperparameters.a.lr.maxval: None is not allowed"),
        ("hyperparameters: {n: {type: int, minval: 1.5, maxval: 2}}", "hyperparameters.n.minval: 1.5 is not allowed"),
        ("hyperparameters: {n: {type: double, minval: 3, maxval: 2}}", "not above maxval (2)"),
        ("hyperparameters: {n: {type: log, minval: 1, maxval: 2, base: 0}}", "hyperparameters.n.base: 0 is not"),
        ("hyperparameters: {n: {type: categorical, vals: []}}", "hyperparameters.n.vals: [] is not allowed"),
        ("hyperparameters: {n: {type: const}}", "hyperparameters.n.val: None is not allowed"),
        (
            "environment: {environment_variables: {cdua: [A=1]}}",
            "environment.environment_variables.cdua: ['A=<masked>'] is not allowed: write a list of NAME=value "
            "strings, or such lists under cpu, cuda, rocm (did",
        ),
        ("searcher: {max_length: true}", "searcher.max_length: True is not allowed"),
        ("searcher: {max_steps: 5}", "write max_length: {batches: 500}"),
        ("searcher: {max_steps: 5}\nbatches_per_step: 30", "write max_length: {batches: 150}"),
        (
            "searcher: {max_steps: 5}\n"
            "hyperparameters: {overwrite_deepspeed_args: {gradient_accumulation_steps: 4}, global_batch_size: 4}",
            "write max_length: {batches: 125}",
        ),
        ("searcher: {name: adaptive_asha, max_length: 3}", "'adaptive_asha' runs many trials, ds-train runs one"),
        ("searcher: {name: grid}", "--config searcher.max_length.batches=N"),
        ("searcher: {max_length: 1, source_checkpoint_uuid: ab}", "--latest-checkpoint PATH"),
        (
            "searcher: {max_length: 1, smaller_is_better: 1}",
            "searcher.smaller_is_better: 1 is not allowed: write true or",
        ),
        ("hyperparameters: {}\nmin_validation_period: {records: 3}", "records need hyperparameters.global_batch_size"),
        ("min_checkpoint_period: 3", "min_checkpoint_period: 3 is not allowed"),
        ("scheduling_unit: 0", "scheduling_unit: 0 is not allowed: write a whole number of at least 1"),
        ("checkpoint_policy: bset", "write one of best, all, none (did you mean 'best'?)"),
        ("perform_initial_validation: 1", "perform_initial_validation: 1 is not allowed"),
        ("reproducibility: {experiment_seed: -1}", "reproducibility.experiment_seed: -1 is not allowed"),
        ("reproducibility: {experiment_seed: 2147483648}", "at most 2147483647"),
        ("resources: {slots_per_trial: two}", "resources.slots_per_trial: 'two' is not allowed"),
        ("resources: 2", "resources: 2 is not allowed: write a mapping"),
        ("optimizations: {aggregation_frequency: 0}", "optimizations.aggregation_frequency: 0 is not allowed"),
        ("optimizations: {mixed_precision: O1}", "optimizations.mixed_precision: 'O1' is not allowed: apex"),
        (
            "environment: {environment_variables: {cpu: [A]}}",
            "environment.environment_variables: '<masked>' is not allowed",
        ),
        ("environment: {environment_variables: A=1}", "environment.environment_variables: 'A=<masked>' is not allowed"),
        ("checkpoint_storage: {type: s3}", "checkpoint_storage.bucket: is missing"),
        ("checkpoint_storage: {type: s3, bucket: b, access_key: a}", "access_key and secret_key go together"),
        ("checkpoint_storage: {type: gcs, bucket: b, prefix: ../a}", "checkpoint_storage.prefix: '../a'"),
        ("checkpoint_storage: {type: azure, container: c}", "write connection_string, or account_url"),
        ("checkpoint_storage: {type: azure, container: c, connection_string: s, credential: t}", "leave out"),
        (
            "checkpoint_storage: {type: azure, container: c, account_url: 'http://h/a'}",
            "checkpoint_storage.account_url",
        ),
        ("checkpoint_storage: {type: url, url: /folder}", "checkpoint_storage.url: write a URL"),
        ("checkpoint_storage: {type: url, url: 's3://b', options: [1]}", "checkpoint_storage.options: write a mapping"),
        ("checkpoint_storage: {type: shared}", "checkpoint_storage.type: 'shared' is not allowed: write shared_fs"),
        ("checkpoint_storage: {type: shared_fs}", "checkpoint_storage.host_path: is missing"),
        ("checkpoint_storage: {type: directory}", "checkpoint_storage.container_path: is missing"),
        ("checkpoint_storage: {host_path: /a, storage_path: /b}", "it must lie inside host_path (/a)"),
        ("checkpoint_storage: {host_path: /a, save_trial_best: x}", "checkpoint_storage.save_trial_best: 'x'"),
        ("name: [1]", "name: [1] is not allowed: write a string"),
        ("data: 3", "data: 3 is not allowed: write a mapping"),
    ],
)
def test_a_bad_value_is_one_error_with_field_value_and_what_is_allowed(text: str, message: str) -> None:
    found = problem(text)

    assert found.startswith("c.yaml: ")
    assert message in found


def test_optimizations_count_where_determined_made_the_context(tmp_path: Path) -> None:
    text = "optimizations: {aggregation_frequency: 2, average_aggregated_gradients: false}"
    (tmp_path / "train.py").touch()

    by_class, by_script = plan(text), plan(f"{text}\nentrypoint: python3 train.py", context=tmp_path)

    assert (by_class.aggregation_frequency, by_class.average_aggregated_gradients) == (2, False)
    assert (by_script.aggregation_frequency, by_script.average_aggregated_gradients) == (1, True)
    assert "the script gives its own" in dict(by_script.notices)["optimizations.aggregation_frequency"]
    assert by_class.notices == []


def test_a_group_with_a_type_is_no_search_space() -> None:
    assert plan("hyperparameters: {opt: {type: adam, lr: 2}}").hparams == {"opt": {"type": "adam", "lr": 2}}


def test_all_problems_are_reported_at_once() -> None:
    message = problem("scheduling_unit: 0\ncheckpoint_policy: x\nreproducibility: {experiment_seed: x}")

    assert message.splitlines()[0] == "c.yaml: 3 problems"
    assert len(message.splitlines()) == 4


@pytest.mark.parametrize(
    ("profiling", "batches"),
    [
        ("{}", None),
        ("{enabled: false, begin_on_batch: 3}", None),
        ("{enabled: true}", (0, 4)),
        ("{enabled: true, begin_on_batch: 3}", (3, 7)),
        ("{enabled: true, begin_on_batch: 3, end_after_batch: 3}", (3, 3)),
    ],
)
def test_profiled_batches_are_those_of_the_config(profiling: str, batches: tuple[int, int] | None) -> None:
    assert plan(f"profiling: {profiling}").fit.profiled_batches == batches


def test_profile_that_ends_before_it_begins_is_refused() -> None:
    message = problem("profiling: {enabled: true, begin_on_batch: 3, end_after_batch: 2}")
    assert "profiling.end_after_batch: 2 is not allowed: write a whole number of at least 3" in message


def test_every_field_that_is_not_acted_on_is_named() -> None:
    made = plan(
        "description: x\nbind_mounts: []\nrecords_per_epoch: 10\nmin_validation_perod: 3\n"
        "resources: {slots_per_trial: 1, resource_pool: x, slots: 3}\nenvironment: {image: x}\n"
        "entrypoint: python3 -m determined.launch.torch_distributed --max_restarts 3 -- --trial m:C"
    )

    notices = dict(made.notices)
    assert notices["entrypoint"] == "not used: --max_restarts 3 (options of the launch layer)"
    assert notices["min_validation_perod"] == "unknown field, ignored (did you mean 'min_validation_period'?)"
    assert notices["resources.slots"] == "unknown field, ignored (did you mean 'max_slots'?)"
    assert set(notices) == {
        "entrypoint", "description", "bind_mounts", "records_per_epoch", "min_validation_perod",
        "resources.resource_pool", "resources.slots", "environment.image",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "url", "options"),
    [
        ("{type: s3, bucket: b}", "s3://b", {}),
        (
            "{type: s3, bucket: b, prefix: /a//c/, access_key: k, secret_key: s, endpoint_url: 'http://h:9000'}",
            "s3://b/a/c",
            {"key": "k", "secret": "s", "endpoint_url": "http://h:9000"},
        ),
        ("{type: gcs, bucket: b, prefix: c}", "gs://b/c", {}),
        ("{type: azure, container: c, connection_string: x=y}", "az://c", {"connection_string": "x=y"}),
        (
            "{type: azure, container: c/d, account_url: 'https://me.blob.core.windows.net', credential: t}",
            "az://c/d",
            {"account_name": "me", "account_host": "me.blob.core.windows.net", "credential": "t"},
        ),
        ("{type: url, url: 'sftp://h/p', options: {port: 22}}", "sftp://h/p", {"port": 22}),
        ("'gs://b/c'", "gs://b/c", {}),
    ],
)
def test_remote_checkpoint_storage(fields: str, url: str, options: dict[str, object]) -> None:
    made = plan(f"checkpoint_storage: {fields}")
    assert made.storage.remote is not None
    assert (made.storage.remote.url, dict(made.storage.remote.options)) == (url, options)
    assert made.storage.root is None
    assert not [name for name, _ in made.notices if name.startswith("checkpoint_storage")]


def test_a_key_that_is_no_text_is_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_storage\.secret_key: write a string") as error:
        plan("checkpoint_storage: {type: s3, bucket: b, access_key: a, secret_key: 98765}")
    assert "98765" not in str(error.value)


def test_checkpoint_storage(tmp_path: Path) -> None:
    shared = plan(
        "checkpoint_storage: {type: shared_fs, host_path: /cp, storage_path: a/b, save_trial_best: 2}"
    ).storage
    relative = plan(
        "checkpoint_storage: {host_path: cp, save_experiment_best: 3, save_trial_latest: 0}", tmp_path
    ).storage
    directory = plan("checkpoint_storage: {type: directory, container_path: /cp}").storage

    assert (shared.root, shared.save_trial_best, shared.save_trial_latest) == (Path("/cp/a/b"), 2, 1)
    assert (relative.root, relative.save_only_trial_best, relative.save_trial_latest) == (tmp_path / "cp", 3, 0)
    assert directory.root == Path("/cp")
    assert (directory.save_trial_best, directory.save_trial_latest) == (None, None)
    assert plan().storage.root is None


def test_environment_variables_for_the_accelerator_at_hand() -> None:
    text = "environment: {environment_variables: {cpu: [A=1, B=x=y], gpu: [A=2]}}"

    assert plan(text).environment == {"A": "1", "B": "x=y"}
    assert plan(text, accelerator="cuda").environment == {"A": "2"}
    assert plan("environment: {environment_variables: [A=]}").environment == {"A": ""}


def test_a_field_is_changed_by_its_dotted_path() -> None:
    document: dict[str, Any] = {"searcher": {"name": "random"}}

    assign(document, *split_assignment("--config", "searcher.name=single"))
    assign(document, *split_assignment("--config", "searcher.max_length.batches=1e2"))

    assert document == {"searcher": {"name": "single", "max_length": {"batches": 100.0}}}
    with pytest.raises(ConfigError, match=r"'searcher.name' is 'single', which has no fields"):
        assign(document, "searcher.name.x", 1)


@pytest.mark.parametrize("text", ["lr", "=3", "a=[1"])
def test_an_assignment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--hparam"):
        split_assignment("--hparam", text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1\nb: 2\n", "is not valid YAML"),
        (b"a: 1\na: 2\n", "is not valid YAML: found duplicate key"),
        (b"a: 1\n---\na: 2\n", ":2: holds several documents"),
        (b"- 1\n", "is not an experiment config"),
        (b"", "is not an experiment config"),
        (b"a: \xff\n", "is not UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_config_is_one_error(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=message):
        load(path)


def test_a_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\nmax_restarts: 1\r\n")

    assert load(path) == {"name": "x", "max_restarts": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1,}', "ds.json:1:9: is not valid JSON: "),
        ("[1]", "ds.json: is not a JSON object: write {...}"),
        (
            '{"zero_optimization": {"stage": 5}}',
            "ds.json: zero_optimization.stage: 5 is not allowed: write one of 0, 1, 2",
        ),
        ('{"zero_optimization": {"stage": true}}', "ds.json: zero_optimization.stage: True is not allowed"),
        ("{}", "hyperparameters.overwrite_deepspeed_args: zero_optimization.stage: '2' is not allowed"),
    ],
)
def test_deepspeed_config_is_checked_before_torch_is_imported(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(content)
    changes = "{zero_optimization: {stage: '2'}}" if content == "{}" else "{}"
    fields = f"hyperparameters: {{deepspeed_config: ds.json, overwrite_deepspeed_args: {changes}}}"
    assert message in problem(fields, context=tmp_path)


def test_deepspeed_config_that_is_no_file_of_the_project_is_left_to_the_trial() -> None:
    assert plan("hyperparameters: {deepspeed_config: other/ds.json}").hparams == {"deepspeed_config": "other/ds.json"}
