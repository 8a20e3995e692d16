"""Whether a file without a word of a trial in it may still hold one: through a base class in a file that was not named.

pre-commit passes the files of a commit alone. ``class Derived(Base)`` is a trial when ``Base`` in ``base.py`` is one, so
the imports of named files are followed, on bytes, until a file speaks of trials or nothing is left in the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ds_migrate import detect
from ds_migrate.discover import Source, read_file

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*)[ \t]*([\w.]*)[ \t]+import[ \t]*(?:\(([^)]*)\)|([^#\n]*))|import[ \t]+([\w., \t]+))", re.M
)
_NAME = re.compile(rb"([\w.]+)(?:\s+as\s+\w+)?")


def keep_derived(sources: list[Source]) -> None:
    """Keep the bytes of those Python files that import, however indirectly, a file of their project with a trial."""
    known: dict[Path, bytes | None] = {}
    for source in sources:
        if source.error is None and source.data is None and source.path.suffix == ".py":
            data = _read(source.real, known)
            if data and b"class" in data and _reaches_trial(source, known):
                source.data = data


def _reaches_trial(source: Source, known: dict[Path, bytes | None]) -> bool:
    seen: set[Path] = {source.real}
    waiting = [source.real]
    while waiting:
        path = waiting.pop()
        data = _read(path, known) or b""
        if path != source.real and detect.may_hold_trial(data):
            return True
        for found in _imported(path, data, source.root, known):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    return False


def _imported(path: Path, data: bytes, root: Path, known: dict[Path, bytes | None]) -> Iterator[Path]:
    """The project's files that the imports in ``data`` may mean."""
    for dots, module, in_brackets, on_line, plain in _IMPORT.findall(data):
        if plain:
            wanted = [name.decode() for name in _NAME.findall(plain)]
        else:
            names = [name.decode() for name in _NAME.findall(in_brackets or on_line)]
            wanted = [module.decode(), *(f"{module.decode()}.{name}".strip(".") for name in names)]
        for folder in _folders(path, len(dots), root):
            for name in filter(None, wanted):
                base = folder.joinpath(*name.split("."))
                for candidate in (base.with_name(base.name + ".py"), base / "__init__.py"):
                    if _read(candidate, known) is not None:
                        yield candidate


def _folders(path: Path, dots: int, root: Path) -> Iterator[Path]:
    """Where a module may lie: a relative import says it, any other is looked for beside the file and above."""
    if dots:
        yield path.parents[min(dots, len(path.parents)) - 1]
        return
    for folder in path.parents:
        if folder.is_relative_to(root):
            yield folder
            yield folder / "src"


def _read(path: Path, known: dict[Path, bytes | None]) -> bytes | None:
    if path not in known:
        try:
            known[path] = read_file(str(path))
        except (OSError, ValueError):
            known[path] = None
    return known[path]
