"""The imports that converted code needs, each put where a sorted import block would have it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import libcst as cst

from ds_migrate.syntax.module_start import first_to_print, first_to_work
from ds_migrate.syntax.names import Names
from ds_migrate.syntax.nodes import dotted, last_name, targets

if TYPE_CHECKING:
    from ds_migrate.syntax.source import SourceFile


# What loads torch, and what may be loaded before or behind it alike: others, as simulators, may have to come first.
_LOADS_TORCH = frozenset({"deepspeed", "trial_runtime"})
_ANY_ORDER = frozenset(
    {"PIL", "determined", "matplotlib", "numpy", "pandas", "pytest", "requests", "scipy", "sklearn", "tqdm", "yaml"}
)
_NOT_ALWAYS = (cst.FunctionDef, cst.ClassDef, cst.If, cst.While, cst.Match, cst.ExceptHandler, cst.ExceptStarHandler)


class Imports:
    """The imports to add to one file: each once, under the name that the file already uses."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._wanted: dict[str, str] = {}
        self._unwritten: list[tuple[str, str, bool]] = []
        self._above: dict[cst.SimpleStatementLine, list[tuple[int, tuple[bool, str], str]]] = {}

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that takes back every import claimed from now on; its text is among the file's edits."""
        wanted, above = dict(self._wanted), {line: list(found) for line, found in self._above.items()}
        unwritten = list(self._unwritten)

        def undo() -> None:
            self._wanted, self._unwritten = dict(wanted), list(unwritten)
            self._above = {line: list(found) for line, found in above.items()}

        return undo

    @cached_property
    def bindings(self) -> dict[str, str]:
        """The names that any function of the file can use at run time, and what they are bound to."""
        return Names([node for node in self._file.names.import_nodes if self.runs_with_module(node)], ()).bindings

    @cached_property
    def _first_to_work(self) -> int:
        body = self._file.module.body
        return first_to_print(body[: first_to_work(body, self.bindings)])

    def runs_with_module(self, node: cst.CSTNode) -> bool:
        """Return whether an import runs when the module does: not in a function or class, or under a condition such as
        ``TYPE_CHECKING`` or ``sys.version_info < (3, 9)``."""
        return not any(isinstance(outer, _NOT_ALWAYS) for outer in self._file.ancestors(node))

    def module(self, name: str, alias: str | None = None) -> str:
        """Return the name by which the file can use a module, imported if it is not."""
        if name in self._wanted:
            return self._wanted[name]
        names = self._file.names
        for bound, qualified in self.bindings.items():
            if qualified == name and ("." not in name or alias):
                return bound
        bound = names.fresh(alias or name)
        self._wanted[name] = bound
        self.insert(f"import {name}" if bound == name else f"import {name} as {bound}", name, False)
        return bound

    def name(self, module: str, name: str) -> str:
        """Return the name by which the file can use ``module.name``, imported from there if it is not."""
        qualified = f"{module}.{name}"
        if qualified in self._wanted:
            return self._wanted[qualified]
        names = self._file.names
        for bound, known in self.bindings.items():
            if known == qualified:
                return bound
            if known == module:
                return f"{bound}.{name}"
        bound = names.fresh(name, f"{name}_")
        self._wanted[qualified] = bound
        self.insert(f"from {module} import {name}" + ("" if bound == name else f" as {bound}"), module, True)
        return bound

    def insert(self, text: str, module: str, is_from: bool) -> None:
        """Insert an import, once all other edits are known."""
        self._unwritten.append((text, module, is_from))

    def write(self) -> None:
        """Write each before the first import of the same section that sorts after it, else after the section's last."""
        unwritten, self._unwritten = self._unwritten, []
        changed = self._first_changed() if unwritten else 0
        for text, module, is_from in unwritten:
            self._write(text, module, is_from, changed)

    def _first_changed(self) -> int:
        """Return the place of the first statement that may need what is imported as the module runs."""
        body = self._file.module.body
        defines = (cst.FunctionDef, cst.ClassDef)
        return next(
            (
                index
                for index, statement in enumerate(body)
                if not isinstance(statement, defines) and not _import_lines([statement])
                and not _sets_environment(statement) and self._file.edits.is_touched(statement)
            ),
            len(body),
        )  # fmt: skip

    def _write(self, text: str, module: str, is_from: bool, changed: int) -> None:
        section = _section(module)
        body = self._file.module.body[:changed]
        # What works first may need what is imported.
        lines = _import_lines(body[: self._first_to_work]) or _import_lines(body)
        keys = [(line, *_key(line)) for line in _behind_first(lines, module)]
        same = [k for k in keys if k[1] == section]
        # Sorted with "import x" before "from x import", or by the module alone where both are mixed.
        mixed = any(one[2] > other[2] for one, other in pairwise(same))

        def order(is_from: bool, module: str) -> tuple[bool, str]:
            return (is_from and not mixed, module)

        later = [k for k in same if order(*k[2]) > order(is_from, module)]
        if later:
            self._before(self._file.line_of(later[0][0])[0], section, order(is_from, module), text)
        elif same:
            self._file.after(self._file.line_of(same[-1][0])[-1], text)
        elif section == 0 and lines:
            after_future = [k for k in keys if k[1] == -1]
            if after_future:
                self._file.after(self._file.line_of(after_future[-1][0])[-1], text)
            else:
                self._before(lines[0], section, order(is_from, module), text)
        elif lines:
            self._file.after(self._file.line_of(lines[-1])[-1], text)
        else:
            self._top(text)

    def _before(self, line: cst.SimpleStatementLine, section: int, order: tuple[bool, str], text: str) -> None:
        """Insert among what else comes before that import: sorted, with an empty line between sections."""
        above = self._above.setdefault(line, [])
        known = _block(above, _key(line)[0])
        above.append((section, order, text))
        above.sort()
        self._file.before(line, _block(above, _key(line)[0]), instead_of=known)

    def _top(self, text: str) -> None:
        """Insert after the docstring of a file without imports."""
        body = self._file.module.body
        first = body[0]
        if isinstance(first, cst.SimpleStatementLine) and isinstance(first.body[0], cst.Expr) and len(body) > 1:
            self._file.after(first, text)
        else:
            assert isinstance(first, cst.BaseStatement)
            self._file.before(first, text)


