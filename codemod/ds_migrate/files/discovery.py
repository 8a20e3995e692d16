"""The files of a run: named files and folders, walked once and read once as bytes.

In a git work tree git decides which files belong (``.gitignore`` holds), elsewhere the folders are scanned. Most files
hold no trial and nothing of them is kept but their path, so memory stays flat and nothing heavy is imported for them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.files import git
from ds_migrate.files.prefilter import may_hold_loop, may_hold_trial, may_run_framework
from ds_migrate.files.regular_file import read_file
from ds_migrate.files.training_output import TrainingOutput

if TYPE_CHECKING:
    from ds_migrate.files.patterns import Ignored

    _Fail = Callable[[str, OSError], None]

PYTHON_SUFFIXES = (".py", ".ipynb")
CONFIG_SUFFIXES = (".yaml", ".yml")
SUFFIXES = PYTHON_SUFFIXES + CONFIG_SUFFIXES

JOURNAL_FOLDER = ".ds-migrate"
SKIPPED_FOLDERS = frozenset({
    ".cache", ".conda", ".direnv", JOURNAL_FOLDER, ".eggs", ".git", ".hg", ".hypothesis", ".ipynb_checkpoints",
    ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".svn", ".tox", ".venv",
    "__pycache__", "__pypackages__", "node_modules", "site-packages", "venv",
})  # fmt: skip


class Source:
    """One file of the run.

    ``name`` is as the user named it, ``real_name`` absolute with links resolved: what two names of one file have in
    common. ``data`` is its bytes when it may concern a migration, else None (``read`` gets them). ``error`` states
    why it is left out: it cannot be read, or must not be converted. ``root_name`` is the project around it: the git
    work tree, else the named folder. ``is_named_itself``: not found in a folder that was named. ``has_loop``: it
    may hold a plain training loop, or hand its training to a framework. ``listed``: the names of all files of the
    project, where the walk has seen them all.
    """

    __slots__ = ("data", "error", "has_loop", "is_named_itself", "listed", "name", "real_name", "root_name")

    def __init__(
        self,
        name: str,
        real_name: str,
        root_name: str,
        data: bytes | None,
        error: str | None = None,
        is_named_itself: bool = False,
    ) -> None:
        self.name = name
        self.real_name = real_name
        self.root_name = root_name
        self.data = data
        self.error = error
        self.is_named_itself = is_named_itself
        self.has_loop = False
        self.listed: Sequence[str] | None = None

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def real(self) -> Path:
        return Path(self.real_name)

    @property
    def root(self) -> Path:
        return Path(self.root_name)

    def read(self) -> bytes:
        """Return the bytes, read now when they were not kept. Raises OSError."""
        return self.data if self.data is not None else read_file(self.name)

    def __repr__(self) -> str:
        kept = "-" if self.data is None else f"{len(self.data)} bytes"
        return f"Source({self.name!r}, {kept}, error={self.error!r})"


def by_parts(name: str) -> list[str]:
    """The order of paths: folder by folder, so that files of one folder stand together."""
    return name.split("/")


def discover(paths: Sequence[str | Path], chosen: Callable[[str], bool] = lambda _name: True) -> list[Source]:
    """Return every file named by ``paths``, each real file once, in a stable order. Never raises for a file or folder.

    ``chosen`` states whether a file (absolute, links of its folder resolved) belongs to the run.
    """
    walk = _Walk(chosen)
    for path in paths:
        walk.named(str(path))
    return walk.sources


def project_root(path: str | Path) -> Path:
    """Return the folder whose files belong together with ``path``: its git work tree, else the folder of it."""
    return Path(_root_name(path))


def _root_name(path: str | Path) -> str:
    real = os.path.realpath(path)
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    return git.work_tree(folder) or folder


def project_files(root: Path, listed: Sequence[str] | None = None) -> list[str]:
    """Return the names of Python files, notebooks and YAML files below ``root``: absolute, links resolved, sorted.

    Only names are read. ``listed`` are those names as a walk found them.
    """
    names = listed or _files_below(os.path.realpath(root), lambda _name, _error: None, TrainingOutput())
    folders = _RealFolders()
    real = {os.path.realpath(name) if os.path.islink(name) else folders.real_name(name) for name in names}
    return sorted(real, key=by_parts)


class _Walk:
    """The files that one run has met so far."""

    def __init__(self, chosen: Callable[[str], bool]) -> None:
        self._chosen = chosen
        self.sources: list[Source] = []
        self._seen: set[str] = set()
        self._links: list[str] = []  # of the folder at hand: a file found under its own name goes by that one
        self._folders = _RealFolders()
        self._training_output = TrainingOutput()
        self._roots: dict[str, str] = {}
        self._root = ""

    def named(self, name: str) -> None:
        name = os.path.normpath(name)
        try:
            is_folder = stat.S_ISDIR(os.stat(name).st_mode)
        except OSError as error:
            self._fail(name, error)
            return
        folder = name if is_folder else os.path.dirname(name)
        refusal = self._training_output.around(os.path.realpath(folder or os.curdir))
        if refusal is not None:
            self._refuse(name, refusal)
            return
        if folder not in self._roots:
            self._roots[folder] = _root_name(name)
        self._root = self._roots[folder]
        if is_folder:
            files = sorted(_files_below(name, self._fail, self._training_output))
            first = len(self.sources)
            for file in files:
                self._add(file, named_itself=False)
            links, self._links = self._links, []
            for link in links:
                self._add(link, named_itself=False, follow=True)
            if os.path.realpath(name) == self._root:
                for source in self.sources[first:]:
                    source.listed = files
        else:
            self._add(name, named_itself=True)

    def _add(self, name: str, named_itself: bool, follow: bool = False) -> None:
        real = self._folders.real_name(name)
        if real in self._seen or not self._chosen(real):
            return
        try:
            try:
                data = read_file(name, follow_links=False)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                if not (named_itself or follow):
                    self._links.append(name)
                    return
                real = os.path.realpath(name)
                if real in self._seen:
                    return
                refusal = self._training_output.around(os.path.dirname(real))
                if refusal is not None:
                    if named_itself:
                        self._refuse(name, refusal)
                    return
                data = read_file(real)
        except OSError as error:
            self._seen.update(_chain(name), (real,))
            # An editor's lock is a link to nowhere, and a link to a folder is no file: neither holds a trial.
            if named_itself or error.errno not in (errno.ENOENT, errno.ENXIO, errno.EINVAL, errno.EISDIR):
                self._fail(name, error)
            return
        self._seen.add(real)
        # A folder brings the files of its base classes along; a file named alone may have left them behind.
        kept = _concerns(name, data) or (named_itself and name.endswith(".py") and b"class" in data)
        source = Source(name, real, self._root, data if kept else None, is_named_itself=named_itself)
        source.has_loop = name.endswith(PYTHON_SUFFIXES) and (may_hold_loop(data) or may_run_framework(data))
        self.sources.append(source)

    def _fail(self, name: str, error: OSError) -> None:
        reason = error.strerror or type(error).__name__
        reason = reason[:1].lower() + reason[1:]
        self._refuse(name, f"cannot be read: {reason}")

    def _refuse(self, name: str, reason: str) -> None:
        self.sources.append(Source(name, os.path.abspath(name), ".", None, reason))


class _RealFolders:
    """Folders with their links resolved, each resolved once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def real_name(self, name: str) -> str:
        """Return ``name``, absolute and without links but for the file's own."""
        end = name.rfind("/") + 1
        folder = name[:end]
        if folder not in self._known:
            self._known[folder] = os.path.join(os.path.realpath(folder), "")
        return self._known[folder] + name[end:]


