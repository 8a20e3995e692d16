"""One error that lists everything that is wrong with a DeepSpeed config, with what to write instead."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import deepspeed
import pytest
import torch
import toys
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import DeepSpeedConfig
from distributed import run_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from trial_runtime import pytorch
from trial_runtime.errors import InvalidDeepSpeedConfigException
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch.deepspeed import EngineModule
from trial_runtime.pytorch.deepspeed._config_lint import Setup, lint
from trial_runtime.pytorch.deepspeed._config_lint.schema import known

MICRO = {"train_micro_batch_size_per_gpu": 4}
OFFLOADED = {"offload_optimizer": {"device": "cpu"}}


def sgd(kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> torch.optim.Optimizer:
    return kind(nn.Linear(2, 2).parameters(), lr=0.1)  # type: ignore[call-arg]


def told(config: dict[str, Any], fatal: bool | None = True, **setup: Any) -> dict[str, str]:
    """The problems of a config by path; all are of this kind."""
    problems = lint({**MICRO, **config}, Setup(**setup))
    assert fatal is None or all(problem.fatal == fatal for problem in problems)
    return {problem.path: problem.text for problem in problems}


def test_a_sound_config_has_no_problems() -> None:
    config = {
        "train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0,
        "steps_per_print": 100,
        "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 5e7, "offload_param": {"device": "cpu"}},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.99], "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}},
        "activation_checkpointing": {"partition_activations": True, "number_checkpoints": 4},
        "checkpoint": {"tag_validation": "Warn", "parallel_write": {"pipeline_stage": True}},
        "data_types": {"grad_accum_dtype": "fp32"},
        "flops_profiler": {"enabled": False, "top_modules": 3},
        "pipeline": {"stages": "auto", "partition": "best"},
        "zero_allow_untested_optimizer": True,
        "tensorboard": {"enabled": False, "job_name": "x"},
    }
    assert told(config, ranks=2, optimizer=None) == {}


# Keys


@pytest.mark.parametrize(
    ("config", "path", "meant"),
    [
        ({"gradient_cliping": 1.0}, "gradient_cliping", "gradient_clipping"),
        ({"zero_optimization": {"stge": 1}}, "zero_optimization.stge", "stage"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"pin_memry": True}}},
            "zero_optimization.offload_param.pin_memry",
            "pin_memory",
        ),
        (
            {"activation_checkpointing": {"partition_activation": True}},
            "activation_checkpointing.partition_activation",
            "partition_activations",
        ),
        ({"checkpoint": {"parallel_write": {"pipelin_stage": 1}}}, None, "pipeline_stage"),
        ({"timers": {"throughput": {"enable": True}}}, "timers.throughput.enable", "enabled"),
        ({"optimizer": {"typ": "Adam"}}, "optimizer.typ", "type"),
        ({"data_efficiency": {"data_sampling": {"num_epoch": 1}}}, None, "num_epochs"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_stps": 1}}}, None, "warmup_num_steps"),
        ({"optimizer": {"type": "SGD", "params": {"momentun": 1}}}, None, "momentum"),
        ({"optimizer": {"type": "Adam", "params": {"learning_rate": 1}}}, None, "lr"),
    ],
)
def test_an_unknown_key_is_reported_with_the_one_that_was_meant(
    config: dict[str, Any], path: str | None, meant: str
) -> None:
    problems = told(config, fatal=None)
    assert any(f"did you mean {meant}?" in text for key, text in problems.items() if path in (None, key)), problems


def test_a_key_at_another_level_is_reported_with_where_it_belongs() -> None:
    problems = told({"loss_scale": 0, "fp16": {"gradient_clipping": 1.0}})
    assert problems["loss_scale"].endswith("it belongs in fp16")
    assert problems["fp16.gradient_clipping"].endswith("it belongs to the top level")


def test_a_note_of_the_users_own_is_only_remarked_on() -> None:
    assert "ignores it" in told({"our_experiment": 7}, fatal=False)["our_experiment"]


def test_every_key_that_deepspeed_reads_is_known() -> None:
    """Compared with what its documentation of 0.19 names, so that a reader that stops early is noticed."""
    names = known().defaults
    assert {
        "fp16",
        "bf16",
        "zero_optimization",
        "aio",
        "compile",
        "wall_clock_breakdown",
        "comms_logger",
    } <= names.keys()
    assert {"train_batch_size", "dump_state", "vocabulary_size", "sequence_parallel_size", "log_level"} <= names.keys()
    zero = known().blocks["zero_optimization"]
    assert {"stage3_max_live_parameters", "max_live_parameters", "zero_hpz_partition_size"} <= zero.defaults.keys()
    assert "nvme_path" in zero.blocks["offload_optimizer"].defaults


def test_removed_keys_are_refused_by_presence_with_the_reason() -> None:
    problems = told({"amp": {"enabled": False}, "elasticity": {"enabled": True}, "sparse_gradients": False})
    assert "though it is off: remove it" in problems["amp"]
    assert "Elastic training has been removed" in problems["elasticity"]
    assert "remove it" in problems["sparse_gradients"]
    assert "MiCS" in told({"zero_optimization": {"mics_shard_size": 2}})["zero_optimization.mics_shard_size"]


def test_auto_is_refused_with_the_value_to_write() -> None:
    problems = told(
        {
            "gradient_clipping": "auto",
            "train_batch_size": "auto",
            "zero_optimization": {"reduce_bucket_size": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        }
    )
    assert problems["gradient_clipping"].endswith("0.0 for no clipping")
    assert "overwrite_deepspeed_config" in problems["train_batch_size"]
    assert "write 500000000" in problems["zero_optimization.reduce_bucket_size"]
    assert problems["optimizer.params.lr"].endswith("write the value")


def test_auto_is_for_deepspeed_where_that_is_its_own_default() -> None:
    assert told({"pipeline": {"stages": "auto"}, "data_types": {"keep_in_fp32_modules": "auto"}}) == {}


@pytest.mark.parametrize(
    ("config", "path", "instead"),
    [
        ({"prescale_gradients": "yes"}, "prescale_gradients", "write false"),
        ({"gradient_clipping": "1"}, "gradient_clipping", "write 1.0"),
        ({"gradient_clipping": -1.0}, "gradient_clipping", "0.0 for no clipping"),
        ({"zero_optimization": 2}, "zero_optimization", "stage"),
        ({"zero_optimization": {"stage": 5}}, "zero_optimization.stage", "0, 1, 2, 3"),
        ({"fp16": {"loss_scale": "x"}}, "fp16.loss_scale", "must be a number"),
        ({"flops_profiler": {"top_modules": 1.5}}, "flops_profiler.top_modules", "write 1 "),
        ({"train_micro_batch_size_per_gpu": 4.0}, "train_micro_batch_size_per_gpu", "whole number"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps", "1 or more"),
        ({"communication_data_type": "int8"}, None, None),
        ({"communication_data_type": "float8"}, "communication_data_type", "fp32, fp16, bf16"),
        ({"gradient_allreduce_op": "max"}, "gradient_allreduce_op", '"mean" or "sum"'),
    ],
)
def test_a_value_of_another_kind_is_reported_with_one_that_fits(
    config: dict[str, Any], path: str | None, instead: str | None
) -> None:
    problems = told(config)
    if path is None or instead is None:
        return
    assert instead in problems[path]


# Batch sizes


def test_batch_sizes_that_do_not_multiply_are_reported_with_those_that_do() -> None:
    config = {"train_batch_size": 64, "gradient_accumulation_steps": 5}
    text = told(config, ranks=2)["train_batch_size"]
    assert text.startswith("64 is not micro-batch 4 x accumulation 5 x ranks 2 = 40: ")
    assert '"train_batch_size": 40' in text
    assert '"gradient_accumulation_steps": 8' in text
    assert "train_micro_batch_size_per_gpu" not in text  # no number of samples gives 64


@pytest.mark.parametrize(
    ("config", "ranks", "text"),
    [
        ({"train_batch_size": 10}, 1, "10 is no multiple of micro-batch 4 x ranks 1 = 4: write 8 or 12"),
        ({"train_batch_size": 3}, None, "write 4"),
        ({"train_batch_size": 12, "gradient_accumulation_steps": 2}, None, "micro-batch 4 x accumulation 2 = 8"),
    ],
)
def test_a_total_that_leaves_a_rest_is_reported(config: dict[str, Any], ranks: int | None, text: str) -> None:
    assert text in told(config, ranks=ranks)["train_batch_size"]


def test_no_batch_size_at_all_is_reported() -> None:
    (problem,) = lint({"gradient_clipping": 0.0}, Setup(ranks=1))
    assert "context.get_per_slot_batch_size()" in problem.text


@settings(deadline=None)
@given(
    train=st.none() | st.integers(1, 50),
    micro=st.none() | st.integers(1, 6),
    steps=st.none() | st.integers(1, 4),
    ranks=st.integers(1, 4),
)
def test_batch_sizes_are_judged_as_deepspeed_judges_them(
    train: int | None, micro: int | None, steps: int | None, ranks: int
) -> None:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = {name: value for name, value in zip(names, (train, micro, steps), strict=True) if value is not None}
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: ranks)
    with mock.patch("deepspeed.runtime.config.dist.get_rank", return_value=0):
        try:
            DeepSpeedConfig(dict(config), mpu)
            accepted = True
        except AssertionError:
            accepted = False
    assert (lint(config, Setup(ranks=ranks)) == []) == accepted


# Combinations


@pytest.mark.parametrize(
    ("config", "path", "instead"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16.enabled", "write false in one"),
        ({"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}}, None, '"stage": 3'),
        ({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, None, '"stage": 1'),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, None, "folder on the drive"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, None, "write 1.0"),
        ({"zero_optimization": {"stage": 1, "zenflow": {}}}, "zero_optimization.zenflow", "offload_optimizer"),
        ({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}}, "gradient_allreduce_op", '"mean"'),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, None, '"stage": 1'),
        ({"data_types": {"param_dtype": "bf16"}}, "data_types.param_dtype", '"bf16": {"enabled": true}'),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, None, '"stage": 1'),
        ({"managed_gradient_accumulation": False, "zero_optimization": {"stage": 3}}, None, "write false"),
        ({"checkpoint": {"writer": {"type": "FAST"}}}, "checkpoint.writer", "remove it"),
        ({"checkpoint": {"load_universal": True}}, "checkpoint.load_universal", "write false"),
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer.type", '"AdamW"'),
        ({"optimizer": {"type": "Adamx"}}, "optimizer.type", "did you mean Adamax?"),
        ({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}}, None, '"gradient_clipping": 1.0'),
        ({"scheduler": {"type": "ReduceLROnPlateau"}}, "scheduler.type", "wrap_lr_scheduler"),
        ({"optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 3}}, None, "write false"),
    ],
)
def test_what_does_not_go_together_is_reported(config: dict[str, Any], path: str | None, instead: str) -> None:
    problems = told(config)
    assert any(instead in text for key, text in problems.items() if path in (None, key)), problems


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_half_precision_without_a_device_for_it_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {name: {"enabled": True}}
    monkeypatch.setattr(type(get_accelerator()), f"is_{name}_supported", lambda _: False)
    assert "does not have it" in told(config)[f"{name}.enabled"]
    assert "does not have it" in told(config, fatal=False, here=False)[f"{name}.enabled"]
    monkeypatch.setattr(type(get_accelerator()), f"is_{name}_supported", lambda _: True)
    assert told(config) == {}


def test_an_optimizer_that_zero_has_not_seen_is_reported_with_the_key_to_add() -> None:
    zero = {"zero_optimization": {"stage": 1}}
    assert "write true" in told(zero, optimizer=sgd())["zero_allow_untested_optimizer"]
    assert told({**zero, "zero_allow_untested_optimizer": True}, optimizer=sgd()) == {}
    assert told(zero, optimizer=sgd(torch.optim.AdamW)) == {}
    assert told({}, optimizer=sgd()) == {}


def test_a_subclass_of_a_known_optimizer_counts_as_unseen() -> None:
    class Own(torch.optim.AdamW):
        pass

    assert "zero_allow_untested_optimizer" in told({"zero_optimization": {"stage": 2}}, optimizer=sgd(Own))


def test_a_torch_optimizer_with_offload_is_reported() -> None:
    config = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    assert "write false" in told(config, optimizer=sgd(torch.optim.AdamW))["zero_force_ds_cpu_optimizer"]
    assert told({**config, "zero_force_ds_cpu_optimizer": False}, optimizer=sgd(torch.optim.AdamW)) == {}


@pytest.mark.parametrize("name", ["Lamb", "Lion"])
def test_an_optimizer_that_the_device_does_not_have_is_reported(name: str) -> None:
    config = {"optimizer": {"type": name, "params": {"lr": 0.1}}}
    assert told(config)["optimizer.type"].startswith(f"DeepSpeed's {name} needs a GPU")
    assert told(config, fatal=False, here=False)
    assert told({"optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 1, **OFFLOADED}}) == {}


def test_groups_of_ranks_that_are_not_of_one_size_are_reported() -> None:
    config = {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}, "tensor_parallel": {"autotp_size": 2}}
    problems = told(config, ranks=3)
    assert problems["zero_optimization.zero_hpz_partition_size"] == "2 does not divide the 3 ranks"
    assert "tensor_parallel.autotp_size" in problems
    assert told(config, ranks=4) == {}


def test_sampling_of_data_that_deepspeed_does_not_load_is_remarked_on() -> None:
    config = {"data_efficiency": {"enabled": True, "data_sampling": {"enabled": True}}}
    assert "loaders stay as they are" in told(config, fatal=False, data=None)["data_efficiency.data_sampling"]
    assert told(config, data=[]) == {}


def test_no_optimizer_where_zero_needs_one_is_reported() -> None:
    assert "optimizer" in told({"zero_optimization": {"stage": 2}}, optimizer=None)
    assert told({}, optimizer=None) == {}


def test_adam_that_means_adamw_is_remarked_on() -> None:
    config = {"optimizer": {"type": "Adam", "params": {"lr": 0.1}}}
    assert 'takes "Adam" for AdamW' in told(config, fatal=False)["optimizer.params.adam_w_mode"]
    assert told({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}) == {}


def test_a_pipeline_works_with_the_low_stages_only() -> None:
    assert "write 1" in told({"zero_optimization": {"stage": 2}}, kind="pipeline")["zero_optimization.stage"]
    assert told({"zero_optimization": {"stage": 1}}, kind="pipeline") == {}


def test_a_plateau_schedule_given_to_deepspeed_is_reported() -> None:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd())
    assert "MANUAL_STEP" in told({}, optimizer=sgd(), scheduler=scheduler)["scheduler"]


# Where it is used


BAD = {"train_batch_size": 7, "gradient_cliping": 1.0, "amp": {"enabled": False}, "prescale_gradients": 3}


def initialize(config: Any, **more: Any) -> Any:
    net = nn.Linear(4, 1)
    return deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), config=config, **more)[
        0
    ]


def everything_at_once(tmp_path: Path) -> str:
    with det_ds.init(run_dir=tmp_path), pytest.raises(InvalidDeepSpeedConfigException) as raised:
        initialize({**MICRO, **BAD})
    return str(raised.value)


def test_an_engine_is_refused_with_everything_at_once(tmp_path: Path) -> None:
    message = everything_at_once(tmp_path)
    assert message.startswith("The DeepSpeed config has 4 problems:\n")
    assert all(f"\n  {path}: " in message for path in BAD)


def test_every_rank_refuses_with_its_number_of_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(everything_at_once, tmp_path)
    assert first == second
    assert "micro-batch 4 x ranks 2" in first


def test_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({**MICRO, **BAD}))
    with (
        det_ds.init(run_dir=tmp_path),
        pytest.raises(InvalidDeepSpeedConfigException, match=r"ds_config\.json\) has 4"),
    ):
        initialize(str(path))


def test_config_wins_over_args_with_one_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    args = SimpleNamespace(deepspeed_config="other.json")
    with det_ds.init(run_dir=tmp_path):
        engines = [initialize({**MICRO, "gradient_clipping": 0.5}, args=args) for _ in range(2)]

    assert [engine.gradient_clipping() for engine in engines] == [0.5, 0.5]
    assert args.deepspeed_config == "other.json"
    (notice,) = [record.getMessage() for record in caplog.records if "args.deepspeed_config" in record.getMessage()]
    assert "('other.json'): config= is used" in notice


def test_no_config_is_refused(tmp_path: Path) -> None:
    with det_ds.init(run_dir=tmp_path), pytest.raises(InvalidDeepSpeedConfigException, match="no config"):
        initialize(None)


def test_a_layout_of_ranks_given_to_deepspeed_is_refused_with_its_place(tmp_path: Path) -> None:
    with (
        det_ds.init(run_dir=tmp_path) as context,
        pytest.raises(InvalidDeepSpeedConfigException, match=r"context\.set_mpu"),
    ):
        initialize(dict(MICRO), mpu=det_ds.make_data_parallel_mpu(context.distributed))


def test_the_configs_of_several_engines_are_checked_one_by_one(tmp_path: Path) -> None:
    with det_ds.init(run_dir=tmp_path) as context:
        context.wrap_model_engine(initialize(toys.ds_config()))
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(InvalidDeepSpeedConfigException, match="2 problems"):
            deepspeed.initialize(
                model=EngineModule(optimizer, net=net), optimizer=optimizer, config=toys.ds_config(stage=2)
            )


def test_deepspeed_is_as_it_was_after_a_run(tmp_path: Path) -> None:
    before = deepspeed.initialize
    with det_ds.init(run_dir=tmp_path):
        assert deepspeed.initialize is not before
    assert deepspeed.initialize is before


def test_a_remark_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with det_ds.init(run_dir=tmp_path):
        for _ in range(2):
            initialize({**toys.ds_config(), "a_note_of_ours": 1})
    assert sum("a_note_of_ours" in record.getMessage() for record in caplog.records) == 1


def test_an_engine_with_a_schedule_is_made_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with det_ds.init(run_dir=tmp_path):
        initialize({**toys.ds_config(), "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}}})
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("as_file", [True, False])
def test_a_config_that_hyperparameters_name_is_checked_before_the_trial_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_file: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    config: dict[str, Any] = {"zero_optimization": {"stge": 1}, "train_batch_size": "auto"}
    Path("ds_config.json").write_text(json.dumps(config))
    hparams = {
        "deepspeed_config": "ds_config.json" if as_file else config,
        "overwrite_deepspeed_args": {"gradient_accumulation_step": 2},
    }
    with pytest.raises(InvalidDeepSpeedConfigException) as raised, det_ds.init(hparams=hparams):
        raise AssertionError("the trial would be made here")
    assert "2 problems" in str(raised.value)  # what is "auto" and what is missing is left to the trial
    assert "stge" in str(raised.value)
    assert "gradient_accumulation_step:" in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"train_batch_size": 4,}', r"ds_config\.json is not JSON: .*line 1 column 24"),
        ("[]", "a DeepSpeed config is a JSON object, this is a list"),
        ('{"fp16": {}, "fp16": {}}', "these keys occur twice: fp16"),
        ('{"zero_optimization": 1}', "zero_optimization is 1, it cannot be overwritten"),
    ],
)
def test_a_config_that_cannot_be_read_is_reported_before_the_trial_is_made(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "ds_config.json").write_text(content)
    hparams = {
        "deepspeed_config": str(tmp_path / "ds_config.json"),
        "overwrite_deepspeed_args": {"zero_optimization": {"stage": 1}},
    }
    with pytest.raises(InvalidDeepSpeedConfigException, match=message), det_ds.init(hparams=hparams):
        raise AssertionError("the trial would be made here")


def test_a_config_that_is_not_there_is_reported_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="in the working directory"):
        det_ds.overwrite_deepspeed_config(str(tmp_path / "no.json"), {})


def test_a_trial_trains_with_a_config_that_it_completes(tmp_path: Path) -> None:
    hparams = {"deepspeed_config": {"gradient_clipping": 0.0}, "stage": 1}
    outcome = toys.fit(toys.SimpleDS, hparams, tmp_path, max_length=pytorch.Batch(1))
    assert len(outcome.training) == 1


# Whatever stands in the file


def values() -> st.SearchStrategy[Any]:
    scalars = (
        st.none() | st.booleans() | st.integers(-1, 5) | st.floats() | st.sampled_from(["auto", "", "cpu", "fp16"])
    )
    return scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from(["enabled", "type", "x"]), scalars)


def block(keys: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some of a block's own keys, with values that they may not have."""
    inner = {name: block(below) for name, below in keys.blocks.items()}
    options = {name: inner[name] | values() if name in inner else values() for name in keys.defaults}
    return st.sets(st.sampled_from([*sorted(options), ""]), max_size=3).flatmap(
        lambda chosen: st.fixed_dictionaries({name: options[name] for name in sorted(chosen - {""})})
    )


@settings(deadline=None, max_examples=300)
@given(config=block(known()))
def test_what_has_no_problems_is_read_by_deepspeed(config: dict[str, Any]) -> None:
    config = {**config, "train_micro_batch_size_per_gpu": 4}
    config.pop("data_efficiency", None)  # read in parts only
    problems = [problem for problem in lint(config, Setup(ranks=1, optimizer=sgd(torch.optim.AdamW))) if problem.fatal]
    if not problems:
        with mock.patch("deepspeed.runtime.config.dist.get_world_size", return_value=1):
            DeepSpeedConfig(dict(config))
