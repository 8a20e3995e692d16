"""``checkpoint_storage``: where checkpoints go and how many are kept."""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trial_runtime._storage.remote import Location, is_url
from trial_runtime.train.config.errors import Problems, Section

_REMOTE = ("s3", "gcs", "azure", "url")


@dataclasses.dataclass(frozen=True)
class CheckpointStorage:
    """Destination of checkpoints, and how many are kept.

    Attributes:
        root: the folder under which each run gets its own; None: the run directory.
        remote: the place in a storage under which each run gets its own, too; None: nowhere.
        save_trial_best: how many of the best to keep when the run has ended; None keeps all.
        save_trial_latest: how many of the latest to keep then; None keeps all.
        save_experiment_best: how many of the best of all trials to keep, beside those.
    """

    root: Path | None = None
    remote: Location | None = None
    save_trial_best: int | None = None
    save_trial_latest: int | None = None
    save_experiment_best: int = 0

    @property
    def save_only_trial_best(self) -> int | None:
        """Return how many of the best to keep of an experiment's only trial, whose best are the experiment's."""
        return None if self.save_trial_best is None else max(self.save_trial_best, self.save_experiment_best)


def read_storage(section: Section, context: Path) -> CheckpointStorage:
    """Return the storage that ``section`` describes; relative paths start at the context directory."""
    best = section.optional_integer("save_trial_best")
    experiment_best = section.optional_integer("save_experiment_best")
    latest = section.optional_integer("save_trial_latest")
    if (best, experiment_best, latest) != (None, None, None):
        # Determined's defaults for the others.
        best = 1 if best is None else best
        latest = 1 if latest is None else latest
    is_remote = section.get("type") in _REMOTE
    root = None if is_remote else _root(section, context)
    return CheckpointStorage(root, _remote(section) if is_remote else None, best, latest, experiment_best or 0)


def section_of(root: Section) -> Section:
    """Return ``checkpoint_storage`` as fields; a bare string is a URL or a folder."""
    value = root.get("checkpoint_storage")
    if not isinstance(value, str):
        return root.section("checkpoint_storage")
    fields = {"type": "url", "url": value} if is_url(value) else {"type": "shared_fs", "host_path": value}
    return Section(fields, "checkpoint_storage", root.problems)


def remote_of(config: Mapping[str, Any]) -> Location | None:
    """Return the remote storage of an experiment config; None without one.

    Raises:
        ConfigError: its fields are wrong.
    """
    problems = Problems()
    section = section_of(Section(config, "", problems))
    remote = _remote(section) if section.get("type") in _REMOTE else None
    problems.raise_any("exp_conf")
    return remote


def _root(section: Section, context: Path) -> Path | None:
    kind = section.get("type")
    if kind is None and not (section.has("host_path") or section.has("container_path")):
        return None
    if kind in (None, "shared_fs"):
        return _shared(section, context)
    if kind == "directory":
        path = section.text("container_path")
        if path is None:
            section.problems.report(f"{section.at('container_path')}: is missing: write the folder for checkpoints")
            return None
        return context / path
    section.reject(
        "type",
        "write shared_fs (with host_path), directory (with container_path), s3 or gcs (with bucket), azure (with "
        "container), or url (with any URL that fsspec knows)",
    )
    return None


def _shared(section: Section, context: Path) -> Path | None:
    host = section.text("host_path")
    if host is None:
        section.problems.report(f"{section.at('host_path')}: is missing: write the folder for checkpoints")
        return None
    root = context / host
    inner = section.text("storage_path")
    if inner is None:
        return root
    path = root / inner  # an absolute storage_path replaces the root, so it has to lie below it
    if not path.resolve().is_relative_to(root.resolve()):
        section.reject("storage_path", f"it must lie inside host_path ({host})")
    return path


def _remote(section: Section) -> Location | None:
    """Return the location that Determined's fields, or ``url`` and ``options``, describe."""
    kind = section.get("type")
    if kind == "url":
        url, options = section.text("url"), section.get("options") or {}
        if url is None or not is_url(url):
            section.problems.report(f"{section.at('url')}: write a URL such as s3://bucket/folder")
            return None
        if not isinstance(options, Mapping):
            section.problems.report(
                f"{section.at('options')}: write a mapping of the driver's options (it is not shown)"
            )
            return None
        return Location(url, dict(options))
    options = {"s3": _s3, "gcs": _gcs, "azure": _azure}[kind](section)
    name = section.text("container" if kind == "azure" else "bucket")
    prefix = (None if kind == "azure" else section.text("prefix")) or ""
    if ".." in prefix.split("/"):
        section.reject("prefix", "write a folder in the bucket, without ..")
    if not name:
        field = "container" if kind == "azure" else "bucket"
        section.problems.report(f"{section.at(field)}: is missing: write the {field} for checkpoints")
        return None
    scheme = {"s3": "s3", "gcs": "gs", "azure": "az"}[kind]
    folder = "/".join(part for part in f"{name}/{prefix}".split("/") if part not in ("", "."))
    return Location(f"{scheme}://{folder}", {option: value for option, value in options.items() if value is not None})


def _s3(section: Section) -> dict[str, Any]:
    if section.has("access_key") != section.has("secret_key"):
        section.problems.report(f"{section.path}: access_key and secret_key go together: write both or neither")
    return {
        "key": section.secret("access_key"),
        "secret": section.secret("secret_key"),
        "endpoint_url": section.text("endpoint_url"),
    }


def _gcs(section: Section) -> dict[str, Any]:
    del section  # the machine's own account
    return {}


def _azure(section: Section) -> dict[str, Any]:
    connection, account = section.secret("connection_string"), section.text("account_url")
    credential = section.secret("credential")
    if connection and (account or credential):
        section.problems.report(
            f"{section.path}: connection_string has all of it: leave out account_url and credential"
        )
    elif not connection and not account:
        section.problems.report(f"{section.path}: write connection_string, or account_url (with credential)")
    if connection or not account:
        return {"connection_string": connection}
    host = urllib.parse.urlsplit(account).netloc
    if not host.split(".")[0] or not account.startswith("https://"):
        section.reject("account_url", "write https://ACCOUNT.blob.core.windows.net; use connection_string for others")
    return {"account_name": host.split(".")[0], "account_host": host, "credential": credential}
