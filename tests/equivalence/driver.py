"""Trains scenarios one after another and writes a record of each: `python -m equivalence.driver job.json`.

One process is one rank, and is either an oracle or not, because `determined` names the real package in the one and
trial_runtime in the other. The job file says which scenarios, and where the records and the working copies of the
sources are; rank and world size come from the environment, as torchrun sets it.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from ds_verify.oracle import distributed_context
from ds_verify.record import Key, Record
from ds_verify.recorder import seed_everything
from ruamel.yaml import YAML

from equivalence.scenario import Periods, Scenario

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def recorder_class(callback_base: type) -> type:
    """A callback that writes down what it is shown; it derives from the callback class of the package that trains."""

    class Recorder(callback_base):  # type: ignore[misc]
        def __init__(self, record: Record, trained: int, seed: int | None) -> None:
            self.record, self.trained, self.seed = record, trained, seed
            self.checkpoint: str | None = None

        def on_training_start(self) -> None:
            # Each side draws its own random numbers while it sets up. A resumed run goes on with those it saved.
            if self.seed is not None:
                seed_everything(self.seed)

        def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
            for metrics in batch_metrics:
                self.trained += 1
                if RANK == 0:
                    self.record.add_metrics("training", self.trained, metrics)
            if RANK == 0:
                # Not a user's metrics, and in other units under accumulation.
                means = {name: value for name, value in avg_metrics.items() if name not in ("batches", "epochs")}
                self.record.add_metrics("window", self.trained, means)

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            if RANK == 0:
                self.record.add_metrics("validation", self.trained, metrics)

        def on_checkpoint_upload_end(self, uuid: str) -> None:
            self.checkpoint = uuid

    return Recorder


def add_state(record: Record, trial: object, step: int) -> None:
    """Parameters and buffers of every module that the trial holds, under the attribute's name.

    A module reached again by another attribute (an engine around it) is the same storage and is recorded once.
    """
    seen: set[int] = set()
    for attribute, module in vars(trial).items():
        if not isinstance(module, torch.nn.Module):
            continue
        while type(module).__name__ == "DeepSpeedEngine" or isinstance(
            module, torch.nn.parallel.DistributedDataParallel
        ):
            module = module.module
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                held = tensor.detach().cpu()
                held = held.float() if held.dtype == torch.bfloat16 else held  # which numpy does not have
                record.add(Key("state", step, f"{attribute}.{name}", RANK), held.numpy())


@contextlib.contextmanager
def imported(folder: Path, name: str) -> Iterator[ModuleType]:
    """The module `name` of `folder`, with the working directory there; its neighbours are forgotten afterwards."""
    before, where = set(sys.modules), Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        os.chdir(where)
        for loaded in set(sys.modules) - before:
            file = getattr(sys.modules[loaded], "__file__", None)
            if file and folder in Path(file).parents:
                del sys.modules[loaded]


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = merge(merged.get(key, {}), value) if isinstance(value, dict) else value
    return merged


def hyperparameters(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """Those of the experiment config; for a converted trial with the ZeRO stage and accumulation of the scenario."""
    own = folder / "accumulate.yaml"
    accumulate = scenario.accumulation > 1 and own.exists()
    config = YAML(typ="safe").load(own if accumulate else folder / "const.yaml")
    hparams: dict[str, Any] = config["hyperparameters"]
    if scenario.side != "candidate":
        return hparams
    overwrite: dict[str, Any] = {"zero_optimization": {"stage": scenario.zero}}
    if not accumulate:
        overwrite["gradient_accumulation_steps"] = scenario.accumulation
    return merge(hparams, {"overwrite_deepspeed_args": overwrite})


def trial_class(module: ModuleType, base: type) -> type:
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    found = [value for value in own if inspect.isclass(value) and issubclass(value, base)]
    if len(found) != 1:
        raise LookupError(f"{module.__file__} defines {len(found)} trials, expected one")
    return found[0]


def determined_deepspeed_on_cpu() -> ModuleType:
    """Determined's DeepSpeedTrial refuses to start without a GPU; nothing else of it is changed."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or init_distributed compiles it
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "0")
    package = importlib.import_module("determined.pytorch.deepspeed")

    def on_cpu(context: Any) -> None:
        context.device = torch.device("cpu")

    package.DeepSpeedTrialContext._init_device = on_cpu
    return package


