"""Checkpoints in a remote storage: any URL that fsspec has a driver for.

Everything that accesses a storage runs in a separate process. Drivers draw from Python's random generator when they try
again, run threads and hold the interpreter for long: none of that may reach training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trial_runtime.errors import CheckpointStorageError

OPTIONS_VARIABLE = "DS_TRAIN_STORAGE_OPTIONS"
"""Environment variable by which ``ds-train`` hands the driver's options (JSON), keys among them, to the ranks."""

_NO_KEYS = ("endpoint_url", "account_name", "account_host")
_URL = re.compile(r"(?:[\w+.-]+::)*[A-Za-z][\w+.-]*://")  # fsspec chains drivers: simplecache::s3://...


@dataclasses.dataclass(frozen=True)
class Location:
    """A folder in a storage.

    Attributes:
        url: such as ``s3://bucket/folder``.
        options: for the driver; they may hold keys, so they are never shown.
    """

    url: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def below(self, name: str) -> Location:
        """Return the folder of this name inside this one."""
        return dataclasses.replace(self, url=f"{self.url.rstrip('/')}/{name}")


def is_url(text: str) -> bool:
    """Return whether ``text`` is a URL of a storage rather than a path."""
    return _URL.match(text) is not None


def with_environment_options(url: str) -> Location:
    """Return the location with the options that ``ds-train`` passes on; without them the driver finds keys itself."""
    return Location(url, json.loads(os.environ.get(OPTIONS_VARIABLE, "{}")))


def call(location: Location, action: str, **arguments: Any) -> Any:
    """Run an action in the storage's process and wait for its result.

    Args:
        location: the folder of a run's checkpoints.
        action: a function of :mod:`trial_runtime._storage.remote_worker`.
        arguments: its arguments; JSON.

    Raises:
        CheckpointStorageError: it did not work; the message holds no keys.
    """
    job = {"url": location.url, "options": dict(location.options), "action": action, "arguments": arguments}
    # The same import path, but not the working directory, where anything may lie.
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "trial_runtime._storage.remote_worker"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # a Ctrl-C is for training, which then waits for the upload
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise CheckpointStorageError(f"{location.url}: {_mask_secrets(lines[-1] if lines else '?', location)}")
    return json.loads(done.stdout)


@contextlib.contextmanager
def fetched(given: str | Path) -> Iterator[Path]:
    """Provide a checkpoint as a local folder: itself, or a copy that is removed at the end.

    Args:
        given: a path, or the URL of a checkpoint or of a run's checkpoints (its newest).

    Raises:
        CheckpointStorageError: it could not be fetched.
    """
    if not is_url(str(given)):
        yield Path(given)
        return
    folder, name = resolve(with_environment_options(str(given)))
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as scratch:
        target = Path(scratch) / name
        call(folder, "get", name=name, folder=str(target), files=call(folder, "files", name=name))
        yield target


def resolve(location: Location) -> tuple[Location, str]:
    """Return the folder of a run's checkpoints and the checkpoint's name, from the URL of either.

    Raises:
        CheckpointStorageError: there is no checkpoint.
    """
    newest = call(location, "latest")
    if newest is not None:
        return location, str(newest)
    base, _, name = location.url.rstrip("/").rpartition("/")
    above = dataclasses.replace(location, url=base)
    if name and not base.endswith("/") and call(above, "files", name=name):
        return above, name
    raise CheckpointStorageError(f"{location.url}: there is no checkpoint")


def _mask_secrets(text: str, location: Location) -> str:
    for value in iter_strings({name: value for name, value in location.options.items() if name not in _NO_KEYS}):
        text = text.replace(value, "***")
    return text


def iter_strings(value: Any) -> Iterator[str]:
    """Yield all strings in a mapping, at any depth."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from iter_strings(inner)
    elif isinstance(value, str) and value:
        yield value
