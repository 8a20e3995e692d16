"""The code that goes with a checkpoint: what the trial imported from its own directory."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from trial_runtime._redaction import masked_file

logger = logging.getLogger("trial_runtime.pytorch")

_CONFIGS = (".json", ".yaml", ".yml")
_LARGEST_CONFIG = 1 << 20
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_RUNTIME = os.path.join(Path(__file__).parents[2], "")


def module_name(trial_class: type) -> str:
    """Return the name to import the trial's module by; a script's is its file's, in a notebook it is empty."""
    if trial_class.__module__ != "__main__":
        return trial_class.__module__
    main = sys.modules["__main__"]
    specification = getattr(main, "__spec__", None)
    if specification is not None and specification.name:  # python -m package.module
        return str(specification.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else ""


def class_spec(trial_class: type) -> str:
    """Return ``module:Class``, to import the trial from its saved code."""
    return f"{module_name(trial_class)}:{trial_class.__qualname__}"


def trial_root(trial_class: type) -> Path | None:
    """Return the directory that the trial's module is imported from; None when it is an installed package.

    A trial that has no file (it is defined in a notebook) imports from the working directory.
    """
    module = sys.modules.get(trial_class.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        return Path.cwd() if trial_class.__module__ == "__main__" else None
    if _is_installed(os.path.abspath(file)):
        return None
    source = Path(os.path.abspath(file))  # as it was imported: a link into another directory stays where it is
    return source.parents[module_name(trial_class).count(".") + (source.name == "__init__.py")]


def save_code(trial_class: type, folder: Path, also: Iterable[Path] = ()) -> None:
    """Copy imported modules below the trial's directory, and config files beside them, to ``folder``.

    The working directory is not copied: it may hold data, or the checkpoints themselves. A file that cannot be read is
    named in the log; the checkpoint is saved without it.

    Args:
        trial_class: the trial.
        folder: where to; made when there is something to copy.
        also: config files that the trial reads, copied when they lie below its directory.
    """
    root = trial_root(trial_class)
    if root is None:
        return
    own = set(_modules_below(root))
    for parent in {path.parent for path in own} or {root}:
        own.update(_configs(parent))
    own.update(path for path in also if root in path.parents)
    for path in sorted(own):
        target = folder / path.relative_to(root)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(path, target)
        except OSError as error:
            logger.warning(f"{path} does not go with the checkpoint: {error}.")


def _copy(path: Path, target: Path) -> None:
    if path.suffix in _CONFIGS and path.stat().st_size <= _LARGEST_CONFIG:
        target.write_bytes(masked_file(path.read_bytes()))  # an experiment config, with keys maybe
    else:
        shutil.copyfile(path, target)


def _modules_below(root: Path) -> Iterator[Path]:
    # All modules of the process are looked at: strings, because there are thousands.
    below = os.path.join(root, "")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        file = file if file.startswith(os.sep) else os.path.abspath(file)
        if file.startswith(below) and not _is_installed(file) and os.path.isfile(file):
            yield Path(file)


def _is_installed(file: str) -> bool:
    parts = file.split(os.sep)
    return file.startswith((*_PYTHON, _RUNTIME)) or any(name in parts for name in _INSTALLED)


def _configs(folder: Path) -> Iterator[Path]:
    try:
        for path in folder.iterdir():
            if path.suffix in _CONFIGS and path.is_file() and path.stat().st_size <= _LARGEST_CONFIG:
                yield path
    except OSError as error:
        logger.warning(f"Config files in {folder} do not go with the checkpoint: {error}.")
