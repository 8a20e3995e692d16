"""The bytes of a run's files and of the projects around them, each file read once while it may concern a migration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.files.discovery import CONFIG_SUFFIXES, Source
from ds_migrate.files.prefilter import may_hold_loop, may_hold_trial
from ds_migrate.files.regular_file import read_file

if TYPE_CHECKING:
    from ds_migrate.files.notebook import Notebook


@dataclass(frozen=True)
class Rewritten:
    """A file that the conversion reads in another form.

    ``before``: its bytes, of a notebook its module. ``origins``: for each line of the other form, the line of the file,
    from 1.
    """

    before: bytes | None
    origins: Sequence[int]

    def line(self, line: int) -> int:
        """Return the line of the file for one of the other form."""
        return self.origins[min(line, len(self.origins)) - 1]


class FileReader:
    """Reads files by their real path. The files of the run were read by the walk that found them.

    ``notebooks`` are those read so far, ``broken_notebooks`` names the reason why the others cannot be read.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.notebooks: dict[Path, Notebook] = {}
        self.broken_notebooks: dict[Path, str] = {}
        self.rewritten: dict[Path, Rewritten] = {}
        self.to_create: set[Path] = set()  # files of the run that are not there yet
        self._sources = {source.real_name: source for source in sources}
        self._known: dict[Path, bytes | None] = {}
        self._kept: set[Path] = set()

    def source(self, path: Path) -> Source | None:
        """Return the file as it was named; None for one that is only read."""
        return self._sources.get(str(path))

    def is_writable(self, path: Path) -> bool:
        """Return whether the file was named, or lies in a folder that was: only such files are changed."""
        return str(path) in self._sources

    def is_ruled_out(self, path: Path) -> bool:
        """Return whether the walk has looked into the file and found no word of a migration."""
        source = self.source(path)
        return source is not None and source.data is None

    def read(self, path: Path) -> bytes | None:
        """Return the bytes of a file, of a notebook its code as one module; None when it cannot be read.

        Only the bytes of files that may concern a migration are kept, so that memory stays flat.
        """
        if path in self._known:
            return self._known[path]
        data = self.raw(path)
        if data is not None and path.suffix == ".ipynb":
            data = self._module_of_notebook(path, data)
        if data is None or path in self._kept or path.suffix in CONFIG_SUFFIXES or may_hold_trial(data):
            self._known[path] = data
        return data

    def keep(self, path: Path) -> None:
        """Keep the bytes of a file once they are read, whatever they hold."""
        self._kept.add(path)

    def rewrite(self, path: Path, data: bytes, origins: Sequence[int]) -> None:
        """Read another form of a file from now on."""
        earlier = self.rewritten.get(path)
        if earlier is None:
            self.rewritten[path] = Rewritten(self.read(path), origins)
        else:
            self.rewritten[path] = Rewritten(earlier.before, [earlier.line(line) for line in origins])
        self._known[path] = data

    def raw(self, path: Path) -> bytes | None:
        """Return the bytes of the file itself, whatever its kind."""
        source = self.source(path)
        try:
            return source.read() if source is not None else read_file(str(path))
        except OSError:
            return None

    def _module_of_notebook(self, path: Path, data: bytes) -> bytes | None:
        if not (may_hold_trial(data) or may_hold_loop(data)):
            return b""
        from ds_migrate.files.notebook import Notebook, NotebookError

        try:
            self.notebooks[path] = Notebook.parse(data)
        except NotebookError as error:
            self.broken_notebooks[path] = str(error)
            return None
        return self.notebooks[path].module()
