"""One rank: ``python -m trial_runtime.train.run.rank DIR class|script|module TARGET [ARGS...]``.

Prepares the process as the original was run (working directory, import path, ``determined`` served by the runtime, log)
and runs the entrypoint in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ds_migrate.command_line import print_error, print_notice

from trial_runtime import _log_filters
from trial_runtime._cluster_info import ClusterInfo, get_cluster_info
from trial_runtime.errors import (
    InvalidCheckpointException,
    InvalidDeepSpeedConfigException,
    InvalidExperimentException,
    InvalidHP,
    MetricNotReportedError,
    TrainingDivergedError,
)
from trial_runtime.train import determined_alias
from trial_runtime.train.config.errors import ConfigError, did_you_mean
from trial_runtime.train.run import hang_watch
from trial_runtime.train.run.failure import is_own_code, record_failure
from trial_runtime.train.run.local_launcher import USAGE_EXIT
from trial_runtime.train.run.log_tee import configure_logging, record_output
from trial_runtime.train.run.retention import remove_superseded
from trial_runtime.train.run.run_directory import SUPERVISED, lock, open_run
from trial_runtime.train.run.supervision import terminate_with

_STOPPED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_STATUS_OF_EXIT: dict[object, str] = {
    None: "completed",
    0: "completed",
    **{128 + number: "stopped" for number in _STOPPED_BY},
}
_WRONG_USAGE = (ConfigError, InvalidDeepSpeedConfigException, InvalidCheckpointException, MetricNotReportedError)
"""Errors whose message is all that the user needs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank that ``ds-train`` started; the exit code."""
    context, kind, target, *args = sys.argv[1:] if arguments is None else arguments
    terminate_with(os.environ.get(SUPERVISED))
    info = get_cluster_info()
    if info is None:
        raise SystemExit("trial_runtime.train.run.rank is started by ds-train, not directly")
    return run(info, Path(context), kind, target, args)


def run(info: ClusterInfo, context: Path, kind: str, target: str, args: Sequence[str]) -> int:
    """Run the entrypoint in this process.

    Args:
        info: the run.
        context: the context directory; becomes the working directory and the first place to import from.
        kind: ``"class"``, ``"script"`` or ``"module"``.
        target: ``module:Class``, the script's path relative to ``context``, or the module's name.
        args: arguments of the script or module.

    Returns:
        The exit code: 0 well, 2 the entrypoint cannot be run, 1 it failed.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    directory = Path(info.run.directory)
    record_output(directory, rank, size)
    configure_logging(rank, info.trial._debug, own_program=kind != "class")
    os.chdir(context)
    _import_from(context)
    determined_alias.install()
    _log_filters.expect_cpu()
    if kind == "class":
        _log_filters.expect_skipped_steps()
    if timeout := os.environ.get(hang_watch.VARIABLE):
        hang_watch.watch(directory, rank, size, float(timeout))
    with ExitStack() as stack:
        status, reason, holds_lock = "failed", None, False
        try:
            if rank == 0:
                stack.enter_context(lock(directory))
                holds_lock = True
                _record_status(directory, "running")
            run_entrypoint(info, kind, target, args)
            if number := _preempted_by():
                status = "stopped"
                return 128 + number
            status = "completed"
        except _WRONG_USAGE as error:
            record_failure(directory, rank, str(error))
            if rank == 0:
                print_error("ds-train", str(error))
            return USAGE_EXIT
        except TrainingDivergedError as error:
            record_failure(directory, rank, str(error))
            if rank == 0:
                print_error("ds-train", str(error))
            return 1
        except SystemExit as leaving:
            if leaving.code in (None, 0) and (number := _preempted_by()):
                status = "stopped"
                return 128 + number
            status = _STATUS_OF_EXIT.get(leaving.code, "failed")
            reason = "invalid_hp" if isinstance(leaving.__cause__, InvalidHP) else None
            raise
        except KeyboardInterrupt:
            status = "stopped"
            return 128 + signal.SIGINT
        except (Exception, InvalidExperimentException) as error:
            record_failure(directory, rank, error)
            _print_exception()
            return 1
        finally:
            if holds_lock:  # else another process trains there, and records its own status
                _record_status(directory, status, reason)
            if holds_lock and status == "completed" and (removed := remove_superseded(info)):
                count = f"{len(removed)} checkpoint{'' if len(removed) == 1 else 's'}"
                print_notice("ds-train", f"{count} removed, as checkpoint_storage asks")
            hang_watch.leave(directory, rank)
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def run_entrypoint(info: ClusterInfo, kind: str, target: str, args: Sequence[str]) -> None:
    """Run the entrypoint in this process, from its working directory; see :func:`run` for the arguments.

    Raises:
        ConfigError: there is no such thing to run.
    """
    if kind == "class":
        train_class(info, find_class(target))
        return
    sys.argv = [target, *args]
    if kind == "module":
        if _find_spec(target) is None:
            raise ConfigError(f"entrypoint: no module named {target!r} in {Path.cwd()} or among the installed ones")
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    folder = str(Path(target).resolve().parent)
    if folder != sys.path[0]:  # as Python does for a script; the context directory stays second
        sys.path.insert(0, folder)
    runpy.run_path(target, run_name="__main__")


