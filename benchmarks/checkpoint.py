"""Measure how long training stops for a checkpoint: of the runtime, and by ``engine.save_checkpoint`` alone, in turns.

    python benchmarks/checkpoint.py [--mib 64 1100] [--rounds 7] [--folder DIR ...] [--json FILE]

One engine on a CPU (ZeRO stage 0, AdamW) whose checkpoint has about this size. Both write to the same disk, in the same
process, into new folders. The runtime's save is that of ``fit()``: generators, data position, code, callbacks, and the
start of the commit. The work of the commit thread (hashing, fsync, rename) is measured separately. The best round of
each counts.

Wall time is unreliable on a machine with other work. Two figures do not depend on it: the CPU time of the training
thread (medians), and the runtime's own part of a stop, beside the engine's writing in the same save.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed
import torch
from torch import nn
from trial_runtime import pytorch
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._checkpoints.run_state import RunCheckpointer

BYTES_A_PARAMETER = 12  # its value and two moments, fp32
WIDTH = 1024
FIGURES = ("engine", "engine_cpu", "runtime", "runtime_cpu", "runtime_own", "until_committed")


class Wide(det_ds.DeepSpeedTrial):
    """A trial with as many layers of WIDTH x WIDTH as fill the checkpoint."""

    def __init__(self, context: det_ds.DeepSpeedTrialContext) -> None:
        self.context = context
        layers = context.get_hparam("bytes") // (BYTES_A_PARAMETER * WIDTH * WIDTH)
        net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(max(1, layers))))
        config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0}
        optimizer = torch.optim.AdamW(net.parameters())
        engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
        self.model = context.wrap_model_engine(engine)

    def build_training_data_loader(self) -> Any:
        data = torch.utils.data.TensorDataset(torch.randn(8, WIDTH))
        return pytorch.DataLoader(data, batch_size=1)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        del epoch_idx, batch_idx
        (inputs,) = next(dataloader_iter)
        loss = self.model(inputs).square().mean()
        self.model.backward(loss)
        self.model.step()
        return {"loss": loss}

    def save(self, context: det_ds.DeepSpeedTrialContext, path: Path) -> None:
        began = time.perf_counter()
        super().save(context, path)
        self.engine_part = time.perf_counter() - began

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        (inputs,) = next(dataloader_iter)
        return {"loss": self.model(inputs).square().mean()}


class Measuring:
    """A replacement of the runtime's save that also saves with the engine alone, in alternating order.

    A save is committed before the next one starts.

    Args:
        save: the save of the runtime.
    """

    def __init__(self, save: Callable[[RunCheckpointer], None]) -> None:
        self.save = save
        self.figures: dict[str, list[float]] = {name: [] for name in FIGURES}
        self.bytes = 0

    def __call__(self, checkpointer: RunCheckpointer) -> None:
        turns = [self.by_engine, self.by_runtime]
        for save in turns if len(self.figures["engine"]) % 2 else reversed(turns):
            save(checkpointer)

    def by_engine(self, checkpointer: RunCheckpointer) -> None:
        folder = checkpointer.store.directory.parent / "engine"
        began = self.start()
        checkpointer.context.models[0].save_checkpoint(str(folder), tag="model0")
        self.note("engine", began)
        self.figures["engine_cpu"].append(time.thread_time() - self.cpu)
        self.clear(folder)

    def by_runtime(self, checkpointer: RunCheckpointer) -> None:
        folder = checkpointer.store.directory
        began = self.start()
        self.save(checkpointer)
        self.note("runtime", began)
        self.figures["runtime_cpu"].append(time.thread_time() - self.cpu)
        self.figures["runtime_own"].append(self.figures["runtime"][-1] - checkpointer.strategy.trial.engine_part)
        checkpointer.finish_commit()
        self.note("until_committed", began)
        self.bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self.clear(folder)

    def start(self) -> float:
        os.sync()
        self.cpu = time.thread_time()
        return time.perf_counter()

    def note(self, what: str, began: float) -> None:
        self.figures[what].append(time.perf_counter() - began)

    def clear(self, folder: Path) -> None:
        os.sync()  # both leave the machine alike
        shutil.rmtree(folder)


def measure(size: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return how many seconds training stops for a checkpoint of ``size`` bytes."""
    with det_ds.init(hparams={"bytes": size, "global_batch_size": 1}, run_dir=folder) as context:
        measuring = Measuring(RunCheckpointer.save)
        replaced = mock.patch.object(RunCheckpointer, "save", lambda checkpointer: measuring(checkpointer))
        context.set_enable_tensorboard_logging(False)
        trainer = det_ds.Trainer(Wide(context), context)
        with replaced:
            trainer.fit(
                max_length=pytorch.Batch(rounds + 1), checkpoint_period=pytorch.Batch(1), checkpoint_policy="none"
            )
    figures = {name: values[1:] for name, values in measuring.figures.items()}  # the first round is warm-up
    best = {name: min(values) for name, values in figures.items()}  # slower rounds were disturbed by other work
    middle = {name: statistics.median(values) for name, values in figures.items()}
    return {
        "filesystem": filesystem(folder),
        "checkpoint_mib": round(measuring.bytes / 2**20, 1),
        "rounds": rounds,
        "engine_save_checkpoint_s": round(best["engine"], 4),
        "runtime_stop_s": round(best["runtime"], 4),
        "runtime_until_committed_s": round(best["until_committed"], 4),
        "stop_longer_percent": round(100 * (best["runtime"] / best["engine"] - 1), 1),
        "cpu_longer_percent": round(100 * (middle["runtime_cpu"] / middle["engine_cpu"] - 1), 1),
        "own_part_of_stop_percent": round(100 * middle["runtime_own"] / middle["runtime"], 1),
        "every_round_s": {name: [round(v, 4) for v in figures[name]] for name in FIGURES},
    }


def filesystem(folder: Path) -> str:
    """Return the kind of file system, as ``stat`` names it."""
    command = ["stat", "--file-system", "--format=%T", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[64], help="sizes of the checkpoint")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, nargs="+", default=[None], help="where to write checkpoints")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    results = []
    for where, mib in itertools.product(options.folder, options.mib):
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=where) as folder:
            results.append(measure(mib << 20, options.rounds, Path(folder)))
        done = results[-1]
        print(
            f"{done['checkpoint_mib']:8.1f} MiB, {done['filesystem']}: training stops {done['runtime_stop_s']:.3f} s, "
            f"engine.save_checkpoint alone {done['engine_save_checkpoint_s']:.3f} s "
            f"({done['stop_longer_percent']:+.1f}%; CPU {done['cpu_longer_percent']:+.1f}%; the runtime's own part "
            f"{done['own_part_of_stop_percent']:.1f}%); committed after {done['runtime_until_committed_s']:.3f} s"
        )
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
