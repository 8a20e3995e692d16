"""The command line of ``ds-train``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from trial_runtime._cluster_info import TRUST_VARIABLE
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.jobs.command import write_job
from trial_runtime.train.options import parser
from trial_runtime.train.run import external_launcher
from trial_runtime.train.run.joined_run import run_joined_rank
from trial_runtime.train.run.local_launcher import USAGE_EXIT
from trial_runtime.train.run.local_run import run_locally
from trial_runtime.train.run.output import print_failure, print_line
from trial_runtime.train.run.prepare import changed_document, is_search_run
from trial_runtime.train.run.validate import validate
from trial_runtime.train.search.command import SearchCommand


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
            return run_joined_rank(options, is_chief)
        document = changed_document(options)
        if options.write_job:
            print_line(write_job(options, document))
            return 0
        if options.validate is not None and not options.dry_run:
            return validate(options, lambda: run_locally(options, document))
        if is_search_run(options, document):
            return SearchCommand(options, document, print_line).run()
        return run_locally(options, document)
    except ConfigError as error:
        if is_chief:
            print_failure(str(error))
        return USAGE_EXIT
