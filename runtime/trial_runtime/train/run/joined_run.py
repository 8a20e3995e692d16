"""One rank of a run whose ranks ``torchrun``, ``deepspeed`` or ``srun`` started."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

from trial_runtime._cluster_info import ENV_VAR, ClusterInfo
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import RunPlan
from trial_runtime.train.run import external_launcher
from trial_runtime.train.run.end_of_run import end_of_run
from trial_runtime.train.run.local_launcher import USAGE_EXIT
from trial_runtime.train.run.output import print_dry_run, print_failure, print_line, print_plan
from trial_runtime.train.run.prepare import changed_document, is_search_run, open_directory, plan_from, write_info
from trial_runtime.train.run.run_directory import keep_record


def run_joined_rank(options: argparse.Namespace, is_chief: bool) -> int:
    """Run a config in this process, which a launcher started as a rank.

    Args:
        options: of ``ds-train``.
        is_chief: this is rank 0, which reports for all.

    Returns:
        The exit code of the rank.
    """
    external_launcher.leave_with_launcher()
    os.environ.update(external_launcher.complete_environment(os.environ))
    size, local_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    try:
        plan, wrong = _joined_plan(options, size), None
    except ConfigError as error:
        plan, wrong = None, error
    if plan is not None and options.dry_run:
        if is_chief:
            print_dry_run(options, plan)
        return 0

    def decide(earlier: str | None) -> str:
        try:
            if plan is None:
                raise wrong or AssertionError
            if earlier:
                options.run_dir = Path(ClusterInfo.from_json(earlier).run.directory)
            run = open_directory(options, plan)
        except ConfigError as error:
            print_failure(str(error))
            return ""
        print_plan(plan, run)
        return write_info(options, plan, run).to_json()

    # Also with a wrong config: a rank that left early would make the launcher stop rank 0 before it has reported why.
    try:
        decision, addresses = external_launcher.share_decision(decide)
    except ConfigError as error:  # each rank's own: the others may wait on other machines
        print_failure(str(error))
        return USAGE_EXIT
    if plan is None or not decision:
        if decision and wrong:  # rank 0 had no such problem: this machine may lack a file
            print_failure(f"rank {os.environ['RANK']}: {wrong}")
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
    os.environ.update(plan.rank_environment)
    os.environ[ENV_VAR] = info.to_json()  # the text, not a path: the run directory may be another machine's

    from trial_runtime.train.run import rank

    began, directory = time.monotonic(), Path(info.run.directory)
    code = rank.run(info, plan.context, plan.entrypoint.kind, plan.entrypoint.target, plan.entrypoint.args)
    if code == 0 and is_chief and (directory / "metrics.jsonl").is_file():
        for line in end_of_run(directory, time.monotonic() - began):
            print_line(line)
    return code


def _joined_plan(options: argparse.Namespace, size: int) -> RunPlan:
    if options.slots not in (None, size):
        raise ConfigError(f"--slots {options.slots}: the launcher started {size} processes; leave --slots out")
    if options.validate is not None:
        raise ConfigError("--validate: start it without a launcher; --slots N validates on N GPUs of this machine")
    options.slots = size
    document = changed_document(options)
    if is_search_run(options, document):
        raise ConfigError("a search starts its trials itself: run ds-train without a launcher, on each machine")
    plan = plan_from(options, document)
    plan.notices.append(("resources.slots_per_trial", f"the launcher's {size} processes are used"))
    if plan.max_restarts:
        plan.notices.append(("max_restarts", "restarts are the launcher's: torchrun --max-restarts"))
    return plan
