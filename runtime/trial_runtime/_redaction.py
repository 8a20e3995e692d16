"""Masking of secrets in an experiment config: they reach the storage's driver, and nothing written or printed.

The secrets are those of ``checkpoint_storage`` and of ``environment.registry_auth``, which nothing here reads.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ruamel.yaml.error import YAMLError

from trial_runtime._storage.remote import iter_strings

MASK = "<masked>"
FIELDS = ("access_key", "secret_key", "connection_string", "credential")
_SECTION = "checkpoint_storage"
_REGISTRY = "registry_auth"
_REGISTRY_PUBLIC = ("username", "email", "serveraddress")
_USER_IN_URL = re.compile(r"(?<=://)[^/@]+@")


def masked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an experiment config with ``<masked>`` in place of each secret."""
    copied = copy.deepcopy(dict(document))
    section = copied.get(_SECTION)
    if isinstance(section, str):
        copied[_SECTION] = _USER_IN_URL.sub(f"{MASK}@", section)
    if isinstance(section, dict):
        copied[_SECTION] = {name: _masked(name, value) for name, value in section.items()}
    if login := _registry(copied):
        copied["environment"][_REGISTRY] = {**login, **_without_texts(_private(login))}
    return copied


def masked_text(text: str, document: Mapping[str, Any]) -> str:
    """Return a config file's text with secrets masked, comments kept; without secrets it is unchanged.

    Args:
        text: YAML.
        document: its content.
    """
    wanted = masked(document)
    if wanted == document:
        return text
    from trial_runtime.train.config.document import dump_yaml, parse_yaml

    for key in sorted(_keys(document), key=len, reverse=True):
        text = text.replace(key, MASK)
    try:
        if parse_yaml(text) == wanted:
            return text
    except YAMLError:
        pass
    return dump_yaml(wanted)  # a key that is written in another way than it reads; comments are lost


def masked_file(content: bytes) -> bytes:
    """Return a config file's content with secrets masked; unchanged when it is no experiment config."""
    from trial_runtime.train.config.document import parse_yaml

    try:
        text = content.decode("utf-8-sig")
        document = parse_yaml(text)
    except (UnicodeDecodeError, YAMLError):
        return content
    return masked_text(text, document).encode() if isinstance(document, dict) else content


def masked_words(words: Sequence[str]) -> list[str]:
    """Return a command line's words with the values of ``--config checkpoint_storage.KEY=VALUE`` masked."""
    fields = "|".join((*FIELDS, r"options[^=]*"))
    assignment = re.compile(rf"(?s)^((?:--config=)?{_SECTION}\.(?:{fields})=).*")
    login = re.compile(rf"(?s)^((?:--config=)?environment\.{_REGISTRY}(?!\.username)[^=]*=).*")
    return [login.sub(rf"\1{MASK}", assignment.sub(rf"\1{MASK}", word)) for word in words]


def _registry(document: Mapping[str, Any]) -> Mapping[str, Any]:
    environment = document.get("environment")
    login = environment.get(_REGISTRY) if isinstance(environment, Mapping) else None
    return login if isinstance(login, Mapping) else {}


def _private(login: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in login.items() if name not in _REGISTRY_PUBLIC}


def _masked(name: str, value: Any) -> Any:
    if name in FIELDS and value is not None:
        return MASK
    if name == "options" and isinstance(value, Mapping):
        return _without_texts(value)
    return _USER_IN_URL.sub(f"{MASK}@", value) if name == "url" and isinstance(value, str) else value


def _without_texts(value: Any) -> Any:
    """Mask all strings of the driver's options: any of them may be a secret."""
    if isinstance(value, Mapping):
        return {name: _without_texts(inner) for name, inner in value.items()}
    return MASK if isinstance(value, str) else value


def _keys(document: Mapping[str, Any]) -> Iterator[str]:
    yield from iter_strings(_private(_registry(document)))
    section = document.get(_SECTION)
    texts = [section] if isinstance(section, str) else []
    if isinstance(section, Mapping):
        yield from (str(section[name]) for name in FIELDS if section.get(name))
        yield from iter_strings(section.get("options"))
        texts = [str(section.get("url") or "")]
    for text in texts:
        yield from (found[:-1] for found in _USER_IN_URL.findall(text))