def train(scenario: Scenario, folder: Path) -> Record:
    """Runs the scenario, in two parts when it is resumed, and returns this rank's record."""
    periods, record = Periods(), Record()
    ends = [periods.resume_at, periods.total] if scenario.resumed else [periods.total]
    trained, checkpoint = 0, None
    for end in ends:
        with imported(folder, scenario.module) as module:
            seed_everything(scenario.seed)
            checkpoint, trial = fit(scenario, folder, module, record, trained, end, checkpoint)
            if end == periods.total:
                add_state(record, trial, end)
        trained = end
    return record


def fit(
    scenario: Scenario, folder: Path, module: ModuleType, record: Record, trained: int, end: int, checkpoint: str | None
) -> tuple[str | None, Any]:
    """Trains from `trained` to `end` micro-batches; returns the last checkpoint's id and the trial."""
    periods, hparams = Periods(), hyperparameters(scenario, folder)
    pytorch = importlib.import_module("determined.pytorch" if scenario.real else "trial_runtime.pytorch")
    init_args: dict[str, Any] = {"hparams": hparams, "enable_tensorboard_logging": False}
    if scenario.side == "candidate":
        package = importlib.import_module("trial_runtime.pytorch.deepspeed")
        base, batch = package.DeepSpeedTrial, scenario.accumulation
    elif scenario.side == "target":
        package = determined_deepspeed_on_cpu()
        base, batch = package.DeepSpeedTrial, 1
    else:
        package, base, batch = pytorch, pytorch.PyTorchTrial, 1
        init_args["aggregation_frequency"] = scenario.accumulation
    if scenario.side == "oracle":
        init_args["distributed"] = distributed_context()

    with package.init(**init_args) as context:
        cls = trial_class(module, base)
        extra = {"hparams": hparams} if "hparams" in inspect.signature(cls).parameters else {}
        trial = cls(context, **extra)
        for engine in getattr(context, "models", []) if scenario.side == "candidate" else []:
            options = (engine.zero_optimization_stage(), engine.gradient_accumulation_steps())
            assert options == (scenario.zero, scenario.accumulation), f"{scenario} trains with {options}"
        recorder = recorder_class(pytorch.PyTorchCallback)(record, trained, None if trained else scenario.seed + 1)
        callbacks = trial.build_callbacks
        trial.build_callbacks = lambda: {**callbacks(), "equivalence_recorder": recorder}
        package.Trainer(trial, context).fit(
            max_length=pytorch.Batch(end // batch),
            validation_period=pytorch.Batch(periods.validation // batch) if scenario.validates else None,
            reporting_period=pytorch.Batch(periods.reporting // batch),
            checkpoint_policy="none",
            latest_checkpoint=checkpoint,
        )
    return recorder.checkpoint, trial


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    scenarios = [Scenario(**fields) for fields in job["scenarios"]]
    torch.set_num_threads(1)
    if not any(scenario.real for scenario in scenarios):
        from trial_runtime.train import determined_alias

        determined_alias.install()
    if WORLD_SIZE > 1:
        dist.init_process_group(
            "gloo", f"file://{job['store']}", timedelta(seconds=60), world_size=WORLD_SIZE, rank=RANK
        )
    for scenario in scenarios:
        try:
            record = train(scenario, Path(job["folders"][str(scenario)]))
        except BaseException:
            Path(job["records"], f"{scenario}.rank{RANK}.error").write_text(traceback.format_exc())
            raise
        record.save(Path(job["records"], f"{scenario}.rank{RANK}.npz"))
    if WORLD_SIZE > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
