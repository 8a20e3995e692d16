"""The edits of a program that is converted."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.findings import Severity
from ds_migrate.plain.dataflow.calls import is_called
from ds_migrate.plain.dataflow.files_beside import files_beside
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.decisions.checkpoints import HELPERS
from ds_migrate.plain.decisions.plan import LOOKED_UP, Note, ProgramPlan, StateCall
from ds_migrate.plain.edits.engine_creation import EngineWriter
from ds_migrate.plain.edits.removal import remove_call, remove_statement
from ds_migrate.plain.edits.runtime_names import RuntimeNames
from ds_migrate.plain.ranks.agreement import agree
from ds_migrate.plain.ranks.devices import RankDevices
from ds_migrate.plain.ranks.engine_device import follow_engines
from ds_migrate.plain.ranks.launcher_argument import add_arguments
from ds_migrate.plain.ranks.rank_zero import guard_output, guard_saves
from ds_migrate.plain.ranks.rank_zero_files import write_once
from ds_migrate.plain.ranks.rank_zero_loggers import quiet_loggers
from ds_migrate.plain.ranks.rank_zero_waits import wait_for_saves
from ds_migrate.plain.ranks.start import start_ranks
from ds_migrate.plain.ranks.unordered_sets import numbered_sets
from ds_migrate.plain.ranks.wrappers import Wrapped, Wrappers
from ds_migrate.plain.recognition.facts import Backward, Clip, Step
from ds_migrate.plain.recognition.loaders import can_be_sharded, training_loaders
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import code, dotted, parameters, targets
from ds_migrate.syntax.source import SourceFile

Report = Callable[[Severity, Note], None]


class Editor:
    """Claims the edits of one program, once everything about it is decided."""

    def __init__(self, plan: ProgramPlan, files: list[SourceFile], done: list[SourceFile], report: Report) -> None:
        self.plan = plan
        self.files = files
        self._done = done  # of parts that were converted, or stay as they are
        self.flow = plan.facts.flow
        self._report = report
        self._runtime = RuntimeNames(plan.facts.options.runtime)

    def apply(self) -> None:
        EngineWriter(self.plan, self._runtime, self._converted).write()
        follow_engines(self.plan, self._converted)
        for step, name in self.plan.steps:
            self._step(step, name)
        for backward, name in self.plan.backwards:
            self._backward(backward, name)
        for backward in self.plan.left:
            message = "backward() stays: the engine averages what gradients hold at the step"
            self._converted(Code.PLAIN_BACKWARD, backward.file, backward.node, message)
        for place in self.plan.removed:
            code_ = Code.PLAIN_CLIPPING if isinstance(place, Clip) else Code.PLAIN_ZERO_GRAD
            self._converted(code_, place.file, place.node, "removed: engine.step() does it")
            remove_call(place.file, place.node)
        for call in self.plan.scaler_calls:
            self._converted(Code.PLAIN_PRECISION, call.file, call.node, "removed: engine.step() does it")
            remove_call(call.file, call.node)
        for file, func, name in self.plan.forwards:
            file.replace(func, name)
            self._converted(Code.PLAIN_FORWARD, file, func, f"the forward pass goes through {name}")
        for state in self.plan.state_calls:
            self._state(state)
        for file, node in self.plan.no_syncs:
            file.replace(node, f"{file.imports.module('contextlib')}.nullcontext")
            self._converted(Code.PLAIN_DISTRIBUTED, file, node, "no_sync is removed: the engine averages at the step")
        self._pass_engines()
        self._unwrap()
        self._shard()
        beside = files_beside(self.files, self.flow)
        agree(self.plan, beside, self._runtime, self._converted)
        notes = [*self.plan.notes, *numbered_sets(beside, self.flow)]
        start_ranks(self.plan.facts, self.files, self._done, self._runtime, self._converted)
        touched = [f for f in self.flow.files.values() if f.edits and f not in self.files and f not in self._done]
        self.files = [*self.files, *touched]
        stepping = {step.file for step in self.plan.facts.operations.steps}
        helpers = [f for f in beside if f not in stepping and f not in self._done]
        guard_saves(self.plan, [f for f in helpers if f not in self.files], self._runtime, self._converted)
        program = [*self.files, *(f for f in helpers if f not in self.files)]
        notes += RankDevices(self.flow, not self._starts_alone(), self._converted).free(program)
        add_arguments(self.plan.facts, self.files, self._converted)
        guard_output(self.plan, self.files, self._runtime, self._converted)
        notes += quiet_loggers(self.plan.facts, self.files, self._runtime, self._converted)
        write_once(self.plan.facts, self.files, self._runtime, self._converted)
        if self._starts_alone():
            notes += wait_for_saves(self.plan, program, self._runtime, self._converted)
        self._runtime.write_imports()
        for note in notes:
            self._report(Severity.REVIEW if note.help is not None else Severity.CONVERTED, note)

    def _starts_alone(self) -> bool:
        """Return whether the program was written for one process, and knows nothing of waiting for others."""
        return not is_called(INIT, self.flow)

    @property
    def missing(self) -> list[str]:
        """The helpers that the conversion needs, although the runtime may not be used."""
        return self._runtime.missing

    def _converted(self, code_: Code, file: SourceFile, node: cst.CSTNode, message: str) -> None:
        self._report(Severity.CONVERTED, Note(code_, file, node, message))

    # -- the loop --------------------------------------------------------------------------------------------------

    def _step(self, step: Step, name: str) -> None:
        if name is LOOKED_UP:
            name = f"{self._runtime.name(step.file, 'engine_of')}({code(step.owner)})"
        step.file.replace(step.call, f"{name}.step()")
        self._converted(Code.PLAIN_STEP, step.file, step.node, f"{code(step.call)} becomes {name}.step()")

    def _backward(self, backward: Backward, name: str) -> None:
        options = []
        if not self.plan.is_managed:
            options.append("scale_wrt_gas=False")
        if backward.retains_graph is not None:
            options.insert(0, f"retain_graph={code(backward.retains_graph)}")
        func = cst.parse_expression(f"{name}.backward")
        extra = [
            cst.Arg(
                cst.parse_expression(o.partition("=")[2]),
                keyword=cst.Name(o.partition("=")[0]),
                equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
            )
            for o in options
        ]

        def change(updated: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(updated, cst.Call) and isinstance(updated.func, cst.Attribute)
            loss = updated.func.value
            if backward.scaler is not None:
                assert isinstance(loss, cst.Call)
                loss = loss.args[0].value
            if backward.gradient is not None:  # the gradient of the sum of their product is the gradient that is given
                given = updated.args[0].value
                loss = cst.parse_expression(f"({_factor(loss)} * {_factor(given)}).sum()")
            elif "\n" not in code(loss):
                loss = loss.with_changes(lpar=loss.lpar[1:], rpar=loss.rpar[1:])
            return cst.Call(func, [cst.Arg(loss), *extra])

        backward.file.change(backward.call, change)
        self._converted(
            Code.PLAIN_BACKWARD, backward.file, backward.node, f"backward() becomes {name}.backward(loss)"
        )  # fmt: skip

    def _state(self, state: StateCall) -> None:
        """Have the runtime save or load the whole state of an optimizer of which each rank has a share."""
        helper = HELPERS[state.name]
        func = cst.parse_expression(self._runtime.name(state.file, helper))

        def change(updated: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(updated, cst.Call) and isinstance(updated.func, cst.Attribute)
            return cst.Call(func, [cst.Arg(updated.func.value), *updated.args])

        state.file.change(state.call, change)
        message = "is saved whole" if state.name == "state_dict" else "may be of any number of ranks"
        self._converted(Code.PLAIN_CHECKPOINT, state.file, state.node, f"the optimizer's state {message}")

    # -- functions that take an engine -----------------------------------------------------------------------------

    def _pass_engines(self) -> None:
        names = self.plan.names
        for file, arg, name in names.arguments.values():
            if arg.keyword is not None:
                new = next((p.name for p in names.passed.values() if p.parameter == arg.keyword.value), None)
                if new is not None:
                    file.replace(arg.keyword, new)
            file.replace(arg.value, name)
        for passed in names.passed.values():
            for param in parameters(passed.function):
                if param.name.value == passed.parameter:
                    passed.file.change(param, _renamed(passed.name))
            self._converted(
                Code.PLAIN_ENGINE, passed.file, passed.function,
                f"{passed.function.name.value}() takes the engine in the place of {passed.parameter}",
            )  # fmt: skip
            self._rename_uses(passed.file, passed.function, passed.parameter, passed.name)
        for kept in names.kept.values():
            engine = names.at(kept.value, kept.file)
            kept.file.after(kept.statement, f"{kept.attribute} = {engine}")

    def _rename_uses(self, file: SourceFile, function: cst.FunctionDef, parameter: str, name: str) -> None:
        handled = {id(s.owner) for s, _ in self.plan.steps} | {
            id(arg.value) for _, arg, _ in self.plan.names.arguments.values()
        }
        handled |= {id(p.owner) for p in self.plan.removed if hasattr(p, "owner")}
        for node in file.nodes(cst.Name, below=function.body):
            if node.value != parameter or id(node) in handled:
                continue
            if self.flow.scopes(file).owner(parameter, node) is not function:
                continue
            parent = file.parent(node)
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                continue
            if isinstance(parent, cst.Arg) and parent.keyword is node:
                continue
            is_test = isinstance(parent, (cst.Comparison, cst.If, cst.UnaryOperation, cst.BooleanOperation, cst.IfExp))
            file.replace(node, name if is_test else f"{name}.optimizer")

    # -- wrappers and data -----------------------------------------------------------------------------------------

    def _unwrap(self) -> None:
        wrappers = Wrappers(self.plan.facts)
        for file, call, wrapped in wrappers.states():
            self._keep_keys(file, call, wrapped)
        for file, node in wrappers.inner_modules():
            file.change(node, lambda updated: updated.value)  # type: ignore[attr-defined]
        for file, call, module in wrappers.calls():
            message = f"{code(call.func)} is removed: the engine averages gradients"
            self._converted(Code.PLAIN_DISTRIBUTED, file, call, message)
            around, index = file.parent(call), list(call.args).index(module)
            if isinstance(around, cst.Assign) and [dotted(t) for t in targets(around)] == [dotted(module.value)]:
                remove_statement(file, around)
            else:
                file.change(call, lambda updated, index=index: updated.args[index].value)  # type: ignore[misc]

    def _keep_keys(self, file: SourceFile, call: cst.Call, wrapped: Wrapped) -> None:
        """Write and read the names of weights as the wrapper had them, which puts ``module.`` before each."""
        if call.args:
            pairs = 'key.removeprefix("module."): value for key, value in'

            def strip(updated: cst.CSTNode) -> cst.CSTNode:
                assert isinstance(updated, cst.Arg)
                return updated.with_changes(value=cst.parse_expression(f"{{{pairs} {code(updated.value)}.items()}}"))

            file.change(call.args[0], strip)
            self._converted(Code.PLAIN_CHECKPOINT, file, call, "names of weights are read as the wrapper wrote them")
        elif wrapped is Wrapped.ALWAYS:
            prefix = cst.parse_expression('f(prefix="module.")')
            assert isinstance(prefix, cst.Call)
            file.change(call, lambda updated: updated.with_changes(args=prefix.args))
            self._converted(Code.PLAIN_CHECKPOINT, file, call, "names of weights begin with module., as in the wrapper")
        else:
            message = "names of weights are saved without module., which the original wrote where it wrapped the model"
            advice = "load them into the model without its wrapper"
            self._report(Severity.REVIEW, Note(Code.PLAIN_CHECKPOINT, file, call, message, advice))

    def _shard(self) -> None:
        """Let each rank train on a share of the data."""
        for step, _ in self.plan.steps:
            if not training_loaders([step], self.plan.facts):
                message = "no DataLoader feeds this step: several ranks train on the same data, with one seed"
                advice = "let each rank draw other samples, by a separate seed or a share of the data"
                self._report(Severity.REVIEW, Note(Code.PLAIN_SAMPLER, step.file, step.node, message, advice))
        for file, maker in training_loaders([s for s, _ in self.plan.steps], self.plan.facts):
            if not can_be_sharded(maker, file, self.flow):
                continue
            name = self._runtime.name(file, "shard")
            func = cst.parse_expression(name)
            file.change(maker, lambda updated, func=func: cst.Call(func, [cst.Arg(updated)]))  # type: ignore[misc]
            if self.plan.facts.callers.may_run_often(file, maker):
                message = "this call may make loaders for evaluation too, which then give each rank a share"
                advice = "make the loader that trains by a separate call, or reduce the metrics over ranks"
                self._report(Severity.REVIEW, Note(Code.PLAIN_SAMPLER, file, maker, message, advice))
            self._converted(Code.PLAIN_SAMPLER, file, maker, "each rank trains on a share of the loader's data")


def _factor(node: cst.BaseExpression) -> str:
    """Return an expression as it can be written in a product."""
    bare = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float)) or node.lpar
    return code(node) if bare else f"({code(node)})"


def _renamed(name: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    return lambda updated: updated.with_changes(name=cst.Name(name))
