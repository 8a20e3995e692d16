"""Masking of secrets in an experiment config: nothing that is written or printed has them.

Masked are all ``environment_variables``, those of ``pod_spec`` too, logins to a registry, keys of storages, users in
URLs, and every value whose name looks like that of a secret. The storage's driver gets its keys, the processes their
variables, and the ranks the secrets of ``data``, hyperparameters and other fields through their environment.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ds_migrate.redaction import MASK, USER_IN_URL, is_secret_name
from ruamel.yaml.error import YAMLError

SECRETS_VARIABLE = "DS_TRAIN_SECRETS"
"""Environment variable by which ``ds-train`` hands the ranks what is masked in the run's description (JSON)."""

FIELDS = ("access_key", "secret_key", "connection_string", "credential")
_SECTION = "checkpoint_storage"
_REGISTRY_PUBLIC = ("username", "email", "serveraddress")
_OPTION = re.compile(r"(--?[\w-]+)(=|\s+)(\S+)")
_WORTH_A_LOOK = re.compile(
    rb"(?i)environment|registry|pod_spec|://[^/\s]*@|secret|passw|passphrase|credential|key|connection|webhook|token"
)

_Path = tuple[Any, ...]


def masked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an experiment config with ``<masked>`` in place of each secret."""
    return {name: _masked((name,), value) for name, value in document.items()}


def masked_hparams(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of hyperparameters with ``<masked>`` in place of each secret."""
    return dict(masked({"hyperparameters": dict(hparams)})["hyperparameters"])


def secrets_of(document: Mapping[str, Any]) -> list[list[Any]]:
    """Return what :func:`masked` masks of the fields that a trial reads, as ``[path, value]``; for :func:`restored`."""
    kept = {name: value for name, value in document.items() if name not in ("environment", _SECTION)}
    return [[list(path), value] for path, value, hidden in _leaves(kept, masked(kept)) if value != hidden]


