"""The functions that code of a program names or calls; code is that of a function, or of a module outside of them."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, are_all
from ds_migrate.plain.reachability import reachable
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile


class CodeGraph:
    """The functions that each function or module of some files names, or calls by whatever name, by identity."""

    def __init__(self, files: Collection[SourceFile], flow: Flow) -> None:
        self._functions = {file: file.nodes(cst.FunctionDef) for file in files}
        self._names = {key: set[str]() for file in files for key in self.of(file)}
        self._exports = {key: set[str]() for key in self._names}  # of __all__
        self._calls = {key: set[int]() for key in self._names}
        self._by_name: dict[str, set[int]] = {}
        self._of_class: dict[str, set[int]] = {}
        self._special = set[int]()
        self._before: dict[int, set[int]] | None = None
        self._passed = {key: set[str]() for key in self._names}
        named = {function.name.value for functions in self._functions.values() for function in functions}
        for file in files:
            for owner in file.nodes(cst.ClassDef):
                methods = [node for node in owner.body.body if isinstance(node, cst.FunctionDef)]
                self._of_class.setdefault(owner.name.value, set()).update(map(id, methods))
                self._special |= {id(method) for method in methods if method.name.value.startswith("__")}
            for name in file.nodes(cst.Name):
                if name.value in named and _is_of_library(name, file, flow):
                    continue
                if not isinstance(file.parent(name), (cst.FunctionDef, cst.ImportAlias)):
                    self._names[key_around(name, file)].add(name.value)
                    if not isinstance(file.parent(name), cst.ClassDef) and not _makes_object(name, file):
                        self._passed[key_around(name, file)].add(name.value)
            for text in file.nodes(cst.SimpleString):
                (self._exports if _is_exported(text, file) else self._names)[key_around(text, file)].add(text.raw_value)
                self._passed[key_around(text, file)].add(text.raw_value)
            for function in self._functions[file]:
                self._by_name.setdefault(function.name.value, set()).add(id(function))
                for caller, call in flow.callers.of(function):
                    if caller in self._functions:
                        self._calls[key_around(call, caller)].add(id(function))

    def of(self, file: SourceFile) -> set[int]:
        """Return the code of a file: its module, and its functions."""
        return {id(file.module), *map(id, self._functions[file])}

    def named(self) -> set[int]:
        """Return the functions that other code names or calls, whether that runs or not."""
        return {one for key in self._names for one in self._following(key) if one != key}

    def reached_from(self, start: set[int]) -> set[int]:
        """Return this code, and all functions that it names or calls, however indirectly."""
        return set(reachable(start, self._following))

    def used_by(self, start: set[int]) -> set[int]:
        """Return this code, and all that it names or calls, however indirectly, other than to export it."""
        return set(reachable(start, self._used))

    def leading_to(self, found: set[int]) -> set[int]:
        """Return this code, and all that names or calls it, or hands on the class of a method, however indirectly.

        What makes an object names the methods that it calls.
        """
        while True:
            special = found & self._special
            names = {name for name, keys in self._by_name.items() if keys & found}
            names |= {name for name, keys in self._of_class.items() if keys & special}
            classes = {name for name, keys in self._of_class.items() if keys & found}
            new = {
                key for key, used in self._names.items()
                if (used | self._exports[key]) & names or self._passed[key] & classes or self._calls[key] & found
            }  # fmt: skip
            if new <= found:
                return found
            found = found | new

    def running_to(self, key: int) -> set[int]:
        """Return this code, and all that names or calls it, however indirectly."""
        if self._before is None:
            self._before = {}
            for namer in self._names:
                for one in self._following(namer):
                    self._before.setdefault(one, set()).add(namer)
        before = self._before
        return set(reachable({key}, lambda one: before.get(one, ())))

    def _following(self, key: int) -> set[int]:
        return self._used(key).union(*(self._by_name.get(name, ()) for name in self._exports[key]))

    def _used(self, key: int) -> set[int]:
        return self._calls[key].union(*(self._by_name.get(name, ()) for name in self._names[key]))


def _is_of_library(name: cst.Name, file: SourceFile, flow: Flow) -> bool:
    """Return whether a name is that of a library's function, as in ``torch.load()``: no function of the program."""
    node = file.parent(name)
    if not isinstance(node, cst.Attribute) or node.attr is not name or file.names.qualified(node) is None:
        return False
    values = flow.values(node, file)
    return are_all(values, Kind.EXTERNAL)


def _makes_object(name: cst.Name, file: SourceFile) -> bool:
    """Return whether a name is called, and what the call returns is no argument: ``trainer = Trainer()``."""
    node = file.parent(name)
    func: cst.CSTNode = name
    if isinstance(node, cst.Attribute) and node.attr is name:
        func, node = node, file.parent(node)
    return isinstance(node, cst.Call) and node.func is func and not isinstance(file.parent(node), cst.Arg)


def _is_exported(text: cst.SimpleString, file: SourceFile) -> bool:
    """Return whether a text is one of ``__all__``."""
    lines = (outer for outer in file.ancestors(text) if isinstance(outer, (cst.Assign, cst.AnnAssign, cst.AugAssign)))
    return any(dotted(target) == "__all__" for line in lines for target in targets(line))


def key_around(node: cst.CSTNode, file: SourceFile) -> int:
    """Return the identity of the innermost function around a node, or of its module."""
    return id(file.function(node) or file.module)
