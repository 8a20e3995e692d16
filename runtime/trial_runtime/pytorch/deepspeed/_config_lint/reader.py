"""Run DeepSpeed's own reader key by key, so that it does not stop at the first key that it refuses."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from trial_runtime.pytorch.deepspeed._config_lint.problems import Problem, Problems, shown

_BATCH = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}


def check_reading(config: dict[str, Any], found: Iterable[Problem]) -> Problems:
    """Yield the keys, or the whole, that DeepSpeed cannot read, without keys that are in ``found`` already."""
    wrong = {problem.path.split(".")[0] for problem in found}
    for key, value in config.items():
        if key in wrong | _BATCH or value == "auto":
            continue
        if error := _refusal({key: value}):
            wrong.add(key)
            if value is None:
                yield Problem(key, "invalid value null: remove the key")
            else:
                yield Problem(key, f"invalid value {shown(value)}: DeepSpeed reports: {error}")
    sound = {key: value for key, value in config.items() if key not in wrong | _BATCH and value != "auto"}
    if error := _refusal(sound):
        yield Problem("all together", f"DeepSpeed reports: {error}")


def _refusal(config: dict[str, Any]) -> str:
    """Return DeepSpeed's error about a config; empty when it can read it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **copy.deepcopy(config)})
    except Exception as error:
        return str(error).strip() or repr(error)
    return ""