def _block(imports: list[tuple[int, tuple[bool, str], str]], following: int) -> str:
    """Return sorted imports as lines; an empty line separates the import that follows when its section differs."""
    lines = ["\n" if imports and imports[-1][0] != following else ""]
    for index, (section, _, text) in enumerate(imports):
        parted = index and imports[index - 1][0] != section
        lines.append(("\n\n" if parted else "\n" if index else "") + text)
    return "".join(lines)


def _import_lines(body: Iterable[cst.BaseStatement]) -> list[cst.SimpleStatementLine]:
    return [s for s in body if isinstance(s, cst.SimpleStatementLine) and _imported(s) is not None]


def _behind_first(lines: list[cst.SimpleStatementLine], module: str) -> list[cst.SimpleStatementLine]:
    """Return the imports beside which one may be: what loads torch, behind all that may have to come before torch."""
    roots = [str(_imported(line)).split(".")[0] for line in lines]
    if module.split(".")[0] not in _LOADS_TORCH or "torch" not in roots:
        return lines
    before = roots[: roots.index("torch")]
    free = _ANY_ORDER | _LOADS_TORCH | sys.stdlib_module_names
    return lines[max((index + 1 for index, root in enumerate(before) if root not in free), default=0) :]


def _imported(line: cst.SimpleStatementLine) -> str | None:
    node = line.body[0] if len(line.body) == 1 else None
    if isinstance(node, cst.Import):
        return dotted(node.names[0].name)
    if isinstance(node, cst.ImportFrom):
        return "." * len(node.relative) + (dotted(node.module) or "")
    return None


def _sets_environment(statement: cst.CSTNode) -> bool:
    """Return whether a statement is ``os.environ["CUDA_VISIBLE_DEVICES"] = "0"``, which libraries read at import."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else statement
    return any(isinstance(t, cst.Subscript) and last_name(t.value) == "environ" for t in targets(small))


def _section(module: str) -> int:
    """Return -1 for ``__future__``, 0 for the standard library, 1 for other packages, 2 for relative imports."""
    if module == "__future__":
        return -1
    if module.startswith("."):
        return 2
    return 0 if module.split(".")[0] in sys.stdlib_module_names else 1


def _key(line: cst.SimpleStatementLine) -> tuple[int, tuple[bool, str]]:
    module = _imported(line)
    assert module is not None
    return _section(module), (isinstance(line.body[0], cst.ImportFrom), module)