def find_class(target: str) -> Any:
    """Import the class that ``module:Class`` names.

    Raises:
        ConfigError: there is no such module or no such class. Errors inside the module are passed on.
    """
    module_name, _, class_name = target.partition(":")
    if _find_spec(module_name) is None:
        raise ConfigError(
            f"entrypoint: no module named {module_name!r} in {Path.cwd()} or among the installed ones; "
            f"if it is elsewhere, name its folder: ds-train CONFIG.yaml DIR"
        )
    found: Any = importlib.import_module(module_name)
    for name in class_name.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"entrypoint: {module_name!r} has no {class_name!r}{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    return found


def train_class(info: ClusterInfo, trial_class: Any) -> None:
    """Train ``trial_class`` according to the config, as Determined's harness did for a ``module:Class`` entrypoint.

    Raises:
        ConfigError: it is neither a PyTorchTrial nor a DeepSpeedTrial.
    """
    from trial_runtime import pytorch
    from trial_runtime.pytorch._old_api import for_todays_loop

    is_class = isinstance(trial_class, type)
    settings: dict[str, Any] = {"hparams": info.trial.hparams, "exp_conf": info.trial._config}
    if is_class and issubclass(trial_class, pytorch.PyTorchTrial):
        with pytorch.init(**settings, aggregation_frequency=info.run.aggregation_frequency) as context:
            pytorch.Trainer(for_todays_loop(trial_class)(context), context).fit()
        return
    from trial_runtime.pytorch import deepspeed

    if is_class and issubclass(trial_class, deepspeed.DeepSpeedTrial):
        if (k := info.run.aggregation_frequency) > 1:
            raise ConfigError(
                f"optimizations.aggregation_frequency: {k} is for a PyTorchTrial: a DeepSpeedTrial accumulates by "
                f"hyperparameters.overwrite_deepspeed_args.gradient_accumulation_steps, {k} batches counted as one "
                "in lengths and periods. ds-migrate writes that, or write it and remove this field"
            )
        with deepspeed.init(**settings) as context:
            deepspeed.Trainer(trial_class(context), context).fit()
        return
    bases = ", ".join(base.__name__ for base in getattr(trial_class, "__mro__", ())[1:-1]) or "none"
    raise ConfigError(
        f"entrypoint: {getattr(trial_class, '__qualname__', trial_class)!r} is not a trial class: it must derive from "
        f"PyTorchTrial or DeepSpeedTrial; its bases: {bases}"
    )


def _preempted_by() -> int:
    """Return the number of the signal that a program without a trial saved and ended for; 0 without one."""
    core = sys.modules.get("trial_runtime.core")
    return 0 if core is None else int(core.PreemptContext.acknowledged)


def _find_spec(name: str) -> object:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise


def _import_from(context: Path) -> None:
    # `python -m` puts the directory that it was started in first; the trial's own comes in its place.
    if sys.path and sys.path[0] in ("", str(_STARTED_IN)):
        sys.path[0] = str(context)
    else:
        sys.path.insert(0, str(context))
    importlib.invalidate_caches()


def _record_status(directory: Path, status: str, reason: str | None = None) -> None:
    open_run(directory, "", None)[0].record(status, reason)


def _print_exception() -> None:
    kind, error, trace = sys.exc_info()
    files = [frame.filename for frame in traceback.extract_tb(trace)]
    # The frames that lead to the user's code do not help the user.
    for _ in range(next((index for index, file in enumerate(files) if is_own_code(file)), 0)):
        trace = None if trace is None else trace.tb_next
    traceback.print_exception(kind, error, trace)


_STARTED_IN = Path.cwd()

if __name__ == "__main__":
    sys.exit(main())
