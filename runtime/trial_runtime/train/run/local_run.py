"""A run on this machine: its directory, its ranks, and what is reported at its end."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import sys
import time
from typing import Any

from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ENV_VAR, SECRET_VARIABLE
from trial_runtime._redaction import masked_words
from trial_runtime.train.config.run_plan import RunPlan
from trial_runtime.train.run import hang_watch
from trial_runtime.train.run.end_of_run import end_of_run
from trial_runtime.train.run.failure import clear_failures, first_failure, is_consequence
from trial_runtime.train.run.local_launcher import USAGE_EXIT, Stopped, run_ranks
from trial_runtime.train.run.output import print_dry_run, print_failure, print_line, print_plan
from trial_runtime.train.run.paths import relative_path
from trial_runtime.train.run.prepare import open_directory, plan_from, write_info
from trial_runtime.train.run.run_directory import SUPERVISED, SUPERVISED_SEARCH, RunDirectory
from trial_runtime.train.run.supervision import terminate_with
from trial_runtime.train.run.validate import validating_plan


def run_locally(options: argparse.Namespace, document: dict[str, Any]) -> int:
    """Run a config on the ranks of this machine.

    Args:
        options: of ``ds-train``.
        document: the experiment config, with the fields that the options change.

    Returns:
        The exit code of ``ds-train``.

    Raises:
        ConfigError: the config or an option cannot be run.
    """
    terminate_with(os.environ.pop(SUPERVISED_SEARCH, None))
    plan = plan_from(options, document)
    if options.validate is not None:
        plan = validating_plan(plan)
    if options.dry_run:
        print_dry_run(options, plan)
        return 0
    is_new = options.run_dir is None and not options.resume
    run = open_directory(options, plan)
    environment = {
        **plan.rank_environment,
        ENV_VAR: str(run.path / CLUSTER_INFO_FILE),
        SUPERVISED: str(os.getpid()),
        SECRET_VARIABLE: os.environ.get(SECRET_VARIABLE) or secrets.token_hex(32),
    }
    entry = plan.entrypoint
    arguments = ["-u", "-m", "trial_runtime.train.run.rank", str(plan.context), entry.kind, entry.target, *entry.args]
    print_plan(plan, run)
    if options.hang_timeout is not None:
        environment[hang_watch.VARIABLE] = str(options.hang_timeout)

    def prepare_start() -> None:
        clear_failures(run.path)
        write_info(options, plan, run)

    if sys.stderr.isatty():
        print_line("loading torch and DeepSpeed")
    began = time.monotonic()
    try:
        code = run_ranks(arguments, plan.slots, environment, plan.max_restarts, prepare_start, print_line)
    except Stopped as stopped:
        run.record("stopped")
        print_line(f"stopped by {stopped}; {_how_to_continue(options, run)}")
        return 128 + stopped.number
    if options.validate is None:
        _report_end(options, plan, run, code, is_new, time.monotonic() - began)
    return code


def _report_end(
    options: argparse.Namespace, plan: RunPlan, run: RunDirectory, code: int, is_new: bool, seconds: float
) -> None:
    """Report how the run ended, and record it where no rank could."""
    failure = None if code == 0 else first_failure(run.path)
    log = relative_path(run.path / "log")
    is_printed = code == USAGE_EXIT or (code == 1 and plan.entrypoint.kind == "class")  # a program may report nothing
    # Of several ranks the logs hold more than was printed, such as where each of them hung.
    if is_printed and is_new and plan.slots == 1 and not _has_trained(run):
        shutil.rmtree(run.path, ignore_errors=True)  # nothing to resume, and the error was printed
        if code == 1:
            print_failure("failed with exit code 1; nothing was trained")
    elif code not in (0, USAGE_EXIT):
        run.record("failed")  # a killed rank could not
        print_failure(f"failed with exit code {code}; log: {log}; {_how_to_continue(options, run)}")
    if failure is not None and plan.slots > 1 and not (code == USAGE_EXIT and failure[0] == 0):
        rank, error = failure  # of one rank, and of the chief's usage, it was printed already
        if not is_consequence(error):
            print_failure(f"rank {rank} failed first: {error}")
    if code == 0 and not (run.path / "metrics.jsonl").is_file():
        print_line(f"finished; nothing was trained: no metrics were reported; log: {log}")
    elif code == 0:
        for line in end_of_run(run.path, seconds):
            print_line(line)


def _has_trained(run: RunDirectory) -> bool:
    metrics = run.path / "metrics.jsonl"
    return (metrics.is_file() and metrics.stat().st_size > 0) or any((run.path / "checkpoints").glob("*/manifest.json"))


def _how_to_continue(options: argparse.Namespace, run: RunDirectory) -> str:
    if _has_trained(run):
        return f"continue with: {_resume_command(options, run)}"
    return "nothing was trained"


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
