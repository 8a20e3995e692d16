"""The last word: what DeepSpeed's own reader refuses, key by key, so that it does not stop at the first."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from trial_runtime.pytorch.deepspeed._config_lint.problems import Problem, Problems, shown

_BATCH = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}


def check_reading(config: dict[str, Any], told: Iterable[Problem]) -> Problems:
    """The keys, or the whole, that DeepSpeed cannot read; nothing for keys with a problem that is told already."""
    wrong = {problem.path.split(".")[0] for problem in told}
    for key, value in config.items():
        if key in wrong | _BATCH or value == "auto":
            continue
        if error := _refusal({key: value}):
            wrong.add(key)
            if value is None:
                yield Problem(key, "null is not possible: remove the key")
            else:
                yield Problem(key, f"{shown(value)} is not possible: DeepSpeed says: {error}")
    sound = {key: value for key, value in config.items() if key not in wrong | _BATCH and value != "auto"}
    if error := _refusal(sound):
        yield Problem("all together", f"DeepSpeed says: {error}")


def _refusal(config: dict[str, Any]) -> str:
    """What DeepSpeed says against a config; empty when it can read it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **copy.deepcopy(config)})
    except Exception as error:
        return str(error).strip() or repr(error)
    return ""
