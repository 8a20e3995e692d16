"""Lines that ``ds-train`` prints: what it is going to run, and what happened."""

from __future__ import annotations

import argparse
import json

from ds_migrate.command_line import print_error, print_notice

from trial_runtime._redaction import masked_command, masked_hparams
from trial_runtime.train.config.run_plan import RunPlan
from trial_runtime.train.run import plan_report
from trial_runtime.train.run.paths import relative_path
from trial_runtime.train.run.run_directory import RunDirectory


def print_plan(plan: RunPlan, run: RunDirectory | None = None) -> None:
    """Print what is going to run, and each field that is not acted on."""
    entry = plan.entrypoint
    what = " ".join(masked_command([entry.target, *entry.args]))
    processes = "1 process" if plan.slots == 1 else f"{plan.slots} processes"
    print_line(
        f"{what} in {plan.context} on {processes}"
        + (f"; run directory {relative_path(run.path)}, seed {run.seed}" if run else "")
    )
    if plan.fit.test_mode:
        print_line("test: one batch is trained and one validated")
    for field, note in plan.notices:
        print_line(f"{field}: {note}")
    if (plan.context / "startup-hook.sh").is_file():
        print_line(
            "startup-hook.sh: not run, a cluster did in its containers: run 'source startup-hook.sh' before ds-train"
        )


def print_dry_run(options: argparse.Namespace, plan: RunPlan) -> None:
    """Print what ``--dry-run`` shows."""
    if options.format == "json":
        print(plan_report.as_json(plan))
        return
    print_plan(plan)
    for line in plan_report.as_lines(plan):
        print_line(line)
    print(json.dumps({"hparams": masked_hparams(plan.hparams)}, indent=2, default=str))


def print_line(line: str) -> None:
    """Print a line to stderr, or a message of several; nothing in it is obeyed by a terminal."""
    print_notice("ds-train", line)


def print_failure(line: str) -> None:
    """Print why a run could not start, or failed."""
    print_error("ds-train", line)
