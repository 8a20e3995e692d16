"""The code of the runs that train: another command of a program, or another branch of its dispatch, does not."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import is_test_file
from ds_migrate.plain.dataflow.calls.callers import is_repeated
from ds_migrate.plain.dataflow.calls.code_graph import key_around
from ds_migrate.plain.dataflow.calls.code_uses import CodeUses
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_used
from ds_migrate.syntax.branches import parting
from ds_migrate.syntax.module_start import asks_for_main
from ds_migrate.syntax.nodes import called_name
from ds_migrate.syntax.source import SourceFile


class TrainingRuns:
    """The code that may run in one process with a backward pass.

    Args:
        files: of the program.
        loops: the functions and modules that pass backward, by identity.
        commands: the functions that the command line chooses, one in each run.
        unnamed: functions that may run without being named: special and inherited methods, decorated functions.
        flow: of the program.
    """

    def __init__(
        self, files: Collection[SourceFile], loops: set[int], commands: Collection[int], unnamed: set[int], flow: Flow
    ) -> None:
        self._flow = flow
        self._uses = CodeUses(files, flow)
        self._commands = commands
        self._functions = {id(node): (node, file) for file in files for node in file.nodes(cst.FunctionDef)}
        self._homes = {key: file for key, (_, file) in self._functions.items()}
        self._modules = {id(file.module): file for file in files}
        self._homes |= self._modules
        self._classes: dict[int, set[int]] = {}
        for key in unnamed & self._functions.keys() - set(commands):
            owner = self._class_of(key)
            self._classes.setdefault(owner, set()).add(key)  # 0 has those outside of classes
        self._leading: set[int] = set()
        self._sites: dict[int, list[cst.CSTNode]] = {}
        self._once: dict[int, bool] = {}
        self._running = found = self._reached({*self._modules, *commands})
        self.is_known = loops <= found  # else code calls one of them that is not there
        if self.is_known:
            self._leading = self._leading_to(loops)
            self._sites = {key: list(self._leading_sites(key, loops)) for key in self._leading & self._homes.keys()}
            used = files_used({self._homes[key] for key in self._leading & self._homes.keys()}, flow)
            found = self._reached(self._leading | {id(file.module) for file in files if id(file) in used})
        self._found = found

    def leave_out(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether runs come to a node, and none of these to a backward pass."""
        key = key_around(node, file)
        is_apart = key in self._running and key not in self._found
        return self.is_known and (is_apart or self._is_parted(node, key))

    def _class_of(self, key: int) -> int:
        """Return the class of a method; 0 for what is none."""
        function, file = self._functions.get(key, (None, None))
        if function is None or file is None:
            return 0
        owner = file.parent(file.parent(function) or function)
        return id(owner) if isinstance(owner, cst.ClassDef) else 0

    def _reached(self, start: set[int]) -> set[int]:
        """Return this code, and all that it names where a run may train that comes there."""
        found: set[int] = set()
        todo = [*start, *self._classes.get(0, ())]
        waiting: dict[int, list[int]] = {}  # methods of classes that nothing has named yet
        while todo:
            key = todo.pop()
            if key in found:
                continue
            owner = self._class_of(key)
            if owner and owner not in found and key not in start:
                waiting.setdefault(owner, []).append(key)
                continue
            found.add(key)
            todo += [*self._classes.get(key, ()), *waiting.pop(key, ())]
            for use in self._uses.of(key):
                if not self._is_left_out(use.node, key):
                    todo += use.named & self._leading if use.is_choice and self._leading else use.named
        return found

    def _is_left_out(self, node: cst.CSTNode, key: int) -> bool:
        """Return whether no run that trains comes to a node of code."""
        is_of_other = bool(self._leading) and key in self._modules and key not in self._leading
        return (is_of_other and any(map(asks_for_main, self._homes[key].ancestors(node)))) or self._is_parted(node, key)

    def _leading_to(self, loops: set[int]) -> set[int]:
        """Return this code, and all that names it, or a class of which something else may call it."""
        before: dict[int, set[int]] = {}
        for key in self._homes:
            for use in self._uses.of(key):
                for named in use.named:
                    before.setdefault(named, set()).add(key)
        for owner, methods in self._classes.items():
            for method in methods if owner else ():
                before.setdefault(method, set()).add(owner)
        found, todo = set(loops), list(loops)
        while todo:
            new = before.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    def _leading_sites(self, key: int, loops: set[int]) -> Iterator[cst.CSTNode]:
        """Yield the nodes of code that lead to a loop, or are one."""
        yield from (use.node for use in self._uses.of(key) if use.named & self._leading)
        file = self._homes[key]
        below = self._functions[key][0] if key in self._functions else file.module
        for call in file.nodes(cst.Call, below=below) if key in loops else ():
            if called_name(call) == "backward" and key_around(call, file) == key:
                yield call

    def _is_parted(self, node: cst.CSTNode, key: int) -> bool:
        """Return whether no run comes to a node of code that leads to a loop, and to what leads there."""
        sites = self._sites.get(key, ())
        return bool(sites) and all(self._are_parted(node, site, self._homes[key]) for site in sites)

    def _are_parted(self, node: cst.CSTNode, site: cst.CSTNode, file: SourceFile) -> bool:
        condition = parting(file, node, site) or _left_before(file, node, site) or _left_before(file, site, node)
        return condition is not None and _asks_for_word(condition.test) and self._runs_once(condition, file)

    def _runs_once(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a run comes to a node once: by one call of its function, or as a command."""
        if is_repeated(file, node):
            return False
        key = key_around(node, file)
        if key in self._modules:
            return True
        if key not in self._once:
            self._once[key] = False  # where it calls itself
            function = self._functions[key][0]
            calls = [(call, home) for home, call in self._flow.callers.of(function) if not is_test_file(home)]
            is_begun = bool(calls) or key in self._commands or not self._class_of(key)  # a command, or installed as one
            of_scripts = [id(home) for call, home in calls if key_around(call, home) in self._modules]
            is_single = len(calls) <= 1 or len(calls) == len(set(of_scripts))
            self._once[key] = is_begun and is_single and all(self._runs_once(*place) for place in calls)
        return self._once[key]


def _asks_for_word(test: cst.BaseExpression) -> bool:
    """Return whether a condition compares, as with the name of a command; a flag, as for evaluation, is no command."""
    return isinstance(test, cst.Comparison)


def _left_before(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> cst.If | None:
    """Return the ``if`` around a node that leaves the function before another one behind it."""
    if file.position(one) > file.position(other):
        return None
    around = {id(outer) for outer in file.ancestors(other)}
    for outer in file.ancestors(one):
        if id(outer) in around or isinstance(outer, (cst.FunctionDef, cst.Lambda)):
            return None
        if isinstance(outer, cst.If) and _is_inside(one, outer.body, file) and _leaves(outer.body):
            return outer
    return None


def _is_inside(node: cst.CSTNode, block: cst.BaseSuite, file: SourceFile) -> bool:
    return any(outer is block for outer in file.ancestors(node))


def _leaves(block: cst.BaseSuite) -> bool:
    """Return whether a block ends by leaving its function."""
    last = block.body[-1] if block.body else None
    small = last.body if isinstance(last, cst.SimpleStatementLine) else ()
    return any(
        isinstance(line, (cst.Return, cst.Raise))
        or (
            isinstance(line, cst.Expr)
            and isinstance(line.value, cst.Call)
            and called_name(line.value) in ("exit", "_exit")
        )
        for line in small
    )
