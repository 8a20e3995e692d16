"""Reading of a configuration field by field; everything that is wrong with it is one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ds_migrate.suggestions import closest

from trial_runtime._redaction import masked_at


class ConfigError(Exception):
    """The experiment config, or an option that changes it, cannot be run as it stands. The message is for the user."""


class Problems:
    """Collection of problems, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, path: str, value: object, allowed: str) -> None:
        """Record that the field ``path`` holds ``value`` while only ``allowed`` is."""
        self._lines.append(f"{path}: {shown(masked_at(path, value))} is not allowed: {allowed}")

    def report(self, line: str) -> None:
        """Record a problem that is not about one value; start with the field it is about."""
        self._lines.append(line)

    def raise_any(self, source: str) -> None:
        """Raise all that was recorded.

        Raises:
            ConfigError: something was recorded. ``source`` names the file it is about.
        """
        if len(self._lines) == 1:
            raise ConfigError(f"{source}: {self._lines[0]}")
        if self._lines:
            listed = "\n".join(f"  {line}" for line in self._lines)
            raise ConfigError(f"{source}: {len(self._lines)} problems\n{listed}")


def shown(value: object) -> str:
    """Return ``value`` as a message shows it: short, on one line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` when one of ``names`` is close to ``name``, else an empty string."""
    meant = closest(name, names)
    return f" (did you mean {meant!r}?)" if meant is not None else ""


class Section:
    """A mapping of the config that is read field by field.

    A field that is absent or null reads as its default. A wrong value is recorded in ``problems`` and reads as its
    default, so that reading continues.
    """

    def __init__(self, data: Mapping[str, Any], path: str, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self._data = data
        self._seen: set[str] = set()

    def at(self, name: str) -> str:
        """Return the dotted path of the field ``name``."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self._data.get(name) is not None

    def get(self, name: str) -> Any:
        """Return the field's value as it is; None when absent."""
        self._seen.add(name)
        return self._data.get(name)

    def reject(self, name: str, allowed: str) -> None:
        """Record that the field's value is wrong."""
        self.problems.add(self.at(name), self._data.get(name), allowed)

    def section(self, name: str) -> Section:
        """Return the mapping under ``name``; an empty one when absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            self.reject(name, "write a mapping (key: value lines below it)")
            value = None
        return Section(value or {}, self.at(name), self.problems)

    def integer(self, name: str, default: int, minimum: int = 0, maximum: int | None = None) -> int:
        """Read a whole number from ``minimum`` to ``maximum``."""
        number = self.optional_integer(name, minimum, maximum)
        return default if number is None else number

    def optional_integer(self, name: str, minimum: int = 0, maximum: int | None = None) -> int | None:
        """Read a whole number from ``minimum`` to ``maximum``; None when absent."""
        value = self.get(name)
        if value is None:
            return None
        number = as_integer(value)
        if number is None or number < minimum or (maximum is not None and number > maximum):
            upper = "" if maximum is None else f" and at most {maximum}"
            self.reject(name, f"write a whole number of at least {minimum}{upper}")
            return minimum
        return number

    def boolean(self, name: str, default: bool) -> bool:
        """Read true or false."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.reject(name, "write true or false")
            return default
        return value

    def text(self, name: str) -> str | None:
        """Read a string; None when absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self.reject(name, "write a string (quote it if it looks like a number)")
            return None
        return value

    def secret(self, name: str) -> str | None:
        """Read a string that no message shows; None when absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self.problems.report(f"{self.at(name)}: write a string (the value is not shown)")
            return None
        return value

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """Read one of ``choices``."""
        value = self.get(name)
        if value is None:
            return default
        if value not in choices:
            self.reject(name, f"write one of {', '.join(choices)}{did_you_mean(str(value), choices)}")
            return default
        return str(value)

    def unread(self) -> list[str]:
        """Return the fields of the section that were never read."""
        return [str(name) for name in self._data if name not in self._seen]


def as_integer(value: object) -> int | None:
    """Return ``value`` as an integer when it is a whole number (``1e3`` is one, ``true`` is not), else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value == value and abs(value) != float("inf") and int(value) == value else None
