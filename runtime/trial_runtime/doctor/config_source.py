"""Read the DeepSpeed config that a file holds or names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from trial_runtime.train.config.document import load
from trial_runtime.train.config.errors import ConfigError

TRAIN, MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"


@dataclasses.dataclass(frozen=True)
class Subject:
    """A config to check.

    Attributes:
        config: the DeepSpeed config, merged as a trial would.
        source: the file that it is from.
        ranks: those of the experiment config; None when they are not known.
    """

    config: dict[str, Any]
    source: str
    ranks: int | None = None


def read(path: Path, ranks: int | None = None) -> Subject:
    """Read a DeepSpeed config (JSON), or that of an experiment config (YAML).

    Args:
        path: the file.
        ranks: in place of an experiment config's slots.

    Raises:
        ConfigError: the file cannot be read, or names no DeepSpeed config.
    """
    if path.suffix in (".yaml", ".yml"):
        return _of_experiment(path, ranks)
    return Subject(_json(path), str(path), ranks)


def _of_experiment(path: Path, ranks: int | None) -> Subject:
    document = load(path)
    hparams = document.get("hyperparameters")
    named = _constant(hparams.get("deepspeed_config")) if isinstance(hparams, dict) else None
    if not isinstance(named, str | dict):
        raise ConfigError(f"{path}: hyperparameters.deepspeed_config names no DeepSpeed config")
    changes = hparams.get("overwrite_deepspeed_args") if isinstance(hparams, dict) else None
    resources = document.get("resources")
    slots = resources.get("slots_per_trial") if isinstance(resources, dict) else None
    source = f"{path}: deepspeed_config"
    if isinstance(named, str):
        file = next(
            (folder / named for folder in (path.parent, Path()) if (folder / named).is_file()), path.parent / named
        )
        named, source = _json(file), f"{file}, named by {path}"
    from trial_runtime.pytorch.deepspeed import overwrite_deepspeed_config

    try:
        config = overwrite_deepspeed_config(named, changes if isinstance(changes, dict) else {})
    except TypeError as error:
        raise ConfigError(f"{path}: {error}") from None
    known = ranks or (slots if isinstance(slots, int) and slots > 0 else None)
    size = _constant(hparams.get("global_batch_size")) if isinstance(hparams, dict) else None
    if isinstance(size, int) and size >= (known or 1) and not config.keys() & {TRAIN, MICRO}:
        config[MICRO] = size // (known or 1)  # as trials do: context.get_per_slot_batch_size()
        source += f"; micro-batch {config[MICRO]} from global_batch_size"
    return Subject(config, source, known)


def _json(path: Path) -> dict[str, Any]:
    from trial_runtime.pytorch.deepspeed import overwrite_deepspeed_config

    try:
        return overwrite_deepspeed_config(path, {})
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _constant(value: Any) -> Any:
    """Return a hyperparameter's value: ``{type: const, val: x}`` is x."""
    return value.get("val") if isinstance(value, dict) and value.get("type") == "const" else value
