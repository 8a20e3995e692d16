"""Import modules from a given folder without disturbing those already imported."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_active = False


def _modules_below(folder: Path) -> list[str]:
    """Return the names of imported modules whose source lies in ``folder`` (packages included)."""
    names = []
    for name, module in sys.modules.copy().items():  # a list of items may be interrupted by garbage, which imports
        file = getattr(module, "__file__", None)
        if file and folder in Path(file).absolute().parents and "site-packages" not in Path(file).parts:
            names.append(name)
    return names


def _named_as_in(folder: Path) -> list[str]:
    """Return the names of imported modules that ``folder`` has too, wherever they came from."""
    there = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/*.py")}
    return [name for name in list(sys.modules) if name.split(".")[0] in there]


@contextlib.contextmanager
def import_from_path(path: str | os.PathLike[str]) -> Iterator[None]:
    """Import from ``path`` first, inside the ``with`` block, and forget those modules after it.

    Modules of the working directory, and those of the same names from elsewhere, step aside meanwhile, so an older
    ``model_def`` from a checkpoint and the present one can both be imported, under two names. No ``__pycache__`` is
    written below ``path``.

    Args:
        path: folder that holds the modules, such as ``<checkpoint>/code``.

    Raises:
        RuntimeError: when used inside itself, or from two threads at once.
    """
    global _active
    if _active:
        raise RuntimeError("import_from_path cannot be used inside itself or from several threads at once.")
    folder = Path(path).absolute()
    old_path, old_bytecode = sys.path[:], sys.dont_write_bytecode
    names = set(_named_as_in(folder))
    if "" in sys.path or str(Path.cwd()) in sys.path:
        names |= set(_modules_below(Path.cwd()))
    # The runtime itself may be checked out below the working directory; it must stay importable as it is.
    runtime = __name__.split(".")[0]
    aside = {name: sys.modules.pop(name) for name in names if name.split(".")[0] not in ("__main__", runtime)}
    sys.path = [str(folder), *(entry for entry in sys.path if entry != "")]
    sys.dont_write_bytecode = True
    _active = True
    try:
        yield
    finally:
        _active = False
        sys.path, sys.dont_write_bytecode = old_path, old_bytecode
        try:
            for name in _modules_below(folder):
                del sys.modules[name]
        finally:
            sys.modules.update(aside)
