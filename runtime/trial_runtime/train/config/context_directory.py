"""Default of the context directory: the folder that the entrypoint's code is found from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trial_runtime.train.config import entrypoint


def context_of(config: Path, document: dict[str, Any]) -> Path:
    """Return the config's folder, or the nearest above it that has the entrypoint's module or script.

    Configs often lie in a separate folder, and ``det experiment create configs/const.yaml .`` named the other one.
    Looked at are the folders of the config's git work tree; outside of one, those up to the working directory.

    Args:
        config: the experiment config's path.
        document: its content.

    Returns:
        The config's folder where the code is in none of them.
    """
    own = config.resolve().parent
    try:
        files = _files(entrypoint.parse(document.get("entrypoint")))
    except ValueError:  # reported when the config is read
        return own
    return next((folder for folder in _folders(own) if any((folder / file).is_file() for file in files)), own)


def _files(entry: entrypoint.Entrypoint) -> list[Path]:
    if entry.kind == "script":
        return [Path(entry.target)]
    inside = Path(*entry.target.partition(":")[0].split("."))
    start = "__init__.py" if entry.kind == "class" else "__main__.py"
    return [inside.with_name(f"{inside.name}.py"), inside / start]


def _folders(own: Path) -> Iterator[Path]:
    line = [own, *own.parents]
    top = next((folder for folder in line if (folder / ".git").exists()), Path.cwd())
    yield from line[: line.index(top) + 1] if top in line else [own]