def _concerns(name: str, data: bytes) -> bool:
    """Return whether the bytes may concern a migration."""
    if name.endswith(CONFIG_SUFFIXES):
        return b"entrypoint" in data or b"ds-migrate" in data
    if name.endswith(PYTHON_SUFFIXES) or "." not in os.path.basename(name):
        return may_hold_trial(data)
    return False  # pre-commit calls stubs Python too


def _chain(name: str) -> Iterator[str]:
    """Yield the names that a chain of links goes through, so that a loop of links is reported once."""
    seen: set[str] = set()
    name = os.path.abspath(name)
    while name not in seen and os.path.islink(name):
        seen.add(name)
        yield os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        name = os.path.normpath(os.path.join(os.path.dirname(name), os.readlink(name)))


def _files_below(folder: str, fail: _Fail, left_out: TrainingOutput) -> Iterator[str]:
    """Return the files below ``folder`` whose suffix can matter; links to folders are not followed."""
    if git.work_tree(os.path.realpath(folder)) is not None:
        names = git.listed_files(folder)
        if names or (names is not None and not git.ignores(folder)):
            return _chosen(folder, names, fail, left_out)
    return _scanned(folder, fail, left_out)


def _chosen(folder: str, names: Sequence[str], fail: _Fail, left_out: TrainingOutput) -> Iterator[str]:
    """Yield, of what git lists in ``folder``, the files that can matter, and those of the repositories nested in it."""
    environments = tuple(name.removesuffix("pyvenv.cfg") for name in names if name.endswith("/pyvenv.cfg"))
    submodules = os.path.lexists(f"{git.work_tree(os.path.realpath(folder))}/.gitmodules")  # listed without a slash
    skipped: dict[str, bool] = {}
    real = os.path.realpath(folder)
    for name in sorted(set(names)):
        is_file = name.endswith(SUFFIXES)
        if not (is_file or submodules or name.endswith("/")):
            continue
        parent = name.rstrip("/").rpartition("/")[0]
        if parent not in skipped:
            skipped[parent] = (
                not SKIPPED_FOLDERS.isdisjoint(parent.split("/"))
                or name.startswith(environments)
                or left_out.around(os.path.join(real, parent)) is not None
            )
        if skipped[parent]:
            continue
        path = os.path.join(folder, name).rstrip("/")
        if is_file:
            yield path
        elif os.path.isdir(path) and not os.path.islink(path) and os.path.basename(path) not in SKIPPED_FOLDERS:
            yield from _files_below(path, fail, left_out)


