"""The options of ``ds-train``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ds_migrate.command_line import CommandParser

from trial_runtime import __version__
from trial_runtime.train.jobs.command import WRITERS

_USAGE = """\
%(prog)s CONFIG.yaml [DIR] [OPTION...]
       %(prog)s --check [CONFIG.yaml]
       %(prog)s runs list|show|best|compare|export|prune
       %(prog)s --version | --help"""
_EPILOG = """\
several machines: torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
                      -m trial_runtime.train CONFIG.yaml
continue a run:   ds-train CONFIG.yaml --run-dir runs/NAME-1
see earlier runs: ds-train runs list (also show, best, compare, export, prune)
exit codes:       0 trained; 1 the trial failed; 2 the config or an option cannot be run; 128+N stopped by signal N
"""


def parser() -> argparse.ArgumentParser:
    """Build the argument parser of ``ds-train``."""
    made = CommandParser(
        prog="ds-train",
        usage=_USAGE,
        description="Train a PyTorchTrial or DeepSpeedTrial from its Determined experiment config, without a cluster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("config", type=Path, metavar="CONFIG.yaml", help="the experiment config")
    made.add_argument(
        "context",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="the folder with the trial's code: working directory and first on the import path "
        "(default: the config's folder, or the nearest above it that the entrypoint is found from)",
    )
    made.add_argument(
        "--hparam",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="pick the value of a search space, or change one",
    )
    made.add_argument(
        "--config",
        action="append",
        default=[],
        dest="settings",
        metavar="FIELD=VALUE",
        help="change a field: a.b.c=value",
    )
    made.add_argument(
        "--slots",
        type=int,
        metavar="N",
        help="change resources.slots_per_trial: processes on this machine; a search: slots that its trials share",
    )
    made.add_argument("--seed", type=int, metavar="N", help="change reproducibility.experiment_seed")
    made.add_argument("--resume", action="store_true", help="continue the newest run of this config's name below runs/")
    made.add_argument("--run-dir", type=Path, metavar="DIR", help="a new run directory, or one to continue from")
    made.add_argument(
        "--latest-checkpoint",
        metavar="PATH",
        help="checkpoint to start from, or a run directory, of which the newest is used; path or URL of a storage",
    )
    made.add_argument(
        "--trust-checkpoint",
        action="store_true",
        help="load objects that can run code from the checkpoint, although no run of yours wrote it",
    )
    made.add_argument(
        "--asha",
        choices=("promotion", "stop_once"),
        help="which of Determined's ASHA searches is meant, if not the one that the config's fields name",
    )
    made.add_argument("--assignment", type=Path, help=argparse.SUPPRESS)  # the trial of a search, by its ds-train
    made.add_argument(
        "--hang-timeout",
        type=_seconds,
        metavar="S",
        help="end the run when no rank has moved for S seconds, and report which rank waits where, and for whom",
    )
    made.add_argument("--test", action="store_true", help="train and validate one batch")
    made.add_argument(
        "--stop-on-nan", action="store_true", help="end with exit code 1 once the loss is NaN or infinite"
    )
    made.add_argument(
        "--stop-after-no-better",
        type=_positive,
        metavar="N",
        help="end after N validations in a row without a better searcher.metric (in the config: early_stopping: N)",
    )
    made.add_argument(
        "--log-with",
        metavar="NAMES",
        help="send metrics to experiment trackers, with commas between them: trackio, mlflow, wandb (in the config: "
        "log_with); TensorBoard files are always written",
    )
    made.add_argument(
        "--log-grad-norm",
        action="store_true",
        help="report the norm of the gradients of a DeepSpeedTrial with each batch's metrics (in the config: "
        "log_grad_norm)",
    )
    made.add_argument(
        "--precision",
        choices=("fp32", "bf16", "fp16"),
        help="what a DeepSpeedTrial's engine computes in: changes hyperparameters.overwrite_deepspeed_args",
    )
    made.add_argument("--device", choices=("cpu", "cuda"), help="device to train on (default: GPUs, if there are any)")
    made.add_argument(
        "--write-job",
        choices=tuple(WRITERS),
        help="write a job file for SLURM, SkyPilot or Kubeflow from the config; run nothing",
    )
    made.add_argument(
        "--slots-per-node", type=_positive, metavar="N", help="with --write-job: processes on each machine (default: 8)"
    )
    made.add_argument("--dry-run", action="store_true", help="check the config and show the plan; run nothing")
    made.add_argument(
        "--validate",
        metavar="CHECKPOINT",
        help="validate a checkpoint, or the newest one of a run directory, and print its metrics; train nothing",
    )
    made.add_argument(
        "--format", choices=("text", "json"), default="text", help="output format of --validate and --dry-run"
    )
    made.add_argument(
        "--check",
        action="store_true",
        help="show this machine, the patches of DeepSpeed in force, and what a DeepSpeed config needs; run nothing. "
        "CONFIG is optional then: `ds-train --check --help`",
    )
    made.add_argument("--version", action="version", version=f"ds-train {__version__}")
    # The deepspeed launcher appends it; the environment has it too.
    made.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)
    return made


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: write a number of at least 1")
    return number


def _seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: write a number of seconds above 0")
    return seconds
