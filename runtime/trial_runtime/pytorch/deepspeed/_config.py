"""Merge DeepSpeed configs from several sources."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any


def overwrite_deepspeed_config(
    base_ds_config: str | Path | dict[str, Any], source_ds_dict: dict[str, Any]
) -> dict[str, Any]:
    """Return a DeepSpeed config with some values replaced or added.

    Args:
        base_ds_config: the config, or the path of its JSON file (relative to the working directory).
        source_ds_dict: values by key, dicts for nested ones; other nested values of the base stay.

    Returns:
        a new dict; neither argument is changed.

    Raises:
        TypeError: when ``base_ds_config`` is neither, or a dict would overwrite something else.
        FileNotFoundError: when there is no such file.
        ValueError: when the file holds no JSON object, or a key twice.
    """
    if isinstance(base_ds_config, str | Path):
        base = _read(Path(base_ds_config))
    elif isinstance(base_ds_config, dict):
        base = copy.deepcopy(base_ds_config)
    else:
        raise TypeError(
            "Expected string or dict for base_ds_config argument. "
            f"Got {type(base_ds_config).__name__}: {base_ds_config!r}."
        )
    return _merge(base, source_ds_dict, "")


def _merge(base: dict[str, Any], source: dict[str, Any], path: str) -> dict[str, Any]:
    for key, value in source.items():
        if not isinstance(value, dict):
            base[key] = copy.deepcopy(value)
        elif isinstance(base.setdefault(key, {}), dict):
            _merge(base[key], value, f"{path}{key}.")
        else:
            raise TypeError(f"ds_config: {path}{key} is {base[key]!r}, it cannot be overwritten by the dict {value!r}.")
    return base


def _read(path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{path}: these keys occur twice: {', '.join(twice)}.")
        return dict(pairs)

    try:
        config = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"There is no DeepSpeed config {path}; relative paths are looked up in the working directory, {Path.cwd()}."
        ) from error
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(f"{path} is not JSON: {error.msg}", error.doc, error.pos) from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: a DeepSpeed config is a JSON object, this is a {type(config).__name__}.")
    return config
