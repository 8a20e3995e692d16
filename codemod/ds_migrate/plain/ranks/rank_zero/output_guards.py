"""Output that only rank 0 makes in a converted script: it prints, plots and saves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.calls.compiled_functions import is_compiled
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.files.file_readers import Write
from ds_migrate.plain.ranks.files.opened_files import opens_to_write
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.ranks.rank_guards import (
    GUARD,
    guard_function,
    guard_hoisted,
    guard_run,
    is_guarded,
    narrow,
)  # fmt: skip
from ds_migrate.plain.ranks.rank_zero.inner_writes import InnerWrites
from ds_migrate.plain.ranks.rank_zero.output_calls import calls_in
from ds_migrate.plain.ranks.rank_zero.output_code import OutputCode
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import body_of, docstring, dotted
from ds_migrate.syntax.source import SourceFile

IsOutput = Callable[[cst.CSTNode], bool]
_CELL = re.compile(r"# ?(%%|In ?\[|COMMAND -)")  # of jupytext, nbconvert and Databricks


class OutputGuards:
    """The guards of a program: neighbouring statements share one, and so does a function that only outputs."""

    def __init__(self, plan: ProgramPlan, runtime: RuntimeNames, converted: Converted) -> None:
        self._facts = plan.facts
        self._flow = plan.facts.flow
        self._runtime = runtime
        self._converted = converted
        self._code = OutputCode(plan)
        self._calls = self._code.calls
        self._inner_writes = InnerWrites(self._flow, self._calls, runtime, converted)
        self._steps = plan.facts.operations.steps
        self._new_names: dict[tuple[SourceFile, str], list[str]] = {}
        self._files: list[SourceFile] = []
        self._replaces_print = any(
            (dotted(target.target) or "").endswith(".print") and not is_idle(target, file, plan.facts)
            for file in self._flow.files.values() if b".print" in file.data
            for target in file.nodes(cst.AssignTarget)
        )  # fmt: skip

    def guard_saves(self, files: Iterable[SourceFile]) -> None:
        """Let rank 0 alone save, in files of which nothing else changes."""
        for file in files:
            if b"torch.save" in file.data or b"import save" in file.data:
                self._guard_blocks(file, saves_only=True)

    def guard_output(self, files: Iterable[SourceFile], helpers: Iterable[SourceFile]) -> None:
        """Let rank 0 alone print, plot and save.

        Args:
            files: those with the loop, or with edits for it.
            helpers: others that the program uses: what it never calls stays there as it is.
        """
        self._files = [*files, *helpers]
        for file in self._files:
            for function in file.nodes(cst.FunctionDef):
                if self._stays(function, file):
                    continue
                if self._is_to_leave(function, file) and file.edits.once(function, GUARD):
                    guard_function(file, function, self._runtime)
                    message = "only rank 0 does what this function prints or writes"
                    self._converted(Code.PLAIN_RANK_ZERO, file, function, message)
            self._guard_blocks(file)

    def written(self) -> Iterator[Write]:
        """Yield the calls that write files, which rank 0 alone does."""
        for file in self._files:
            for call in file.nodes(cst.Call):
                path = self._calls.path_written(call, file)
                if path is not None and (is_guarded(call, file) or self._calls.opens_for_all(call, file)):
                    yield file, call, path

    def left_as_it_is(self, files: Iterable[SourceFile]) -> Iterator[Note]:
        """Yield a note where files that may not change print or write on all ranks."""
        names = sorted(
            file.path.name for file in files if any(self._is_left(call, file) for call in file.nodes(cst.Call))
        )
        for step in self._steps[:1] if names else ():
            message = f"every rank prints or writes in {', '.join(names)}"
            advice = "name these files too; where other loops use them, put what should run once under is_main_rank()"
            yield Note(Code.PLAIN_RANK_ZERO, step.file, step.node, message, advice)

    def _is_left(self, call: cst.Call, file: SourceFile) -> bool:
        is_output = (
            opens_to_write(call, file, self._facts.flow)
            or self._calls.is_print(call, file)
            or self._calls.is_artifact(call, file)
        )
        return is_output and not is_guarded(call, file) and not is_idle(call, file, self._facts)

    def _is_to_leave(self, function: cst.FunctionDef, file: SourceFile) -> bool:
        """Return whether other ranks return at once from a function: all its statements, several, only output."""
        statements = [node for node in body_of(function) if node is not docstring(function)]
        if len(statements) < 2 or is_guarded(function.body, file) or not self._code.only_outputs(function, file):
            return False
        if self._replaces_print and any(self._is_print(call) for call in file.nodes(cst.Call, below=function)):
            return False
        calls = self._flow.callers.of(function)
        return not calls or not all(is_guarded(call, caller) for caller, call in calls)

    # -- statements ------------------------------------------------------------------------------------------------

    def _guard_blocks(self, file: SourceFile, saves_only: bool = False) -> None:
        def is_output(statement: cst.CSTNode) -> bool:
            calls = calls_in(statement, file)
            if self._replaces_print and any(map(self._is_print, calls)):
                return False
            if saves_only and not all(self._calls.saves(call, file) for call in calls):
                return False
            return self._code.is_output(statement, file)

        for call in file.nodes(cst.Call):
            self._guard_inside(call, file, saves_only)
        for block in file.nodes(cst.Module, cst.IndentedBlock):
            if is_guarded(block, file) or self._stays(block, file):
                continue
            run: list[cst.BaseStatement] = []
            for statement in (*block.body, None):
                is_free = statement is not None and not is_guarded(statement, file)
                if statement is not None and is_free and is_output(statement):
                    run.append(statement)
                    continue
                for part in _parts(run, statement):
                    self._guard(file, part)
                run = []
                if not is_free:
                    continue
                if isinstance(statement, cst.If) and self._holds_output_alone(statement, file, is_output):
                    self._guard(file, [statement])
                elif isinstance(statement, cst.SimpleStatementLine):
                    self._guard_computed(file, statement, saves_only)

    def _verb(self, call: cst.Call, file: SourceFile) -> str:
        return "prints" if self._calls.is_print(call, file) else "saves"

    def _holds_output_alone(self, node: cst.If, file: SourceFile, is_output: IsOutput) -> bool:
        """Return whether an ``if`` without another branch leads to output alone, whatever its condition does."""
        outer = file.parent(node)
        is_branch = isinstance(outer, cst.If) and outer.orelse is node
        if node.orelse is not None or is_branch or is_guarded(node.body, file):
            return False
        body = node.body
        return all(map(is_output, body.body)) if isinstance(body, cst.IndentedBlock) else is_output(body)

    def _guard(self, file: SourceFile, run: list[cst.BaseStatement]) -> None:
        """Put statements that stand behind each other under one condition."""
        if not run:
            return
        for statement in run:
            file.edits.once(statement, GUARD)
        first = run[0]
        if len(run) == 1 and isinstance(first, cst.If) and first.orelse is None:
            narrow(file, first, self._runtime)
        else:
            guard_run(file, run, self._runtime)
        for statement in run:
            for call in calls_in(statement, file):
                self._converted(Code.PLAIN_RANK_ZERO, file, call, f"only rank 0 {self._verb(call, file)}")

    def _guard_inside(self, call: cst.Call, file: SourceFile, saves_only: bool) -> None:
        """Have all ranks give their shares of what rank 0 saves, and evaluate an expression that saves or prints."""
        is_save = self._calls.saves(call, file)
        is_print = isinstance(file.parent(call), cst.Lambda) and self._calls.is_print(call, file)
        is_output = is_save or (not saves_only and (is_print or self._calls.is_artifact(call, file)))
        if not is_output or is_guarded(call, file):
            return
        if is_save and self._calls.gathers_state(call, file):
            file.replace(call.func, self._runtime.name(file, "save_on_main_rank"))
            message = "only rank 0 saves what all ranks have a share of"
            self._converted(Code.PLAIN_RANK_ZERO, file, call, message)
        elif not isinstance(file.parent(call), cst.Expr) and not self._stays(call, file):
            self._inner_writes.guard(call, file, self._verb(call, file))

    def _guard_computed(self, file: SourceFile, line: cst.SimpleStatementLine, saves_only: bool) -> None:
        """Let all ranks compute what rank 0 prints or saves, where that takes more than looking at it."""
        calls = calls_in(line, file)
        if len(calls) != 1:
            return
        (call,) = calls
        computed = self._computed(call, file, saves_only)
        if computed is None or not file.edits.once(line, GUARD):
            return
        names = self._names_of(file, "text" if self._calls.is_print(call, file) else "output", len(computed))
        texts = self._texts(computed, call, file)
        guard_hoisted(file, line, dict(zip(computed, names, strict=True)), texts, self._runtime)
        self._converted(
            Code.PLAIN_RANK_ZERO, file, call, f"only rank 0 {self._verb(call, file)} what all ranks compute"
        )

    def _computed(self, call: cst.Call, file: SourceFile, saves_only: bool) -> list[int] | None:
        """Return the arguments, by index, that all ranks compute for a call that outputs; None where it cannot be."""
        is_print = self._calls.is_print(call, file)
        is_save = self._calls.saves(call, file)
        if not is_save and (saves_only or not (is_print or self._calls.is_artifact(call, file))):
            return None
        if (is_print and self._replaces_print) or self._calls.gathers_state(call, file):
            return None
        computed = [
            index for index, arg in enumerate(call.args)
            if arg.star or not self._calls.skippable.is_skippable(arg.value, file)
        ]  # fmt: skip
        func = call.func.value if isinstance(call.func, cst.Attribute) else None
        is_known = func is None or self._calls.skippable.is_skippable(func, file)
        return computed if is_known and not any(call.args[index].star for index in computed) else None

    def _texts(self, computed: Iterable[int], call: cst.Call, file: SourceFile) -> list[int]:
        """Return the arguments of ``print()`` that are objects with a text of their class."""
        given = [(index, call.args[index].value) for index in computed if self._calls.is_print(call, file)]
        return [index for index, value in given if self._calls.skippable.has_own_text(value, file)]

    def _names_of(self, file: SourceFile, word: str, count: int) -> list[str]:
        """Return new names for values that only the next line uses, so that other lines have the same ones."""
        names = self._new_names.setdefault((file, word), [])
        while len(names) < count:
            names.append(file.names.fresh(word, f"{word}_"))
        return names[:count]

    def _stays(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a node gets no guard: it never runs with the loop, or TorchScript compiles it."""
        return is_idle(node, file, self._facts) or is_compiled(node, file, self._flow)

    def _is_print(self, call: cst.Call) -> bool:
        return dotted(call.func) == "print"


