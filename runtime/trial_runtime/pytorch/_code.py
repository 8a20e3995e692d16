"""The code that goes with a checkpoint: what the trial imported from its own directory."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

_CONFIGS = (".json", ".yaml", ".yml")
_LARGEST_CONFIG = 1 << 20


def trial_root(trial_class: type) -> Path | None:
    """The directory that the trial's module is imported from; None when it has no source file."""
    module = sys.modules.get(trial_class.__module__)
    file = getattr(module, "__file__", None)
    if file is None or "site-packages" in Path(file).parts:
        return None
    source = Path(file).resolve()
    depth = 0 if module is None or module.__name__ == "__main__" else module.__name__.count(".")
    return source.parents[depth + (source.name == "__init__.py")]


def save_code(trial_class: type, folder: Path) -> None:
    """Copy imported modules below the trial's directory, and config files beside them, to ``folder``.

    The working directory is not copied: it may hold data, or the checkpoints themselves.
    """
    root = trial_root(trial_class)
    if root is None:
        return
    sources = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and "site-packages" not in file:
            sources.add(Path(file).resolve())
    own = {path for path in sources if root in path.parents and path.is_file()}
    own.discard(Path(__file__).resolve())
    own = {path for path in own if Path(__file__).resolve().parents[1] not in path.parents}
    for parent in {path.parent for path in own}:
        own |= {p for p in parent.iterdir() if p.suffix in _CONFIGS and p.stat().st_size <= _LARGEST_CONFIG}
    for path in sorted(own):
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def class_spec(trial_class: type) -> str:
    """``module:Class`` to import the trial from its saved code; a script is named by its file."""
    name = trial_class.__module__
    if name == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        name = Path(file).stem if file else ""
    return f"{name}:{trial_class.__qualname__}"
