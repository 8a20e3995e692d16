"""Measure what a training loop costs: the runtime's, Determined's and one written by hand, in turns.

    python benchmarks/loop.py [--reports 30] [--launches 5] [--stage 0] [--layers 2] [--json FILE]

All use the same small model, data and engine configuration on a CPU. The cost of a loop is the time of a step beyond
that of the loop written by hand, which reads a batch, moves it, and runs forward, backward and step. Both other loops
report every 100 batches, with TensorBoard on, as by default; the runtime also writes its log and JSON lines.

Each loop is a separate process on the same core. They take turns of one report, 100 steps, so that other work on the
machine affects all of them. The measure is CPU time of the whole process with its writer threads, without validation
and checkpoints. The cost is the median over the turns of the difference to the loop by hand. Memory layout varies from
process to process, so all are launched several times, and the median launch counts.

``determined`` refuses to train with DeepSpeed without a GPU. This check is disabled; nothing else is changed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trial_runtime._ranks import rank_variables

BATCH, WIDTH, REPORT = 8, 16, 100
WARM_UP = 5  # turns that do not count


def by_hand(options: argparse.Namespace, turn: Callable[[], None]) -> None:
    """Train in a loop without anything else."""
    import torch
    from torch import nn

    engine = engine_of(options)
    engine.train()
    batches = iter(torch.utils.data.DataLoader(data(options), batch_size=BATCH))
    device = torch.device("cpu")
    for step in range(options.reports * REPORT):
        if step % REPORT == 0:
            turn()
        inputs, targets = (part.to(device) for part in next(batches))
        loss = nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
    turn()


def trial_runtime(options: argparse.Namespace, turn: Callable[[], None]) -> None:
    """Train with the runtime's loop, with everything that a run directory has by default."""
    from trial_runtime import pytorch
    from trial_runtime.pytorch import deepspeed as package

    logging.getLogger("trial_runtime").setLevel(logging.INFO)
    fit(pytorch, package, options, turn, run_dir=".")


def determined(options: argparse.Namespace, turn: Callable[[], None]) -> None:
    """Train with Determined's own loop."""
    import torch

    package = importlib.import_module("determined.pytorch.deepspeed")

    def on_cpu(context: Any) -> None:
        context.device = torch.device("cpu")

    package.DeepSpeedTrialContext._init_device = on_cpu
    fit(importlib.import_module("determined.pytorch"), package, options, turn)


LOOPS = {"by hand": by_hand, "trial_runtime": trial_runtime, "determined": determined}


def data(options: argparse.Namespace) -> Any:
    import torch

    inputs = torch.randn(options.reports * REPORT * BATCH, WIDTH)
    return torch.utils.data.TensorDataset(inputs, inputs.sin())


def engine_of(options: argparse.Namespace) -> Any:
    import deepspeed
    import torch
    from torch import nn

    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(options.layers)))
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": options.stage},
        "zero_allow_untested_optimizer": True,
    }
    return deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), config=config)[0]


def fit(pytorch: Any, package: Any, options: argparse.Namespace, turn: Callable[[], None], **init: Any) -> None:
    from torch import nn

    class Turns(pytorch.PyTorchCallback):  # type: ignore[misc]
        def on_training_start(self) -> None:
            turn()

        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            del avg_metrics, batch_metrics
            turn()

    class Trial(package.DeepSpeedTrial):  # type: ignore[misc]
        def __init__(self, context: Any) -> None:
            self.context = context
            self.model = context.wrap_model_engine(engine_of(options))

        def build_callbacks(self) -> dict[str, Any]:
            return {"turns": Turns()}

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            del epoch_idx, batch_idx
            inputs, targets = self.context.to_device(next(dataloader_iter))
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            self.model.backward(loss)
            self.model.step()
            return {"loss": loss}

        def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> Any:
            del batch_idx
            inputs, _ = self.context.to_device(next(dataloader_iter))
            return {"mean": self.model(inputs).mean()}

        def build_training_data_loader(self) -> Any:
            return pytorch.DataLoader(data(options), batch_size=BATCH)

        build_validation_data_loader = build_training_data_loader

    with package.init(hparams={"global_batch_size": BATCH}, **init) as context:
        package.Trainer(Trial(context), context).fit(
            max_length=pytorch.Batch(options.reports * REPORT),
            reporting_period=pytorch.Batch(REPORT),
            checkpoint_policy="none",
        )


def child(options: argparse.Namespace) -> None:
    """Train with one loop; print the CPU seconds of each turn, and wait for the next one."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what the libraries print
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import deepspeed.ops
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles
    started: list[float] = []

    def turn() -> None:
        if started:
            print(time.process_time() - started.pop(), file=answers, flush=True)
        sys.stdin.readline()
        started.append(time.process_time())

    LOOPS[options.loop](options, turn)


def start(name: str, arguments: list[str], folder: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **rank_variables(0, 1, 0),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--loop", name, *arguments]
    with Path(folder, "log").open("w") as log:
        return subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )


def microseconds(arguments: list[str], reports: int) -> dict[str, list[float]]:
    """Return the microseconds of a step in each turn of each loop."""
    with tempfile.TemporaryDirectory() as parent:
        folders = {name: Path(parent, name) for name in LOOPS}
        for folder in folders.values():
            folder.mkdir()
        children = {name: start(name, arguments, str(folder)) for name, folder in folders.items()}
        turns: dict[str, list[float]] = {name: [] for name in LOOPS}
        try:
            for _ in range(reports):
                for name, process in children.items():
                    assert process.stdin and process.stdout
                    print(file=process.stdin, flush=True)
                    answer = process.stdout.readline()
                    if not answer:
                        raise RuntimeError(f"{name} failed:\n{(folders[name] / 'log').read_text()[-3000:]}")
                    turns[name].append(1e6 * float(answer) / REPORT)
        finally:
            for process in children.values():
                process.kill()
                process.wait()
    return {name: values[WARM_UP:] for name, values in turns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--reports", type=int, default=30, help="turns of 100 steps")
    parser.add_argument("--launches", type=int, default=5, help="number of times that all loops are started")
    parser.add_argument("--stage", type=int, default=0, help="ZeRO stage")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--loop", choices=LOOPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        child(options)
        return
    arguments = [f"--reports={options.reports}", f"--stage={options.stage}", f"--layers={options.layers}"]
    launches = [microseconds(arguments, options.reports) for _ in range(options.launches)]
    costs = {
        name: sorted(
            statistics.median(mine - hand for mine, hand in zip(steps[name], steps["by hand"], strict=True))
            for steps in launches
        )
        for name in ("trial_runtime", "determined")
    }
    cost = {name: statistics.median(values) for name, values in costs.items()}
    result = {
        "step_microseconds": {
            name: round(statistics.median(turn for steps in launches for turn in steps[name]), 1) for name in LOOPS
        },
        "own_microseconds": {name: round(value, 1) for name, value in cost.items()},
        "own_microseconds_of_each_launch": {name: [round(v, 1) for v in values] for name, values in costs.items()},
        "determined_over_trial_runtime": round(cost["determined"] / cost["trial_runtime"], 1),
        "zero_stage": options.stage,
        "layers": options.layers,
        "turns": options.reports - WARM_UP,
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "deepspeed", "determined")},
        },
    }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
