"""``[tool.ds-migrate]`` in the nearest ``pyproject.toml``: what the options are when the command line is silent."""

from __future__ import annotations

import os

from ds_migrate.cli.arguments import OFFLOADS, PRECISIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_TABLE = b"ds-migrate"
CHOICES: Mapping[str, tuple[object, ...]] = {
    "target": ("runtime", "determined"),
    "zero": (0, 1, 2, 3),
    "precision": PRECISIONS,
    "offload": OFFLOADS,
    "optimizer-in-config": (True, False),
    "view": ("auto", "unified", "split"),
    "color": ("auto", "always", "never"),
}
PATTERNS = ("include", "exclude")
JOBS = "jobs"


class SettingsError(ValueError):
    """The table cannot be understood; the message names the file, the key and what is right."""


class Settings:
    """``values`` by option, and the ``folder`` that patterns are relative to."""

    def __init__(self, folder: str, values: Mapping[str, Any]) -> None:
        self.folder = folder
        self.values = values


def settings_for(paths: Sequence[str]) -> Settings | None:
    """The settings of the project that the paths are in. Raises SettingsError."""
    real = [os.path.realpath(path) for path in paths] or [os.path.realpath(os.curdir)]
    folder = os.path.commonpath([path if os.path.isdir(path) else os.path.dirname(path) for path in real])
    while True:
        file = os.path.join(folder, "pyproject.toml")
        data = _read(file)
        table = _table(file, data) if data is not None and _TABLE in data else None
        if table is not None:
            return Settings(folder, _checked(file, table))
        if os.path.lexists(os.path.join(folder, ".git")) or folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)


def _read(file: str) -> bytes | None:
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except OSError:
        return None


def _table(file: str, data: bytes) -> dict[str, Any] | None:
    import sys

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


def _checked(file: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    for key, value in table.items():
        if key in CHOICES:
            # True is 1 to Python, and no stage
            if type(value) not in map(type, CHOICES[key]) or value not in CHOICES[key]:
                known = ", ".join(map(repr, CHOICES[key]))
                raise SettingsError(f"{file}: {key} in [tool.ds-migrate] is {value!r}; it can be {known}")
        elif key in PATTERNS:
            if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
                raise SettingsError(f"{file}: {key} in [tool.ds-migrate] must be a list of patterns, not {value!r}")
        elif key == JOBS:
            if type(value) is not int or value < 1:
                raise SettingsError(f"{file}: {key} in [tool.ds-migrate] is {value!r}; it can be a number from 1 on")
        else:
            from ds_migrate.cli.arguments import suggestion

            keys = [*CHOICES, *PATTERNS, JOBS]
            meant = suggestion(key, keys) or f"; it can have {', '.join(keys)}"
            raise SettingsError(f"{file}: [tool.ds-migrate] has no key {key!r}{meant}")
    return table
