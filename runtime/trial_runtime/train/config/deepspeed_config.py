"""The DeepSpeed config that hyperparameters name, as far as it can be checked before torch and DeepSpeed are imported.

Everything else is checked once the trial runs, by :mod:`trial_runtime.pytorch.deepspeed._config_lint`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trial_runtime.train.config.errors import Problems

_STAGES = (0, 1, 2, 3)


def check_deepspeed_config(hparams: Mapping[str, Any], context: Path, problems: Problems) -> None:
    """Record what is wrong with the JSON file, and with the ZeRO stage.

    Args:
        hparams: hyperparameters; ``deepspeed_config`` and ``overwrite_deepspeed_args`` are read.
        context: the folder that the file's path starts from. A file that is not there is the trial's own affair.
        problems: receives the problems.
    """
    named, changes = hparams.get("deepspeed_config"), hparams.get("overwrite_deepspeed_args")
    config, source = named, "hyperparameters.deepspeed_config"
    if isinstance(named, str) and named.endswith(".json") and (context / named).is_file():
        source = named
        try:
            config = json.loads((context / named).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            problems.report(f"{named}: is not UTF-8 text: {error}")
        except json.JSONDecodeError as error:
            problems.report(f"{named}:{error.lineno}:{error.colno}: is not valid JSON: {error.msg}")
        except OSError as error:
            problems.report(f"{named}: cannot be read: {error.strerror}")
        else:
            if not isinstance(config, dict):
                problems.report(f"{named}: is not a JSON object: write {{...}} with the DeepSpeed config's fields")
    for path, section in ((source, config), ("hyperparameters.overwrite_deepspeed_args", changes)):
        _check_stage(path, section, problems)


def _check_stage(path: str, config: object, problems: Problems) -> None:
    zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
    stage = zero.get("stage") if isinstance(zero, Mapping) else None
    if stage is not None and (isinstance(stage, bool) or stage not in _STAGES):
        problems.report(f"{path}: zero_optimization.stage: {stage!r} is not allowed: write one of 0, 1, 2, 3")
