"""The command line of ``ds-train``."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trial_runtime import __version__
from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ENV_VAR, SECRET_VARIABLE, TRUST_VARIABLE, ClusterInfo
from trial_runtime._redaction import masked_command, masked_hparams, masked_words
from trial_runtime._storage.remote import OPTIONS_VARIABLE
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import RunPlan
from trial_runtime.train.config.searcher import is_search
from trial_runtime.train.jobs.command import WRITERS, write_job
from trial_runtime.train.run import external_launcher, hang_watch, plan_report
from trial_runtime.train.run.end_of_run import end_of_run
from trial_runtime.train.run.failure import clear_failures, first_failure, is_consequence
from trial_runtime.train.run.local_launcher import USAGE_EXIT, Stopped, run_ranks
from trial_runtime.train.run.paths import relative_path
from trial_runtime.train.run.prepare import changed_document, open_directory, plan_from, write_info
from trial_runtime.train.run.run_directory import SUPERVISED, SUPERVISED_SEARCH, RunDirectory, keep_record
from trial_runtime.train.run.supervision import terminate_with
from trial_runtime.train.run.validate import validate, validating_plan
from trial_runtime.train.search.command import SearchCommand

_EPILOG = """\
several machines: torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
                      -m trial_runtime.train CONFIG.yaml
