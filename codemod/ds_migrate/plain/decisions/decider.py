"""The decisions on a program: whether it converts, its engines, and how each operation is converted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from pathlib import Path

import libcst as cst

from ds_migrate.options import Options
from ds_migrate.plain.dataflow.calls import Callers, is_repeated
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import DISTRIBUTED, NO_GRAD
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.plain.decisions.checkpoints import state_calls, undecided_conditions
from ds_migrate.plain.decisions.clipping import decide_clipping
from ds_migrate.plain.decisions.engine_names import EngineNames, UntracedError
from ds_migrate.plain.decisions.engine_options import plan_engine
from ds_migrate.plain.decisions.gradient_paths import GradientPaths, follow_gradients
from ds_migrate.plain.decisions.plan import Note, ProgramPlan, block_path
from ds_migrate.plain.decisions.scaling import decide_scaling
from ds_migrate.plain.decisions.without_runtime import refuse_inexact
from ds_migrate.plain.decisions.zero_stage import choose_stage
from ds_migrate.plain.recognition.facts import Backward, Clip, Operations, Place, Site, Step, ZeroGrad
from ds_migrate.plain.recognition.loaders import micro_batch
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, walk
from ds_migrate.syntax.source import SourceFile

Function = cst.FunctionDef | None


class Decider:
    """Decides on one program. Everything that prevents it is collected in ``plan.refusals``."""

    def __init__(
        self,
        operations: Operations,
        sites: Sequence[Site],
        flow: Flow,
        callers: Callers,
        options: Options,
        single_loop_folders: Collection[Path] = (),
    ) -> None:
        self.operations = operations
        self.sites = sites
        self.flow = flow
        self.callers = callers
        self.options = options
        self.single_loop_folders = single_loop_folders
        self.names = EngineNames(sites, flow, callers)
        self.plan = ProgramPlan()
        self._fed: dict[Backward, list[Step]] = {}
        self._steps_elsewhere = False  # in functions that are called beside the backward passes
        self.moved_clips: dict[Site, tuple[Clip, str]] = {}
        self.keeps_gradients = False  # step() leaves them, and zero_grad() stays where it is

    def decide(self) -> ProgramPlan:
        self._name_steps()
        self._feed()
        self._check_engines_overlap()
        if self.plan.refusals:
            return self.plan
        paths = [self._gradient_paths(site) for site in self.sites]
        self.is_managed = (
            len(self.sites) == 1
            and not self._steps_elsewhere
            and not (paths[0].unused or self.plan.left)
            and all(map(self._is_plain, self._functions()))
        )
        self._decide_no_sync()
        decide_clipping(self)
        decide_scaling(self)
        self._decide_zero_grads([step for path in paths for step in path.added_to])
        self._decide_forwards()
        self._make_engines()
        if not self.options.runtime:
            refuse_inexact(self)
        return self.plan

    # -- what belongs together -------------------------------------------------------------------------------------

    def _functions(self) -> list[tuple[SourceFile, Function]]:
        found: dict[tuple[int, int], tuple[SourceFile, Function]] = {}
        for step in self.operations.steps:
            found[id(step.file), id(step.function)] = step.file, step.function
        return list(found.values())

    def _within(self, places: Sequence[Step], file: SourceFile, function: Function) -> list[Step]:
        return [p for p in places if p.file is file and p.function is function]

    def _name_steps(self) -> None:
        for step in self.operations.steps:
            try:
                self.plan.steps.append((step, self.names.at(step.owner, step.file)))
            except UntracedError as error:
                self.plan.refuse(
                    Code.PLAIN_UNTRACED, error.file, error.node,
                    f"cannot follow the optimizer from where it is made to where it steps: {error}",
                    "hand it on as an argument or as an attribute of self",
                )  # fmt: skip

    def _feed(self) -> None:
        """Determine which engine each backward pass belongs to: the one that steps next."""
        for backward in self.operations.backwards:
            steps = [s for s, _ in self.plan.steps if s.file is backward.file and s.function is backward.function]
            after = [s for s in steps if s.position > backward.position] or self._next_round(backward, steps)
            if after:
                first = min(after, key=lambda s: s.position)
                name = next(name for s, name in self.plan.steps if s is first)
                self._fed[backward] = [first]
                self.plan.backwards.append((backward, name))
            elif steps:
                self.plan.refuse(
                    Code.PLAIN_BACKWARD, backward.file, backward.node, "no step() follows this backward()",
                    "call backward() before the step() that uses its gradients",
                )  # fmt: skip
            else:
                self._feed_from_afar(backward)
        fed = {id(step.function) for steps in self._fed.values() for step in steps}
        for step, _ in self.plan.steps:
            if id(step.function) not in fed and not (self.plan.left or self._is_fed_from_afar(step)):
                self.plan.refuse(
                    Code.PLAIN_BACKWARD, step.file, step.node, "cannot determine which backward() this step() uses",
                    "call backward() and step() in the same function",
                )  # fmt: skip

    def _next_round(self, backward: Backward, steps: Sequence[Step]) -> list[Step]:
        """Return the steps of the next round of a loop, where they are all of one engine."""
        loops = [a for a in backward.file.ancestors(backward.node) if isinstance(a, (cst.For, cst.While))]
        near = [s for s in steps if any(a is loop for a in s.file.ancestors(s.node) for loop in loops)]
        return near if len({name for s, name in self.plan.steps if s in near}) == 1 else []

    def _feed_from_afar(self, backward: Backward) -> None:
        """Handle a backward pass in a function that steps nothing, such as one that attacks inputs.

        Where its step cannot be determined, it stays torch's own, which stage 0 allows: the engine averages what
        gradients hold at the step.
        """
        function = backward.function
        calls = self.callers.of(function) if function is not None else ()
        ahead = self._steps_called_beside(backward) if len(self.sites) == 1 else []
        stepping = {id(s.function) for s in self.operations.steps}
        own = {id(b.function) for b in self.operations.backwards}
        near = [id(file.function(call)) for file, call in calls if id(file.function(call)) in stepping]
        name = None
        if ahead or (len(self.sites) == 1 and near and not any(caller in own for caller in near)):
            name = self.names.visible(function, backward.file, self.sites[0].optimizers)
        if name is None:
            self.plan.left.append(backward)
            return
        self._fed[backward] = ahead or [s for s in self.operations.steps if id(s.function) in stepping]
        self._steps_elsewhere = self._steps_elsewhere or bool(ahead)
        self.plan.backwards.append((backward, name))

    def _steps_called_beside(self, place: Place) -> list[Step]:
        """Return the steps in functions that are called where a place is, as in the ``step()`` of a wrapper."""
        return [s for s in self.operations.steps if self.callers.leading_to(s.function, place.file, place.function)]

    def step_places(self, site: Site) -> list[tuple[Place, Step]]:
        """Return where the optimizer of an engine steps: where functions that do it are called beside backward()."""
        found: list[tuple[Place, Step]] = []
        for step, _ in self.plan.steps:
            if not step.optimizers & site.optimizers:
                continue
            around = {
                id(call): Place(b.file, call)
                for b, steps in (self._fed.items() if self._steps_elsewhere else ())
                for call in (self.callers.leading_to(step.function, b.file, b.function) if step in steps else ())
                if b.function is not step.function
            }
            found += [(place, step) for place in around.values()] or [(step, step)]
        return found

    def _is_fed_from_afar(self, step: Step) -> bool:
        return any(step in steps for steps in self._fed.values())

    def _check_engines_overlap(self) -> None:
        for first, site in combinations(self.sites, 2):
            if _are_apart(first, site) and not _may_share(first, site, self.flow):
                self.plan.parted |= {first, site}
                continue
            for value in site.of:
                other = first if any(self.flow.copies.may_be_one(value, v) for v in first.of) else site
                if other is not site and self._may_be_several(value):
                    maker_file, maker = self.flow.file(value), self.flow.node(value)
                    self.plan.refuse(
                        Code.PLAIN_ENGINE, maker_file, maker,
                        "this one call makes the modules of several optimizers, and which of them each optimizer holds "
                        "is unknown",
                        "make each of them by a separate call: a class for each, or a function that is called once",
                    )  # fmt: skip
                    return
                if other is not site:
                    self.plan.refuse(
                        Code.PLAIN_ENGINE, site.file, site.target,
                        "two optimizers hold parameters of one module, and an engine clears the gradients of its whole "
                        "module",
                        "use one optimizer with several parameter groups, or one module for each optimizer",
                    )  # fmt: skip
                    return

    # -- the shape of a loop ---------------------------------------------------------------------------------------

    def _is_plain(self, where: tuple[SourceFile, Function]) -> bool:
        """Return whether each step of a function follows exactly one backward pass in the same block."""
        file, function = where
        steps = [s for s in self.operations.steps if s.file is file and s.function is function]
        backwards = [b for b in self.operations.backwards if b.file is file and b.function is function]
        events: list[Step | Backward] = sorted([*steps, *backwards], key=lambda e: e.position)
        if len(events) % 2 or any(b.retains_graph is not None for b in backwards):
            return False
        for backward, step in zip(events[::2], events[1::2], strict=True):
            if not isinstance(backward, Backward) or not isinstance(step, Step):
                return False
            if block_path(backward.node, file) != block_path(step.node, file):
                return False
        return bool(events)

    def _decide_no_sync(self) -> None:
        """Leave out that gradients are averaged later, where the engine averages them at the step in any case."""
        files = {id(file): file for file, _ in self._functions()}
        for file in files.values():
            for node in file.nodes(cst.Attribute):
                if node.attr.value != "no_sync":
                    continue
                self.plan.no_syncs.append((file, node))
                if self.is_managed:
                    self.plan.refuse(
                        Code.PLAIN_DISTRIBUTED, file, node,
                        "no_sync() keeps the gradients of a whole step from being averaged",
                        "leave it out where a step follows, or the weights of ranks part",
                    )  # fmt: skip

    # -- zero_grad -------------------------------------------------------------------------------------------------

    def _gradient_paths(self, site: Site) -> GradientPaths:
        steps = [step for step in self.operations.steps if step.optimizers & site.optimizers]
        fed = [b for b, used in self._fed.items() if any(step in steps for step in used)]
        functions = {id(step.function) for step in steps}
        # One loss may be stepped by several optimizers, and only the first one is known as its.
        backwards = fed or [b for b in self._fed if id(b.function) in functions]
        backwards += self.plan.left
        zeros = [zero for zero in self.operations.zero_grads if self._clears(zero, site)]
        return follow_gradients([*steps, *backwards, *zeros], self.flow.files.values(), self.callers)

    def _decide_zero_grads(self, added_to: Sequence[Step]) -> None:
        for step in added_to:
            self.plan.notes.append(
                Note(
                    Code.PLAIN_ZERO_GRAD, step.file, step.node,
                    "no zero_grad() stands between this step() and the next backward(), so gradients add up over "
                    "steps; they still do",
                    "call zero_grad() once for each step(), if that is not meant",
                )
            )  # fmt: skip
        used_again = [*self._gradients_read_late(), *((step.file, step.node) for step in added_to)]
        self.keeps_gradients = bool(used_again)
        if used_again and not self.options.runtime:
            file, node = used_again[0]
            self.plan.refuse(
                Code.PLAIN_ZERO_GRAD, file, node,
                "engine.step() clears the gradients that are used again here, and only match_torch() lets it keep them",
                "read them before step(), and call zero_grad() once for each step(), or leave out --no-runtime",
            )  # fmt: skip
        relevant = [zero for zero in self.operations.zero_grads if any(self._clears(zero, s) for s in self.sites)]
        if not (self.keeps_gradients or self.plan.left):
            self.plan.removed += [zero for zero in relevant if self.is_managed or self._follows_step(zero)]

    def _gradients_read_late(self) -> Iterator[tuple[SourceFile, cst.Attribute]]:
        """Yield where the program reads gradients, or changes them, other than between backward() and step()."""
        for file in self.flow.files.values():
            for node in file.attributes_by_name.get("grad", ()):
                is_function = of_kind(self.flow.values(node.value, file), Kind.EXTERNAL)  # torch.autograd.grad
                if not is_function and not self._is_between(Place(file, node)):
                    yield file, node

    def _clears(self, zero: ZeroGrad, site: Site) -> bool:
        return bool(zero.values & site.optimizers or of_kind(zero.values, Kind.MODULE, Kind.OBJECT) & site.of)

    def _is_between(self, place: Place) -> bool:
        """Return whether a place is behind a backward() and before the step() that uses its gradients."""
        events = [
            e for e in (*self.operations.steps, *self._fed) if e.file is place.file and e.function is place.function
        ]
        before = [e for e in events if e.position < place.position]
        after = [e for e in events if e.position > place.position]
        if not before or not after:
            return False
        last, following = max(before, key=lambda e: e.position), min(after, key=lambda e: e.position)
        return isinstance(last, Backward) and isinstance(following, Step)

    def _follows_step(self, zero: ZeroGrad) -> bool:
        """Return whether the call clears what the step before it, in the same block, has used: the engine does that."""
        if not of_kind(zero.values, Kind.OPTIMIZER):
            return False
        events = [
            e for e in (*self.operations.steps, *self._fed)
            if e.file is zero.file and e.function is zero.function and e.position < zero.position
        ]  # fmt: skip
        last = max(events, key=lambda e: e.position, default=None)
        if not isinstance(last, Step) or block_path(last.node, last.file) != block_path(zero.node, zero.file):
            return False
        return last.optimizers == of_kind(zero.values, Kind.OPTIMIZER)

    # -- forward passes --------------------------------------------------------------------------------------------

    def _decide_forwards(self) -> None:
        """Choose the forward passes that go through the engine: those of the one module, where gradients are made."""
        if len(self.sites) != 1 or len(self.sites[0].modules) != 1 or not self.is_managed:
            return
        site = self.sites[0]
        if site.tensors or self.plan.attachments or any(map(_names_autocast, self.flow.files.values())):
            return  # an engine's forward switches autocast off, and the module is right under autocast
        if any(self._may_be_several(value) for value in site.of):
            return  # cannot determine which of them is called, and the module is right for each
        for file, function in self._functions():
            name = next(n for s, n in self.plan.steps if s.file is file and s.function is function)
            scope: cst.CSTNode = function if function is not None else file.module
            if any(_is_autograd_call(n, file, self.flow) for n in file.nodes(cst.Call, below=scope)):
                return
            for call in file.nodes(cst.Call, below=scope):
                if file.function(call) is not function or dotted(call.func) is None:
                    continue
                values = of_kind(self.flow.values(call.func, file), Kind.MODULE, Kind.OBJECT)
                if values != site.of or self._is_evaluation(call, file):
                    continue
                if (
                    file is site.file
                    and function is site.function
                    and file.position(call) < file.position(site.statement)
                ):
                    continue
                if not self._shares_loop(call, file, function):
                    continue
                self.plan.forwards.append((file, call.func, name))

    def _may_be_several(self, value: Value) -> bool:
        """Return whether the call that makes a module may make several."""
        calls = self.flow.copies.calls(value)
        if not calls:
            return self.callers.may_run_often(self.flow.file(value), self.flow.node(value))
        within = [(self.flow.file(value), self.flow.node(value)), *calls[:-1]]
        return any(is_repeated(file, node) for file, node in within) or self.callers.may_run_often(*calls[-1])

    def _shares_loop(self, call: cst.Call, file: SourceFile, function: Function) -> bool:
        """Return whether a backward pass is in the innermost loop around a call."""
        loop = next((a for a in file.ancestors(call) if isinstance(a, (cst.For, cst.While, cst.FunctionDef))), None)
        return any(
            b.file is file
            and b.function is function
            and (loop is None or any(a is loop for a in file.ancestors(b.node)))
            for b in self._fed
        )

    def _is_evaluation(self, call: cst.Call, file: SourceFile) -> bool:
        for outer in file.ancestors(call):
            if isinstance(outer, cst.FunctionDef):
                return any(self._names_no_grad(d.decorator, file) for d in outer.decorators)
            if isinstance(outer, cst.With) and any(self._names_no_grad(i.item, file) for i in outer.items):
                return True
        return False

    def _names_no_grad(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        func = node.func if isinstance(node, cst.Call) else node
        values = self.flow.values(func, file)
        return any(v.kind is Kind.EXTERNAL and v.name in NO_GRAD - {"torch.set_grad_enabled"} for v in values)

    # -- engines ---------------------------------------------------------------------------------------------------

    def _make_engines(self) -> None:
        for site in self.sites:
            if self._is_remade(site):
                self.plan.refuse(
                    Code.PLAIN_ENGINE, site.file, site.target,
                    "the optimizer is made anew during training, and an engine keeps its own",
                    "make one optimizer, and change its param_groups",
                )  # fmt: skip
            stage, reason, refused = choose_stage(self, site)
            if refused:
                self.plan.refuse(
                    Code.PLAIN_ENGINE, site.file, site.target,
                    f"ZeRO stage {self.options.zero} would change the numbers: {reason}",
                    "leave out --zero",
                )  # fmt: skip
            config = {"train_micro_batch_size_per_gpu": micro_batch(self, site)}
            if not self.is_managed:
                config["managed_gradient_accumulation"] = "False"
            clip = self.moved_clips.get(site)
            config["gradient_clipping"] = clip[1] if clip is not None else "0.0"
            config["zero_optimization"] = f'{{"stage": {stage}}}'
            if stage:
                self.plan.state_calls += state_calls(self, site)
                self.plan.undecided += undecided_conditions(self, site)
                config["zero_allow_untested_optimizer"] = "True"
            self.plan.engines.append(plan_engine(self, site, config, stage))
            message = f"deepspeed.initialize makes {self.names.at_site[site]}, ZeRO stage {stage}"
            message += f": {reason}" if reason else ""
            self.plan.notes.append(Note(Code.PLAIN_ENGINE, site.file, site.target, message))
            if not self._is_of_torch(site):
                message = (
                    "the optimizer is none of torch's: with several ranks its steps are the same on each only if they "
                    "depend on gradients and parameters alone"
                )
                advice = "check what its step() reads, or compare the ranks with ds-verify --plain"
                self.plan.notes.append(Note(Code.PLAIN_ENGINE, site.file, site.target, message, advice))

    def broadcasts_buffers(self, site: Site) -> bool:
        """Return whether DistributedDataParallel gave all ranks the buffers of rank 0."""
        for file in self.flow.files.values():
            for call in file.nodes(cst.Call):
                if not self.flow.is_call_of(call, file, DISTRIBUTED) or not self.flow.values(call, file) & site.of:
                    continue
                kept = argument(call, None, "broadcast_buffers")
                if kept is None or dotted(kept.value) != "False":
                    return True
        return False

    def _is_of_torch(self, site: Site) -> bool:
        values = [v for file, maker in site.makers for v in self.flow.values(maker.func, file)]
        return all(v.kind is Kind.EXTERNAL and v.name.startswith("torch.optim.") for v in values)

    def _makers_of(self, value: Value) -> list[cst.CSTNode]:
        """Return the call that makes a value, and those of the functions that return it."""
        return [self.flow.node(value), *(call for _, call in self.flow.copies.calls(value))]

    def _is_remade(self, site: Site) -> bool:
        """Return whether the optimizer is made in a loop that keeps its module."""
        loops = [a for a in site.file.ancestors(site.statement) if isinstance(a, (cst.For, cst.While))]
        own = [loop for loop in loops if site.file.function(loop) is site.function]
        for loop in own:
            below = {id(n) for n in walk(loop)}
            if not all(any(id(node) in below for node in self._makers_of(v)) for v in site.of):
                return True
        return False


def _are_apart(one: Site, other: Site) -> bool:
    """Return whether two optimizers hold different parts of one module, none inside of another."""
    paths = [[(part.key, *part.name.split(".")) for part in site.parts.values()] for site in (one, other)]
    return all(paths) and not any(
        "[" in "".join(map(str, (*a, *b))) or a[: len(b)] == b[: len(a)] for a in paths[0] for b in paths[1]
    )


def _may_share(one: Site, other: Site, flow: Flow) -> bool:
    """Return whether parts of a module may have parameters in common: one is given to something else, or tied."""
    names = {name for site in (one, other) for part in site.parts.values() for name in part.name.split(".")}
    return any(
        (isinstance(file.parent(node), cst.AssignTarget) and node.attr.value in ("weight", "bias"))
        or (isinstance(file.parent(node), (cst.Arg, cst.Assign, cst.Element)) and node.attr.value in names)
        for file in flow.files.values()
        for node in file.nodes(cst.Attribute)
    )


def _is_autograd_call(node: cst.Call, file: SourceFile, flow: Flow) -> bool:
    return any(v.kind is Kind.EXTERNAL and v.name == "torch.autograd.grad" for v in flow.values(node.func, file))


def _names_autocast(file: SourceFile) -> bool:
    return any("autocast" in node.value for node in file.nodes(cst.Name))