def restored(document: Mapping[str, Any], secrets: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a copy of a masked config with its secrets; those that it has no masked field for are left out."""
    whole = copy.deepcopy(dict(document))
    for (*parents, last), value in secrets:
        node: Any = whole
        try:
            for name in parents:
                node = node[name]
            if MASK in str(node[last]):
                node[last] = value
        except (KeyError, IndexError, TypeError):
            continue
    return whole


def masked_constants(hparams: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that a search drew with secrets masked, as far as the config has them as constants.

    What is searched is no secret, whatever its name: the values are the search's result.

    Args:
        hparams: one value for each hyperparameter.
        hyperparameters: the section of the experiment config.
    """
    constants = _secret_constants(hyperparameters)
    drawn = [[list(path), value] for path, value in _secrets_in(hparams) if path not in constants]
    return restored(masked_hparams(hparams), drawn)


def with_constants(hparams: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`masked_constants` masked, with the secrets of the config."""
    return restored(hparams, [[list(path), value] for path, value in _secret_constants(hyperparameters).items()])


def _secret_constants(hyperparameters: Mapping[str, Any]) -> dict[_Path, Any]:
    """Return the secrets by path, of ``{type: const, val: X}`` too."""
    found = _secrets_in(hyperparameters)
    return {path[:-1] if path[-1:] == ("val",) else path: value for path, value in found}


def _secrets_in(hparams: Mapping[str, Any]) -> list[tuple[_Path, Any]]:
    return [(path, value) for path, value, hidden in _leaves(hparams, masked_hparams(hparams)) if value != hidden]


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

    changes = [(str(value), str(hidden)) for _, value, hidden in _leaves(document, wanted) if value != hidden]
    for value, hidden in sorted(changes, key=lambda change: -len(change[0])):
        text = text.replace(value, hidden)
    try:
        if parse_yaml(text) == wanted:
            return text
    except YAMLError:
        pass
    return dump_yaml(wanted)  # a key that is written in another way than it reads; comments are lost


def masked_file(content: bytes) -> bytes:
    """Return a config file's content with secrets masked; unchanged when it holds none, or is no mapping."""
    from trial_runtime.train.config.document import parse_yaml

    if _WORTH_A_LOOK.search(content) is None:
        return content
    try:
        text = content.decode("utf-8-sig")
        document = _parse_json(text)
        if isinstance(document, dict):
            hidden = masked(document)
            return content if hidden == document else json.dumps(hidden, indent=2).encode()
        document = parse_yaml(text)
    except (UnicodeDecodeError, YAMLError, RecursionError):
        return content
    return masked_text(text, document).encode() if isinstance(document, dict) else content


def masked_words(words: Sequence[str]) -> list[str]:
    """Return a command line's words with the secrets in ``--config FIELD=VALUE`` and ``--hparam NAME=VALUE`` masked."""
    shown: list[str] = []
    for index, word in enumerate(words):
        option = words[index - 1] if index else ""
        for name in ("--config", "--hparam"):
            if word.startswith(f"{name}="):
                shown.append(f"{name}={_masked_assignment(name, word[len(name) + 1 :])}")
                break
            if option == name:
                shown.append(_masked_assignment(name, word))
                break
        else:
            shown.append(word)
    return shown


def masked_command(words: Sequence[str]) -> list[str]:
    """Return the words of a program's command line with the values of secret options masked."""
    return list(_masked(("entrypoint",), list(words)))


def masked_at(path: str, value: Any) -> Any:
    """Return the value of the field at a dotted path as a message may show it."""
    names = path.split(".")
    if isinstance(value, str) and path in ("data", "environment", "hyperparameters"):  # fields in one text
        return MASK
    return _masked(tuple(names), value)


def _masked_assignment(option: str, text: str) -> str:
    from trial_runtime.train.config.document import parse_yaml

    name, equals, value = text.partition("=")
    path = (("hyperparameters",) if option == "--hparam" else ()) + tuple(name.strip().split("."))
    try:
        parsed = parse_yaml(value)
    except YAMLError:
        parsed = value
    return f"{name}={MASK}" if equals and _masked(path, parsed) != parsed else text


def _masked(path: _Path, value: Any) -> Any:
    """Return a copy of the value at a path of the config, with its secrets masked."""
    if _is_all_secret(path, value):
        return _without_values(path, value)
    if isinstance(value, Mapping):
        return {name: _masked((*path, name), inner) for name, inner in value.items()}
    if isinstance(value, list):
        hidden = [_masked((*path, index), inner) for index, inner in enumerate(value)]
        for index in range(1, len(value)):  # --api-key VALUE, in two words
            if path == ("entrypoint",) and _is_secret_option(value[index - 1]):
                hidden[index] = MASK
        return hidden
    if isinstance(value, str):
        value = USER_IN_URL.sub(f"{MASK}@", value)
        return (
            _OPTION.sub(_masked_option, value)
            if path[0] == "entrypoint" or path[:2] == ("environment", "pod_spec")
            else value
        )
    return value


def _is_all_secret(path: _Path, value: Any) -> bool:
    if path[:2] == ("environment", "environment_variables"):
        return True
    if path[:2] == ("environment", "pod_spec") and path[-1] == "value":  # of an environment variable
        return True
    if path[:2] == ("environment", "registry_auth"):
        return len(path) > 2 and path[2] not in _REGISTRY_PUBLIC
    if path[0] == _SECTION and len(path) > 1:
        return path[1] in FIELDS or (path[1] == "options" and len(path) > 2 and not isinstance(value, Mapping))
    return isinstance(path[-1], str) and is_secret_name(path[-1])


def _without_values(path: _Path, value: Any) -> Any:
    """Mask all texts and numbers of a value; of an environment variable only what follows its name."""
    if isinstance(value, Mapping):
        return {name: inner if name == "type" else _without_values(path, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_values(path, inner) for inner in value]
    if value is None or isinstance(value, bool) or value == "":
        return value
    if path[:2] == ("environment", "environment_variables") and isinstance(value, str) and "=" in value:
        return f"{value.partition('=')[0]}={MASK}"
    if not isinstance(value, str) and path[0] == _SECTION and path[1:2] == ("options",):
        return value  # a port, a number of retries
    return MASK


def _masked_option(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{MASK}" if _is_secret_option(found[1]) else found[0]


def _is_secret_option(word: object) -> bool:
    return isinstance(word, str) and word.startswith("-") and "=" not in word and is_secret_name(word.lstrip("-"))


def _leaves(value: Any, hidden: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any, Any]]:
    """Yield the path of each text and number, itself, and what masking made of it."""
    if isinstance(value, Mapping) and isinstance(hidden, Mapping):
        for name in value:
            yield from _leaves(value[name], hidden[name], (*path, name))
    elif isinstance(value, list) and isinstance(hidden, list):
        for index, pair in enumerate(zip(value, hidden, strict=True)):
            yield from _leaves(*pair, (*path, index))
    else:
        yield path, value, hidden


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