def _scanned(folder: str, fail: _Fail, training_output: TrainingOutput) -> Iterator[str]:
    """Yield files where git does not help but ``.gitignore`` holds; repositories met on the way are asked again."""
    waiting: list[tuple[str, Ignored | None]] = [(folder, None)]
    while waiting:
        here, ignored = waiting.pop()
        try:
            with os.scandir(here) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            fail(here, error)
            continue
        names = {entry.name for entry in entries}
        if here != folder and "pyvenv.cfg" in names:
            continue
        if here != folder and training_output.around(os.path.realpath(here)) is not None:
            continue
        if here != folder and ".git" in names:
            yield from _files_below(here, fail, training_output)
            continue
        if ".gitignore" in names:
            from ds_migrate.files.patterns import Ignored

            ignored = Ignored(ignored, here)
            if ignored.problem is not None:
                fail(os.path.join(here, ".gitignore"), OSError(errno.E2BIG, ignored.problem))
        folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in entries:
            left_out = ignored is not None and ignored(entry.path, False)
            if entry.name.endswith(SUFFIXES) and not entry.is_dir(follow_symlinks=False) and not left_out:
                yield os.path.normpath(entry.path)
        for entry in reversed(folders):
            if entry.name not in SKIPPED_FOLDERS and not (ignored is not None and ignored(entry.path, True)):
                waiting.append((entry.path, ignored))