def _parts(run: list[cst.BaseStatement], behind: cst.BaseStatement | None) -> list[list[cst.BaseStatement]]:
    """Return statements that may share a guard, without those of a section that continues behind them.

    The cells of a notebook share none: what begins one would be indented, and begin no cell any more.
    """
    cell = next((number for number, one in enumerate(run) if number and _begins_cell(one)), None)
    if cell is not None:
        return [run[:cell], *_parts(run[cell:], behind)]
    begins = [number for number, one in enumerate(run) if number and _has_heading(one)]
    is_of_section = behind is not None and all(line.comment is not None for line in _lines_above(behind))
    return [run[: begins[-1]], run[begins[-1] :]] if begins and is_of_section else [run]


def _has_heading(statement: cst.BaseStatement) -> bool:
    """Return whether a comment stands above a statement, behind a blank line."""
    lines = _lines_above(statement)
    blank = next((number for number, line in enumerate(lines) if line.comment is None), len(lines))
    return any(line.comment is not None for line in lines[blank:])


def _begins_cell(statement: cst.BaseStatement) -> bool:
    return any(line.comment is not None and _CELL.match(line.comment.value) for line in _lines_above(statement))


def _lines_above(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    found = getattr(statement, "leading_lines", ())
    return found if isinstance(found, Sequence) else ()
