"""Report every problem of a DeepSpeed config in one error."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from trial_runtime.errors import InvalidDeepSpeedConfigException
from trial_runtime.pytorch.deepspeed._config_lint.batch import check_batch_sizes
from trial_runtime.pytorch.deepspeed._config_lint.data import check_data
from trial_runtime.pytorch.deepspeed._config_lint.keys import check_keys
from trial_runtime.pytorch.deepspeed._config_lint.optimizer import check_optimizer
from trial_runtime.pytorch.deepspeed._config_lint.precision import check_precision
from trial_runtime.pytorch.deepspeed._config_lint.problems import UNKNOWN, Problem, Setup, shown
from trial_runtime.pytorch.deepspeed._config_lint.reader import check_reading
from trial_runtime.pytorch.deepspeed._config_lint.zero import check_zero

__all__ = ["UNKNOWN", "InvalidDeepSpeedConfigException", "Problem", "Setup", "check", "lint", "shown"]

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")
_CHECKS = (check_batch_sizes, check_keys, check_precision, check_zero, check_optimizer, check_data)
_warned: set[str] = set()


def lint(config: dict[str, Any], setup: Setup) -> list[Problem]:
    """Return every problem of a config, those that stop training first; one a path and text.

    Args:
        config: the config for DeepSpeed; not changed.
        setup: how it is used.
    """
    chatty = logging.getLogger("DeepSpeed")
    level = chatty.level
    chatty.setLevel(logging.CRITICAL)  # its models log what they read
    try:
        found = dict.fromkeys(problem for check in _CHECKS for problem in check(config, setup))
        found.update(dict.fromkeys(check_reading(config, [problem for problem in found if problem.fatal])))
    finally:
        chatty.setLevel(level)
    fatal_paths = {problem.path for problem in found if problem.fatal}
    return sorted((p for p in found if p.fatal or p.path not in fatal_paths), key=lambda problem: not problem.fatal)


def check(config: dict[str, Any], setup: Setup, source: str = "") -> None:
    """Refuse a config with problems; warnings are logged once, by the chief.

    Args:
        config: the config.
        setup: how it is used.
        source: the file that it is from, for the message.

    Raises:
        InvalidDeepSpeedConfigException: naming every problem, with what to write instead.
    """
    problems = lint(config, setup)
    where = f"The DeepSpeed config{f' ({source})' if source else ''}"
    chief = not dist.is_initialized() or dist.get_rank() == 0
    for problem in problems:
        if not problem.fatal and chief and str(problem) not in _warned:
            _warned.add(str(problem))
            logger.warning(f"{where}: {problem}")
    fatal = [problem for problem in problems if problem.fatal]
    if len(fatal) == 1:
        raise InvalidDeepSpeedConfigException(f"{where}: {fatal[0]}")
    if fatal:
        lines = "\n".join(f"  {problem}" for problem in fatal)
        raise InvalidDeepSpeedConfigException(f"{where} has {len(fatal)} problems:\n{lines}")
