"""The experiment config as a file: YAML 1.2 in, a plain dictionary out, options merged in."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

from ds_migrate.suggestions import closest
from ruamel.yaml import YAML
from ruamel.yaml.composer import ComposerError
from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, MarkedYAMLError, YAMLError

from trial_runtime._redaction import masked_at
from trial_runtime.train.config.errors import ConfigError

_SHOWN_CONFIGS = 3


def parse_yaml(text: str) -> Any:
    """Parse one YAML 1.2 document to plain Python values, as Determined read it: ``1e-4`` is a float, ``yes`` a string.

    Raises:
        YAMLError: the text is not one well-formed YAML document.
    """
    # The C loader speaks YAML 1.1, where 1e-4 is a string.
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", MantissaNoDotYAML1_1Warning
        )  # after "%YAML 1.1", where 1e-4 is read all the same
        return YAML(typ="safe", pure=True).load(io.StringIO(text))


def dump_yaml(document: Any) -> str:
    """Write plain Python values as one YAML 1.2 document."""
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(document, stream)
    return stream.getvalue()


def _meant(path: Path) -> str:
    """Return which configs in a folder, or beside a file that is not there, may have been meant; empty without any."""
    folder = path if path.is_dir() else path.parent
    configs = sorted({*folder.glob("*.yaml"), *folder.glob("*.yml")})
    if folder != path and (near := closest(path.name, [config.name for config in configs])) is not None:
        configs = [folder / near]
    shown = ", ".join(map(str, configs[:_SHOWN_CONFIGS]))
    return f"; did you mean {shown}{', ...' if len(configs) > _SHOWN_CONFIGS else ''}?" if configs else ""


def load(path: Path) -> dict[str, Any]:
    """Load the experiment config in the file ``path``.

    Raises:
        ConfigError: the file cannot be read, or does not hold one YAML mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}{_meant(path)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    try:
        document = parse_yaml(text)
    except YAMLError as error:
        if path.suffix == ".py":
            raise ConfigError(f"{path}: is Python, not an experiment config{_meant(path.parent)}") from error
        if isinstance(error, ComposerError) and error.problem == "but found another document":
            wrong = "holds several documents (---), a run has one config: write each to a separate file"
        else:
            wrong = f"is not valid YAML: {_what(error)}"
        raise ConfigError(f"{path}{_where(error)}: {wrong}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: is not an experiment config: it must hold 'key: value' lines")
    return document


def split_assignment(option: str, text: str) -> tuple[str, Any]:
    """Take ``name=value`` apart; the value is read as YAML, so ``1e-3`` is a number and ``[1, 2]`` a list.

    Raises:
        ConfigError: there is no ``=``, no name, or the value is not YAML.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{option} {text!r}: write {option} name=value")
    try:
        return name.strip(), parse_yaml(value)
    except YAMLError as error:
        raise ConfigError(f"{option} {name.strip()}=...: the value is not valid YAML: {_what(error)}") from error


def assign(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at the dotted ``path``, making the mappings on the way.

    Raises:
        ConfigError: something on the way holds a value that is not a mapping.
    """
    *parents, last = path.split(".")
    node = document
    for depth, name in enumerate(parents, start=1):
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict):
            name = ".".join(parents[:depth])
            raise ConfigError(f"--config {path}: {name!r} is {masked_at(name, node)!r}, which has no fields")
    node[last] = value


def _where(error: YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    return f":{mark.line + 1}" if mark is not None else ""


def _what(error: YAMLError) -> str:
    if isinstance(error, MarkedYAMLError) and error.problem:
        return str(error.problem).partition(" with value ")[0]  # of a field that is there twice: maybe a secret
    return str(error).splitlines()[0]
