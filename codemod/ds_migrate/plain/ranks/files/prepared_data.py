"""Data that a program fetches or makes where it is not there yet: rank 0 does so first, and the others find it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_conditions import FIRST, RankConditions
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.files.looks import is_look
from ds_migrate.plain.ranks.rank_guards import GUARD, is_guarded
from ds_migrate.plain.ranks.rank_zero.commands import RUNS
from ds_migrate.plain.ranks.rank_zero.output_code import OutputCode
from ds_migrate.plain.recognition.lone_scripts import may_run_alone, runs_alone
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, code, dotted, last_statement, parameter, parameters
from ds_migrate.syntax.source import SourceFile

# They write files, each time they are called.
_FETCHES = (
    "urllib.request.urlretrieve", "six.moves.urllib.request.urlretrieve", "wget.download", "gdown.download",
    "gdown.download_folder", "gdown.extractall", "shutil.unpack_archive", "torch.hub.download_url_to_file",
    "torchvision.datasets.utils.download_url", "torchvision.datasets.utils.download_and_extract_archive",
    "torchvision.datasets.utils.extract_archive",
)  # fmt: skip
_REQUESTS = ("urllib.request.urlopen", "requests.get")
# What is read by them is written to a file, where a program looks for one first.
_SOURCES = (*_REQUESTS, "tarfile.open", "zipfile.ZipFile", "pickle.dump", "json.dump")
# What makes an optimizer or an engine, whose loop may be converted by itself, has all ranks meet.
_COMMON = ("torch.optim.", "deepspeed.", "torch.distributed.")
_DEPTH = 4  # of functions that call each other
# A statement that makes data, and what runs on no other rank where the first one has made it, in the file looked at.
Preparation = tuple[SourceFile, cst.BaseStatement, cst.CSTNode | None]


class PreparedData:
    """The statements of a program that make data which is not there."""

    def __init__(self, plan: ProgramPlan, files: Sequence[SourceFile], runtime: RuntimeNames) -> None:
        self._plan = plan
        self._flow = plan.facts.flow
        self._files = files
        self._runtime = runtime
        self._conditions = RankConditions(self._flow, finds_files=False)
        self._code = OutputCode(plan)

    def let_rank_0_begin(self, converted: Converted) -> Iterator[Note]:
        """Have rank 0 run these statements before the others, in a program that was written for one process.

        Yield a note for those where the others cannot wait for it, or may not be there.
        """
        files = [file for file in self._files if may_run_alone(file, self._plan.facts)]
        for file in files if self._plan.facts.options.runtime else ():
            noted, first = set[int](), set[int]()
            for at, statement, made in [*self._left_early(file), *self._looked_for(file), *self._fetched(file)]:
                if (
                    id(statement) in first
                    or is_guarded(statement, at)
                    or any(id(outer) in noted for outer in at.ancestors(statement))
                ):
                    continue
                if not self._can_wait(at, statement):
                    if self._is_reached(statement, at) and not self._trains(statement, at):
                        message = "several ranks may fetch or make this data at the same time"
                        advice = "have rank 0 do so alone, before the others come here"
                        noted.add(id(made))
                        yield Note(Code.PLAIN_RANK_ZERO, at, statement, message, advice)
                    continue
                first.add(id(statement))
                if not at.edits.once(statement, FIRST):
                    continue
                if made is not None:
                    file.edits.once(made, GUARD)
                self._put_first(at, statement)
                message = "rank 0 fetches or makes this data before the other ranks look for it"
                converted(Code.PLAIN_RANK_ZERO, at, statement, message)

    def _can_wait(self, file: SourceFile, statement: cst.BaseStatement) -> bool:
        """Return whether all ranks come to a statement, and none of them waits for another one in it."""
        is_left = (
            not runs_alone(file, self._flow)
            or bool(file.nodes(cst.Yield, cst.Await, below=statement))
            or self._meets(statement, file)
        )
        return not is_left and self._conditions.reach_all(statement, file)

    def _trains(self, statement: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a statement calls functions that train, on all ranks: what it makes are weights."""
        callers, steps = self._plan.facts.flow.callers, self._plan.facts.operations.steps
        called = (v for call in file.nodes(cst.Call, below=statement) for v in self._called(call, file))
        return any(callers.reaches(value.key, step.function) for value in called for step in steps)

    def _is_reached(self, node: cst.CSTNode, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether calls of the program lead to a node."""
        function = file.function(node)
        calls = self._plan.facts.flow.callers.of(function) if function is not None and depth else ()
        return function is None or any(self._is_reached(call, at, depth - 1) for at, call in calls)

    def _looked_for(self, file: SourceFile) -> Iterator[Preparation]:
        """Yield each ``if not exists(path)`` under which data is made, with the branch that makes it."""
        for node in file.nodes(cst.If):
            if not self._asks_for_files(node.test, file) or isinstance(file.parent(node), cst.If):
                continue
            branches = [node.body, *([node.orelse.body] if isinstance(node.orelse, cst.Else) else [])]
            makers = [branch for branch in branches if self._makes_data(branch, file)]
            is_output = self._code.is_output(node, file)
            is_touched = any(map(file.edits.is_touched, node.children))  # by more than a line before it
            if len(makers) == 1 and not is_output and not is_touched:
                yield file, node, makers[0]

    def _asks_for_files(self, test: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether a condition is made of what files there are, and of what is the same on all ranks."""
        if isinstance(test, cst.UnaryOperation):
            return self._asks_for_files(test.expression, file, depth)
        if isinstance(test, cst.BooleanOperation):
            sides = (test.left, test.right)
            asks = [self._asks_for_files(side, file, depth) for side in sides]
            return any(asks) and all(a or self._conditions.is_shared(s, file) for a, s in zip(asks, sides, strict=True))
        if is_look(test, file) or not isinstance(test, cst.Call) or not depth:
            return is_look(test, file)
        found = (self._flow.node_of(value.key) for value in self._called(test, file))
        answers = [(value, one[0]) for one in found if one is not None for value in one[0].returned(one[1])]
        return bool(answers) and all(v is not None and self._asks_for_files(v, at, depth - 1) for v, at in answers)

    def _makes_data(self, branch: cst.CSTNode, file: SourceFile) -> bool:
        return any(
            self._flow.is_call_of(call, at, (*_FETCHES, *_SOURCES, *RUNS))
            or self._code.calls.is_artifact(call, at)
            or self._flow.is_call_of(call, at, ("torch.save",))
            for at, call in self._calls(branch, file)
        )

    def _meets(self, statement: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether ranks may do something together in the functions that a statement calls."""
        own = file.function(statement)
        calls = list(self._calls(statement, file))
        if any(value.name.startswith(_COMMON) for at, call in calls for value in self._flow.values(call.func, at)):
            return True  # maybe of another loop
        reached = [at.function(call) for at, call in calls]
        facts = self._plan.facts
        common = {*(id(s.function) for s in facts.operations.steps), *(id(s.function) for s in facts.all_sites)}
        return any(
            function is not None and function is not own and (id(function) in common or self._is_touched(function))
            for function in reached
        )

    def _is_touched(self, function: cst.FunctionDef) -> bool:
        return any(file.edits.is_touched(function) for file in self._flow.files.values())

    def _calls(self, node: cst.CSTNode, file: SourceFile, depth: int = _DEPTH) -> Iterator[tuple[SourceFile, cst.Call]]:
        """Yield the calls below a node, and those in the functions of the program that they call."""
        for call in file.nodes(cst.Call, below=node):
            yield file, call
            for value in self._called(call, file) if depth else ():
                found = self._flow.node_of(value.key)
                if found is not None:
                    yield from self._calls(found[1], found[0], depth - 1)

    def _called(self, call: cst.Call, file: SourceFile) -> Iterator[Value]:
        """Yield the functions of the program that a call runs: of a class, the one that sets up an instance."""
        callees = self._flow.values(call.func, file)
        yield from of_kind(callees, Kind.FUNCTION, Kind.METHOD)
        for value in of_kind(callees, Kind.CLASS):
            setup = self._flow.classes.method(value.key, "__init__")
            if setup is not None:
                yield setup

    def _left_early(self, file: SourceFile) -> Iterator[Preparation]:
        """Yield the calls of each function that makes data, but returns at once where it is there already.

        Where some of several calls cannot wait, that is the last of them alone, for a note.
        """
        for function in file.nodes(cst.FunctionDef):
            calls = self._plan.facts.flow.callers.of(function)
            places = [(at, at.statement(call)) for at, call in calls if at in self._files]
            if not places or len(places) < len(calls) or file.edits.is_touched(function):
                continue
            are_lines = all(isinstance(statement, cst.SimpleStatementLine) for _, statement in places)
            is_left = any(
                isinstance(node, cst.If)
                and self._asks_for_files(node.test, file)
                and isinstance(last_statement(node.body), cst.Return)
                for node in function.body.body
            )
            if is_left and are_lines and self._makes_data(function.body, file):
                waiting = [place for place in places if not self._can_wait(*place)]
                for at, statement in waiting[-1:] or places:
                    yield at, statement, function.body

    def _fetched(self, file: SourceFile) -> Iterator[Preparation]:
        """Yield the statements that fetch data whether it is there or not, or look for it themselves."""
        for call in file.nodes(cst.Call):
            is_statement = isinstance(file.parent(call), cst.Expr)
            unpacks = is_statement and isinstance(call.func, cst.Attribute) and call.func.attr.value == "extractall"
            fetches = is_statement and self._flow.is_call_of(call, file, _FETCHES)
            is_whole = is_statement or isinstance(file.parent(call), cst.Assign)  # a function may return the path
            if unpacks or fetches or self._downloads(call, file) or (is_whole and self._saves_a_page(call, file)):
                statement = file.statement(call)
                if isinstance(statement, cst.SimpleStatementLine):
                    yield file, _with_loops(statement, file), None

    def _saves_a_page(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call runs a function of the program that writes what it requests to a file."""
        found = [self._flow.node_of(value.key) for value in self._called(call, file)]
        return any(
            one is not None
            and any(self._flow.is_call_of(inner, one[0], _REQUESTS) for inner in one[0].nodes(cst.Call, below=one[1]))
            and any(_opens_to_write(inner) for inner in one[0].nodes(cst.Call, below=one[1]))
            for one in found
        )

    def _downloads(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call makes a data set of a library that fetches what is not there: ``download=True``."""
        given = argument(call, None, "download")
        return given is not None and self._is_of_library(call.func, file) and self._may_be_true(given.value, file)

    def _is_of_library(self, function: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a library's ``__init__()`` gets ``download``: also of a class of the program that has none."""
        values = self._flow.values(function, file)
        if not values:
            return code(function).startswith("super(")
        for value in of_kind(values, Kind.CLASS):
            setup = self._flow.classes.method(value.key, "__init__")
            own = self._flow.node(setup) if setup is not None else None
            if not isinstance(own, cst.FunctionDef) or parameter(own, "download") is None:
                return True
        return bool(of_kind(values, Kind.EXTERNAL))

    def _may_be_true(self, value: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an argument is True, or a parameter that a call or its default has True."""
        if dotted(value) in ("True", "False", "None") or not isinstance(value, cst.Name):
            return dotted(value) not in ("False", "None")
        function = file.function(value)
        found = [p for p in parameters(function) if p.name.value == value.value] if function is not None else []
        if function is None or not found:
            return True
        calls = self._plan.facts.flow.callers.of(function)
        given = [(self._flow.given(call, function, value.value, at), at) for at, call in calls]
        return any(
            dotted(found[0].default) == "True" if arg is None else dotted(arg.value) not in ("False", "None")
            for arg, _ in given
        )

    def _put_first(self, file: SourceFile, statement: cst.BaseStatement) -> None:
        item = cst.WithItem(cst.Call(cst.Name(self._runtime.name(file, "rank_0_first"))))

        def change(updated: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(updated, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
            body = cst.IndentedBlock([updated.with_changes(leading_lines=[])])
            return cst.With([item], body, leading_lines=updated.leading_lines)

        file.change(statement, change)


def _with_loops(statement: cst.BaseStatement, file: SourceFile) -> cst.BaseStatement:
    """Return a statement with the loops and blocks of ``with`` around it, which are run through as a whole."""
    for outer in file.ancestors(statement):
        if isinstance(outer, (cst.For, cst.With)):
            statement = outer
        elif not isinstance(outer, cst.IndentedBlock):
            break
    return statement


def _opens_to_write(call: cst.Call) -> bool:
    """Return whether a call opens a file to write it, or writes one as a whole."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("write_bytes", "write_text"):
        return True
    mode = argument(call, 1, "mode")
    is_written = mode is not None and isinstance(mode.value, cst.SimpleString) and mode.value.raw_value[:1] in "wx"
    return is_written and dotted(call.func) == "open"
