"""Functions of a program that never run: helpers are often copied whole from other projects."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import islice

import libcst as cst

from ds_migrate.files.prefilter import may_pass_backward, may_step
from ds_migrate.plain.dataflow.branches.dead_branches import is_test
from ds_migrate.plain.dataflow.calls.code_graph import CodeGraph, key_around
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_beside, files_used
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.programs.dynamic_imports import imports_by_name
from ds_migrate.syntax.module_start import asks_for_main
from ds_migrate.syntax.nodes import called_name, decorators, dotted, last_name
from ds_migrate.syntax.source import SourceFile

# Decorators of functions that are called by their names as before: another may keep the function elsewhere.
_SAME = frozenset({
    "classmethod", "staticmethod", "property", "contextmanager", "contextlib.contextmanager", "torch.no_grad",
    "torch.inference_mode", "functools.cache", "cache", "jit.script", "torch.jit.script", "torch.jit.ignore",
})  # fmt: skip

# Calls whose function no name leads to; not model.eval(), nor the attribute that a literal names.
_HIDDEN_CALLS = re.compile(
    rb"(?<![\w.])(?:(?:eval|exec)\(|getattr\([^,\n]*,(?!\s*[\"']))|import_module|__import__|runpy"
)
Place = tuple[cst.CSTNode, SourceFile]
_HOLDS_COMMANDS = re.compile(rb"\b(?:click|typer)\b")


class IdleFunctions:
    """The functions that no code names which runs with a training loop.

    Scripts that do not train, as one that prepares data, may use the same helpers. A launcher, or an entry point of a
    package, runs functions that no file of the program names: those that lead to a backward pass, where no other code
    of their file does.
    """

    def __init__(self, flow: Flow) -> None:
        files = _files_beside_training(flow)
        self._flow = flow
        self._files = files
        self._graph = graph = CodeGraph(files, flow)
        functions = [(function, file) for file in files for function in file.nodes(cst.FunctionDef)]
        self._unnamed = unnamed = {id(function) for function, file in functions if _is_called_unnamed(function, file)}
        self._commands = {id(function): file for function, file in functions if _is_command(function, file)}
        self._begins = {id(file.module): file for file in files} | self._commands
        calls = ((call, file) for file in files for call in file.nodes(cst.Call) if called_name(call) == "backward")
        training = graph.leading_to({key_around(*place) for place in calls})
        unnamed |= {id(function) for function, file in functions if is_test(function, file)} & training
        running = graph.reached_from(unnamed.union(id(file.module) for file in files))
        named = graph.named()
        entries = [graph.of(file) & training - named for file in files if not graph.of(file) & running & training]
        self._running = graph.reached_from(running.union(*entries))
        trained = [file for file in files if graph.of(file) & training or _HIDDEN_CALLS.search(file.data)]
        begun = {
            id(file) for file in trained
            if id(file.module) in training and not any(map(asks_for_main, file.nodes(cst.If)))
        }  # fmt: skip
        used = files_used(trained, flow)
        beside = unnamed.union(id(file.module) for file in files if id(file) in used)
        self._beside_training = graph.used_by(beside | training)
        self._others = {
            file for file in flow.files.values()
            if file not in files or not (id(file) in used or begun & files_used([file], flow))
        }  # fmt: skip

    def hold(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a node is a function that never runs, or in one, or in a script that does not train."""
        if file in self._others:
            return True
        functions = (outer for outer in (node, *file.ancestors(node)) if isinstance(outer, cst.FunctionDef))
        return any(id(function) not in self._running for function in functions)

    def leave_by_training(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether code that leads to no backward pass alone runs a node, as another command of a program."""
        key = key_around(node, file)
        return key in self._running and key not in self._beside_training

    def are_apart(self, one: Place, other: Place) -> bool:
        """Return whether no run of the program comes to two places: none of its modules and commands names both.

        A caller outside of the program may come to both where neither does.
        """
        if (
            self.hold(*one)
            or self.hold(*other)
            or any(_HIDDEN_CALLS.search(file.data) for file in self._begins.values())
        ):
            return False
        ways, others = (self._graph.running_to(key_around(*place)) for place in (one, other))
        if ways & others or (self._unnamed - self._commands.keys()) & (ways | others):
            return False
        begun = [[self._begins[key] for key in found & self._begins.keys()] for found in (ways, others)]
        commands = [bool(found & self._commands.keys()) for found in (ways, others)]
        return all(begun) and (
            all(commands) or not any(self._are_imported_together(a, b) for a in begun[0] for b in begun[1])
        )

    def _are_imported_together(self, one: SourceFile, other: SourceFile) -> bool:
        """Return whether one file may run what it does on import where another runs, which may be imported too."""
        loose = [file for file in (one, other) if not any(map(asks_for_main, file.nodes(cst.If)))]
        beside = {id(file) for file in files_beside([one], self._flow)}
        return bool(loose) and id(other) in beside


def idle_functions(flow: Flow) -> IdleFunctions:
    """Return the functions of a program that never run."""
    return flow.once(IdleFunctions)


def is_called(names: Collection[str], flow: Flow) -> bool:
    """Return whether a program calls one of these functions of a library, by their dotted names."""
    return not flow.once(_called).isdisjoint(names)


def _files_beside_training(flow: Flow) -> Collection[SourceFile]:
    """Return the files that may run in one process with a training loop; all where one imports others by made names."""
    training = [file for file in flow.files.values() if may_pass_backward(file.data) or may_step(file.data)]
    found = files_beside(training, flow)
    return flow.files.values() if any(imports_by_name(file.data) for file in found) else found


def _called(flow: Flow) -> frozenset[str]:
    """Return the functions of libraries that code which runs may call, by their dotted names."""
    idle = idle_functions(flow)
    nodes = flow.nodes(cst.Call)
    called = ((call, file, of_kind(flow.values(call.func, file), Kind.EXTERNAL)) for file, call in nodes)
    return frozenset(v.name for call, file, values in called for v in values if not idle.hold(call, file))


def _is_command(function: cst.FunctionDef, file: SourceFile) -> bool:
    """Return whether the command line chooses a function, as ``@cli.command()`` makes one, and no other in its run."""
    is_one_command = b"chain=True" not in file.data and _HOLDS_COMMANDS.search(file.data) is not None
    return is_one_command and "command" in map(last_name, decorators(function))


def _is_called_unnamed(function: cst.FunctionDef, file: SourceFile) -> bool:
    """Return whether a function may be called without its name: it is decorated, or a method that others call."""
    name, owner = function.name.value, next(islice(file.ancestors(function), 1, 2), None)
    is_special = name.startswith("__") and name.endswith("__")
    is_kept = any(dotted(decorator.decorator) not in _SAME for decorator in function.decorators)
    return is_kept or is_special or (isinstance(owner, cst.ClassDef) and bool(owner.bases))