continue a run:   ds-train CONFIG.yaml --run-dir runs/NAME-1
see earlier runs: ds-train runs list (also show, best, compare, export, prune)
exit codes:       0 trained; 1 the trial failed; 2 the config or an option cannot be run; 128+N stopped by signal N
"""


def parser() -> argparse.ArgumentParser:
    """Build the argument parser of ``ds-train``."""
    made = argparse.ArgumentParser(
        prog="ds-train",
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
    made.add_argument("--device", choices=("cpu", "cuda"), help="train there (default: on GPUs where there are any)")
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
        "--format", choices=("text", "json"), default="text", help="of what --validate and --dry-run print"
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``ds-train``; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["runs"]:
        from trial_runtime.train.history.cli import main as runs

        return runs(words[1:])
    if "--check" in words:
        from trial_runtime.doctor.cli import main as check

        return check([word for word in words if word != "--check"], prog="ds-train --check")
    options = parser().parse_args(words)
    options.words = words
    if options.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = "1"
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    is_chief = True
    try:
        os.environ.update(external_launcher.slurm_environment(os.environ))
        is_chief = os.environ.get("RANK", "0") == "0"
        if external_launcher.is_launched(os.environ):
            return _run_joined_rank(options, is_chief)
        document = changed_document(options)
        if options.write_job:
            _print_line(write_job(options, document))
            return 0
        if options.validate is not None and not options.dry_run:
            return validate(options, lambda: _launch(options, document))
        if _is_search(options, document):
            return SearchCommand(options, document, _print_line).run()
        return _launch(options, document)
    except ConfigError as error:
        if is_chief:
            _print_line(str(error))
        return USAGE_EXIT


def _is_search(options: argparse.Namespace, document: dict[str, Any]) -> bool:
    searcher = document.get("searcher")
    return options.assignment is None and isinstance(searcher, Mapping) and is_search(searcher)


def _launch(options: argparse.Namespace, document: dict[str, Any]) -> int:
    terminate_with(os.environ.pop(SUPERVISED_SEARCH, None))
    plan = plan_from(options, document)
    if options.validate is not None:
        plan = validating_plan(plan)
    if options.dry_run:
        _print_dry_run(options, plan)
        return 0
    is_new = options.run_dir is None and not options.resume
    run = open_directory(options, plan)
    environment = {
        **_rank_environment(plan),
        ENV_VAR: str(run.path / CLUSTER_INFO_FILE),
        SUPERVISED: str(os.getpid()),
        SECRET_VARIABLE: os.environ.get(SECRET_VARIABLE) or secrets.token_hex(32),
    }
    entry = plan.entrypoint
    arguments = ["-u", "-m", "trial_runtime.train.run.rank", str(plan.context), entry.kind, entry.target, *entry.args]
    _print_plan(plan, run)
    if options.hang_timeout is not None:
        environment[hang_watch.VARIABLE] = str(options.hang_timeout)

    def prepare_start() -> None:
        clear_failures(run.path)
        write_info(options, plan, run)

    if sys.stderr.isatty():
        _print_line("loading torch and DeepSpeed")
    began = time.monotonic()
    try:
        code = run_ranks(arguments, plan.slots, environment, plan.max_restarts, prepare_start, _print_line)
    except Stopped as stopped:
        run.record("stopped")
        _print_line(f"stopped by {stopped}; {_how_to_continue(options, run)}")
        return 128 + stopped.number
    if options.validate is not None:
        return code
    failure = None if code == 0 else first_failure(run.path)
    log, metrics = relative_path(run.path / "log"), relative_path(run.path / "metrics.jsonl")
    if code == USAGE_EXIT and is_new and not _has_trained(run):
        shutil.rmtree(run.path, ignore_errors=True)  # nothing to resume, and the error was printed
    elif code not in (0, USAGE_EXIT):
        run.record("failed")  # a killed rank could not
        _print_line(f"failed with exit code {code}; log: {log}; {_how_to_continue(options, run)}")
    if failure is not None and plan.slots > 1 and not (code == USAGE_EXIT and failure[0] == 0):
        rank, error = failure  # of one rank, and of the chief's usage, it stands there already
        if not is_consequence(error):
            _print_line(f"rank {rank} failed first: {error}")
    if code == 0 and not metrics.is_file():
        _print_line(f"finished; nothing was trained: no metrics were reported; log: {log}")
    elif code == 0:
        for line in end_of_run(run.path, time.monotonic() - began):
            _print_line(line)
    return code


def _has_trained(run: RunDirectory) -> bool:
    return (run.path / "metrics.jsonl").is_file() or any((run.path / "checkpoints").glob("*/manifest.json"))


def _how_to_continue(options: argparse.Namespace, run: RunDirectory) -> str:
    if _has_trained(run):
        return f"continue with: {_resume_command(options, run)}"
    return "nothing was trained"


def _run_joined_rank(options: argparse.Namespace, is_chief: bool) -> int:
    external_launcher.leave_with_launcher()
    os.environ.update(external_launcher.complete_environment(os.environ))
    size, local_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    try:
        plan, wrong = _joined_plan(options, size), None
    except ConfigError as error:
        plan, wrong = None, error
    if plan is not None and options.dry_run:
        if is_chief:
            _print_dry_run(options, plan)
        return 0

    def decide(earlier: str | None) -> str:
        try:
            if plan is None:
                raise wrong or AssertionError
            if earlier:
                options.run_dir = Path(ClusterInfo.from_json(earlier).run.directory)
            run = open_directory(options, plan)
        except ConfigError as error:
            _print_line(str(error))
            return ""
        _print_plan(plan, run)
        return write_info(options, plan, run).to_json()

    # Also with a wrong config: a rank that left early would make the launcher stop rank 0 before it has reported why.
    try:
        decision, addresses = external_launcher.share_decision(decide)
    except ConfigError as error:  # each rank's own: the others may wait on other machines
        _print_line(str(error))
        return USAGE_EXIT
    if plan is None or not decision:
        if decision and wrong:  # rank 0 had no such problem: this machine may lack a file
            _print_line(f"rank {os.environ['RANK']}: {wrong}")
        return USAGE_EXIT
    info = replace(
        ClusterInfo.from_json(decision),
        slot_ids=list(range(local_size)),
        container_addrs=addresses,
        container_rank=int(os.environ["GROUP_RANK"]),
        container_slot_counts=[local_size] * len(addresses),
    )
    if os.environ["LOCAL_RANK"] == "0":
        keep_record(info)
    os.environ.update(_rank_environment(plan))
    os.environ[ENV_VAR] = info.to_json()  # the text, not a path: the run directory may be another machine's

    from trial_runtime.train.run import rank

    return rank.run(info, plan.context, plan.entrypoint.kind, plan.entrypoint.target, plan.entrypoint.args)


def _joined_plan(options: argparse.Namespace, size: int) -> RunPlan:
    if options.slots not in (None, size):
        raise ConfigError(f"--slots {options.slots}: the launcher started {size} processes; leave --slots out")
    if options.validate is not None:
        raise ConfigError("--validate: start it without a launcher; --slots N validates on N GPUs of this machine")
    options.slots = size
    document = changed_document(options)
    if _is_search(options, document):
        raise ConfigError("a search starts its trials itself: run ds-train without a launcher, on each machine")
    plan = plan_from(options, document)
    plan.notices.append(("resources.slots_per_trial", f"the launcher's {size} processes are used"))
    if plan.max_restarts:
        plan.notices.append(("max_restarts", "restarts are the launcher's: torchrun --max-restarts"))
    return plan


def _rank_environment(plan: RunPlan) -> dict[str, str]:
    keys = {} if plan.storage.remote is None else {OPTIONS_VARIABLE: json.dumps(dict(plan.storage.remote.options))}
    return {**plan.environment, **dict(plan.entrypoint.environment), **keys, **plan.secret_environment}


def _print_plan(plan: RunPlan, run: RunDirectory | None = None) -> None:
    """Print what is going to run, and each field that is not acted on."""
    entry = plan.entrypoint
    what = " ".join(masked_command([entry.target, *entry.args]))
    processes = "1 process" if plan.slots == 1 else f"{plan.slots} processes"
    _print_line(
        f"{what} in {plan.context} on {processes}"
        + (f"; run directory {relative_path(run.path)}, seed {run.seed}" if run else "")
    )
    if plan.fit.test_mode:
        _print_line("test: one batch is trained and one validated")
    for field, note in plan.notices:
        _print_line(f"{field}: {note}")
    if (plan.context / "startup-hook.sh").is_file():
        _print_line(
            "startup-hook.sh: not run, a cluster did in its containers: run 'source startup-hook.sh' before ds-train"
        )


def _print_dry_run(options: argparse.Namespace, plan: RunPlan) -> None:
    if options.format == "json":
        print(plan_report.as_json(plan))
        return
    _print_plan(plan)
    for line in plan_report.as_lines(plan):
        _print_line(line)
    print(json.dumps({"hparams": masked_hparams(plan.hparams)}, indent=2, default=str))


def _resume_command(options: argparse.Namespace, run: RunDirectory) -> str:
    """Return the command that resumes ``run``: the one that started it, with its directory."""
    words = masked_words(options.words)
    for index, word in enumerate(words):
        if word == "--run-dir":
            del words[index : index + 2]
            break
        if word.startswith("--run-dir="):
            del words[index]
            break
    return shlex.join(["ds-train", *words, "--run-dir", str(relative_path(run.path))])


def _seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: write a number of seconds above 0")
    return seconds


def _print_line(line: str) -> None:
    print(f"ds-train: {line}", file=sys.stderr, flush=True)
