"""``[tool.ds-migrate]`` in the nearest ``pyproject.toml``: the options of a project."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_migrate.cli.options_table import SETTINGS
from ds_migrate.suggestions import did_you_mean

PER_FILE = "per-file-ignores"


class SettingsError(ValueError):
    """The table cannot be understood; the message names the file, the key and what is right."""


@dataclass(frozen=True)
class Settings:
    """``values`` by option, and the ``folder`` that patterns are relative to."""

    folder: str
    values: Mapping[str, Any]


def settings_for(paths: Sequence[str]) -> Settings | None:
    """Return the settings of the project that the paths are in. Raises SettingsError."""
    real = [Path(os.path.realpath(path)) for path in paths] or [Path(os.path.realpath(os.curdir))]
    common = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in real]))
    for folder in (common, *common.parents):
        file = folder / "pyproject.toml"
        table = _table(file)
        if table is not None:
            _check(file, table)
            return Settings(str(folder), table)
        if os.path.lexists(folder / ".git"):
            return None
    return None


def _table(file: Path) -> dict[str, Any] | None:
    try:
        data = file.read_bytes()
    except OSError:
        return None
    if b"ds-migrate" not in data:
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tool = tomllib.loads(data.decode("utf-8")).get("tool", {})
    except ValueError as error:
        raise SettingsError(f"{file} is not TOML: {error}") from error
    table = tool.get("ds-migrate") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise SettingsError(f"{file}: tool.ds-migrate must be a table")
    return table


def _check(file: Path, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if key == PER_FILE:
            _check_per_file(file, value)
            continue
        option = SETTINGS.get(key)
        if option is None:
            meant = did_you_mean(key, [*SETTINGS, PER_FILE]) or f"; it can have {', '.join([*SETTINGS, PER_FILE])}"
            raise SettingsError(f"{file}: [tool.ds-migrate] has no key {key!r}{meant}")
        if option.is_list:
            if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
                raise SettingsError(f"{file}: {key} in [tool.ds-migrate] must be a list of strings, not {value!r}")
        elif option.values is None:
            if type(value) is not int or value < 1:
                raise SettingsError(f"{file}: {key} in [tool.ds-migrate] is {value!r}; it can be a number from 1 on")
        # True is 1 to Python, and no stage
        elif type(value) not in map(type, option.values) or value not in option.values:
            known = ", ".join(map(repr, option.values))
            raise SettingsError(f"{file}: {key} in [tool.ds-migrate] is {value!r}; it can be {known}")


def _check_per_file(file: Path, table: object) -> None:
    lists = table.values() if isinstance(table, dict) else [None]
    if not all(isinstance(codes, list) and all(isinstance(code, str) for code in codes) for codes in lists):
        raise SettingsError(
            f'{file}: [tool.ds-migrate.{PER_FILE}] must have lists of codes, such as "old/" = ["DSM350"]'
        )
