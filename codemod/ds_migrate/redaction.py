"""Secrets in experiment configs: names whose values are secret, and their lines as a report may show them."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "<masked>"
USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET = (
    r"(?:secret|passw(?:or)?d|passphrase|credential|api_?key|access_?key|private_?key|account_?key|auth_?key|"
    r"signing_?key|encryption_?key|connection_?string|webhook)s?(?:$|_)|"
    r"(?<!pad_)(?<!mask_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!special_)token$"
)
_NAME = re.compile(rf"(?:^|_)(?:{_SECRET})")
_KEY = re.compile(r"(?P<before>\s*(?:-\s+)*)(?P<name>[\w.-]+|\"[^\"]*\"|'[^']*')(?P<colon>\s*:)(?=\s|$)(?P<value>.*)")
_FIELD = re.compile(r"(?P<name>[\w.-]+|\"[^\"]*\"|'[^']*')\s*:\s+")
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|\[[^\]]*\]?|\{[^}]*\}?|[^,}\]]+")
_OPTION = re.compile(r"(?P<name>--?[A-Za-z][\w-]*)(?P<equals>=|\s+)(?:\"[^\"]*\"|'[^']*'|\S+)")
_VARIABLE = re.compile(r"(?P<quote>[\"'])(?P<quoted>[A-Za-z_]\w*)=.*?(?P=quote)|(?P<name>[A-Za-z_]\w*)=[^,\]]*")
_NO_VALUE = re.compile(r"\s*(?:[|>][-+0-9]*|null|~)?\s*(?:#.*)?")


def is_secret_name(name: object) -> bool:
    """Return whether a field of this name holds a secret, such as ``wandb_api_key`` or ``authToken``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name)).lower().replace("-", "_")
    return _NAME.search(words) is not None


def masked_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of an experiment config with ``<masked>`` in place of each secret.

    Masked are users in URLs, values of fields and options whose names look like a secret's, all of
    ``environment_variables``, values in a ``pod_spec``, and the options of a ``checkpoint_storage``.
    """
    shown: list[str] = []
    parents: list[tuple[int, str]] = []  # the keys that the line is below, with their columns
    for line in lines:
        stripped = line.lstrip(" ")
        indent = len(line) - len(stripped)
        if stripped and not stripped.startswith("#"):
            item = indent + (1 if stripped.startswith("- ") else 0)  # a list may stand in the column of its key
            while parents and parents[-1][0] >= item:
                parents.pop()
        names = [name for _, name in parents]
        shown.append(_masked_line(line, names))
        key = _KEY.match(line)
        if key is not None and not _is_hidden(names):
            parents.append((len(key["before"]), key["name"].strip("\"'")))
    return shown


def _masked_line(line: str, parents: Sequence[str]) -> str:
    if _is_hidden(parents):
        return re.sub(r"(\s*(?:-\s+)*).+", rf"\1{MASK}", line)
    key = _KEY.match(line)
    name = "" if key is None else key["name"].strip("\"'")
    if key is not None and _is_secret(name, parents):
        has_value = _NO_VALUE.fullmatch(key["value"]) is None
        return f"{key['before']}{key['name']}{key['colon']} {MASK}" if has_value else line
    if "environment_variables" in (*parents, name):
        if line.lstrip().startswith("- "):
            return re.sub(r"=.*", f"={MASK}", line)
        line = _VARIABLE.sub(lambda found: f"{found['quoted'] or found['name']}={MASK}", line)
    line = USER_IN_URL.sub(f"{MASK}@", line)
    line = _OPTION.sub(_masked_option, line)
    return _with_masked_fields(line, parents)


def _is_hidden(parents: Sequence[str]) -> bool:
    """Return whether all below these keys is a secret."""
    return any(map(is_secret_name, parents)) or ("checkpoint_storage" in parents and "options" in parents)


def _is_secret(name: str, parents: Sequence[str]) -> bool:
    return is_secret_name(name) or (name == "value" and "pod_spec" in parents)


def _masked_option(found: re.Match[str]) -> str:
    return f"{found['name']}{found['equals']}{MASK}" if is_secret_name(found["name"].lstrip("-")) else found[0]


def _with_masked_fields(line: str, parents: Sequence[str]) -> str:
    """Return a line with the values masked that belong to secrets in ``{...}``, or in a comment."""
    shown, position = "", 0
    for field in _FIELD.finditer(line):
        value = _VALUE.match(line, field.end())
        if value is not None and field.start() >= position and _is_secret(field["name"].strip("\"'"), parents):
            shown += line[position : value.start()] + MASK
            position = value.end()
    return shown + line[position:]
