"""The process that accesses a storage: a job as JSON on stdin, its result as JSON on stdout.

A checkpoint is there when its manifest is, which is written last and removed first::

    url/
      latest               name of the newest checkpoint
      00000010-5f0c1a2b/   the files of the local one
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_LATEST, _MANIFEST = "latest", "manifest.json"
_DRIVERS = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}


class RemoteStorage:
    """A run's checkpoints at a URL. Every method is an action of :func:`trial_runtime._storage.remote.call`.

    Raises:
        ValueError: no driver for the URL; the message names the package to install.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        import fsspec

        scheme = url.partition("://")[0]
        if scheme == "memory":
            raise ValueError("memory:// is a process's own memory, nothing of it is left for the next one")
        self.has_buckets = scheme in _DRIVERS  # no folders then: making one would make a bucket
        try:
            self.files_of_url, self.root = fsspec.core.url_to_fs(url, **options)
        except ImportError as error:
            driver = _DRIVERS.get(scheme)
            advice = f"pip install {driver}" if driver else str(error)
            raise ValueError(f"{scheme}:// needs a driver: {advice}") from error
        except ValueError as error:
            if scheme in fsspec.available_protocols():
                raise
            raise ValueError(f"fsspec knows no storage of the kind {scheme}://") from error

    def names(self) -> list[str]:
        """Return the checkpoints, oldest first."""
        found = self.files_of_url.glob(f"{self.root}/*/{_MANIFEST}")
        if not found and self.has_buckets and not self.files_of_url.exists(self.root.partition("/")[0]):
            raise FileNotFoundError(f"there is no bucket {self.root.partition('/')[0]}, or it may not be listed")
        names = (str(path).rstrip("/").split("/")[-2] for path in found)
        return sorted(name for name in names if name not in (".", ".."))  # buckets may have such

    def latest(self) -> str | None:
        """Return the newest checkpoint."""
        names = self.names()
        pointer = f"{self.root}/{_LATEST}"
        named = self.files_of_url.cat_file(pointer).decode().strip() if self.files_of_url.exists(pointer) else ""
        return named if named in names else names[-1] if names else None

    def beyond(self, name: str | None) -> str | None:
        """Return the newest checkpoint, unless it is ``name``, or ``name`` is not in the storage yet."""
        newest = self.latest()
        return newest if name is None or (name in self.names() and name != newest) else None

    def batches(self) -> dict[str, int]:
        """Return how many batches each checkpoint was trained for."""
        manifests = {name: self.files_of_url.cat_file(f"{self.root}/{name}/{_MANIFEST}") for name in self.names()}
        return {name: int(json.loads(manifest)["progress"]["batches"]) for name, manifest in manifests.items()}

    def files(self, name: str) -> dict[str, int]:
        """Return a checkpoint's files, relative to it, and their sizes in bytes."""
        folder = f"{self.root}/{name}"
        found = self.files_of_url.find(folder, detail=True)
        start = len(self.files_of_url._strip_protocol(folder)) + 1
        return {path[start:]: int(about["size"]) for path, about in found.items() if path[start:]}

    def put(self, name: str, folder: str, files: list[str]) -> None:
        """Upload files of the local checkpoint in ``folder``."""
        for file in files:
            target = f"{self.root}/{name}/{file}"
            if not self.has_buckets:
                self.files_of_url.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.files_of_url.put_file(str(Path(folder, file)), target)

    def commit(self, name: str, folder: str) -> None:
        """Make an uploaded checkpoint count."""
        self.put(name, folder, [_MANIFEST])
        self.files_of_url.pipe_file(f"{self.root}/{_LATEST}", f"{name}\n".encode())

    def get(self, name: str, folder: str, files: list[str]) -> None:
        """Download files of a checkpoint to the local ``folder``."""
        for file in files:
            target = Path(folder, file)
            if not target.resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(f"{file!r} lies outside of the checkpoint")
            target.parent.mkdir(parents=True, exist_ok=True)
            self.files_of_url.get_file(f"{self.root}/{name}/{file}", str(target))

    def remove(self, name: str) -> None:
        """Remove a checkpoint."""
        self.files_of_url.rm_file(f"{self.root}/{name}/{_MANIFEST}")
        self.files_of_url.rm(f"{self.root}/{name}", recursive=True)


ACTIONS = ("names", "latest", "beyond", "batches", "files", "put", "commit", "get", "remove")


def main() -> int:
    """Run the job on stdin. Exit code 0: the result is on stdout; 1: the last line on stderr is the error."""
    job = json.load(sys.stdin)
    assert job["action"] in ACTIONS
    try:
        result = getattr(RemoteStorage(job["url"], job["options"]), job["action"])(**job["arguments"])
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
