"""Reasons not to convert a program, by the names in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import is_test_file
from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.calls.spawning import PROCESSES, SPAWN, is_spawn, started, started_arguments
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.facts import Operations, Refusal, Step
from ds_migrate.plain.recognition.libraries.foreign_engines import foreign_engines
from ds_migrate.plain.recognition.several_devices import several_devices
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, dotted, has_star, parameter, receiver
from ds_migrate.syntax.source import SourceFile

_STARTERS = tuple(name.rpartition(".")[2].encode() for name in sorted(SPAWN | PROCESSES))


_POOLS = frozenset({"Pool", "ThreadPool", "ProcessPoolExecutor", "ThreadPoolExecutor"})
_OF_POOLS = frozenset(
    {"apply", "apply_async", "map", "map_async", "imap", "imap_unordered", "starmap", "starmap_async", "submit"}
)


def find_refusals(files: Sequence[SourceFile], operations: Operations, flow: Flow) -> Iterator[Refusal]:
    """Yield why the files with these operations stay as they are."""
    numbered = several_devices(files)
    if numbered is not None:
        yield numbered
    yield from _hidden_packages(operations.steps)
    for file in files:
        yield from foreign_engines(file)
        yield from _sparse(file, flow)
    for step in operations.steps:
        for value in flow.in_order(step.optimizers):
            maker_file, maker = flow.file(value), flow.node(value)
            if value.name.rpartition(".")[2] == "SparseAdam":
                yield _sparse_gradients(maker_file, maker)
    yield from _tested_steps(operations.steps, flow)
    yield from _replaced_steps(operations.steps, flow)
    for file in flow.files.values():
        if any(name in file.data for name in _STARTERS):
            for call in file.nodes(cst.Call):
                yield from _started(call, file, files, operations, flow)
        for call in file.nodes(cst.Call) if b"Pool" in file.data else ():
            yield from _pooled(call, file, operations, flow)


def _tested_steps(steps: Sequence[Step], flow: Flow) -> Iterator[Refusal]:
    """Yield the steps of a library whose optimizers only its tests make: what else calls it would find no engine."""
    for step in steps:
        makers = [flow.file(value) for value in step.optimizers]
        if makers and not _is_of_tests(step.file) and all(map(_is_of_tests, makers)):
            yield Refusal(
                Code.PLAIN_UNTRACED, step.file, step.node,
                "the optimizer of this step comes from outside of these files, as only their tests make one",
                "name the file that gives it too, so that one run converts both",
            )  # fmt: skip


def _is_of_tests(file: SourceFile) -> bool:
    return is_test_file(file) or not {"test", "tests"}.isdisjoint(file.path.parts)


def _replaced_steps(steps: Sequence[Step], flow: Flow) -> Iterator[Refusal]:
    """Yield the lines that give an optimizer another ``step()`` when the program runs, as for differential privacy."""
    optimizers = frozenset(value for step in steps for value in step.optimizers)
    for file, target in flow.attributes("step"):
        if isinstance(file.parent(target), cst.AssignTarget) and flow.values(target.value, file) & optimizers:
            yield Refusal(
                Code.PLAIN_GRADIENTS, file, target,
                "step() of an optimizer is replaced here, and may change gradients that ranks have averaged",
                "call what it does in the loop, before step()",
            )  # fmt: skip
            return


def _hidden_packages(steps: Sequence[Step]) -> Iterator[Refusal]:
    """Yield the modules beside a loop that Python would find in the place of what its conversion imports.

    In a package no script looks for modules beside itself.
    """
    for step in steps[:1]:
        folder = step.file.path.parent
        for name in ("deepspeed", "trial_runtime") if not (folder / "__init__.py").is_file() else ():
            if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
                yield Refusal(
                    Code.PLAIN_ENGINE, step.file, step.node,
                    f"a module {name} beside this file hides the package of that name, which the conversion imports",
                    "give the module another name",
                )  # fmt: skip


def _sparse(file: SourceFile, flow: Flow) -> Iterator[Refusal]:
    for arg in file.nodes(cst.Arg):
        if arg.keyword is None or arg.keyword.value != "sparse" or not _may_be_true(arg.value, file, flow):
            continue
        call = file.parent(arg)
        name = dotted(call.func) if isinstance(call, cst.Call) else None
        if name is not None and name.rpartition(".")[2].startswith("Embedding"):
            yield _sparse_gradients(file, arg)


def _sparse_gradients(file: SourceFile, node: cst.CSTNode) -> Refusal:
    return Refusal(
        Code.PLAIN_GRADIENTS, file, node, "sparse gradients have no counterpart in DeepSpeed 0.19",
        "use dense gradients: sparse=False, and an optimizer for them",
    )  # fmt: skip


def _may_be_true(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether an argument is True, or a parameter that is True by default or in a call."""
    if not isinstance(node, cst.Name) or node.value in ("True", "False", "None"):
        return dotted(node) == "True"
    scope = flow.scopes(file).owner(node.value, node)
    if not isinstance(scope, cst.FunctionDef):
        return any(dotted(value) == "True" for value in file.values_of({node.value}, scope))
    param = parameter(scope, node.value)
    default = param.default if param is not None else None
    given = [flow.given(call, scope, node.value, caller) for caller, call in flow.callers.of(scope)]
    return "True" in ([dotted(default if arg is None else arg.value) for arg in given] or [dotted(default)])


def _pooled(call: cst.Call, file: SourceFile, operations: Operations, flow: Flow) -> Iterator[Refusal]:
    """Yield why what a pool runs cannot be ranks: each trains a model by itself, and threads in another order."""
    pool = receiver(call, *_OF_POOLS)
    if pool is None or not call.args:
        return
    makers = (flow.node(value) for value in of_kind(flow.values(pool, file), Kind.OBJECT))
    if not any(isinstance(maker, cst.Call) and called_name(maker) in _POOLS for maker in makers):
        return
    workers = of_kind(flow.values(call.args[0].value, file), Kind.FUNCTION, Kind.METHOD)
    if any(flow.callers.reaches(worker.key, step.function) for worker in workers for step in operations.steps):
        yield Refusal(
            Code.PLAIN_DISTRIBUTED, file, call,
            "a pool runs this training, each a model by itself, where ranks must train all of them in one order",
            "call the function in this process, for one model after another",
        )  # fmt: skip


def _started(
    call: cst.Call, file: SourceFile, files: Sequence[SourceFile], operations: Operations, flow: Flow
) -> Iterator[Refusal]:
    """Yield why processes that train cannot be left to a launcher."""
    callees = flow.values(call.func, file)
    target = started(call, callees)
    if target is None:
        return
    workers = of_kind(flow.values(target, file), Kind.FUNCTION, Kind.METHOD)
    trains = any(flow.callers.reaches(worker.key, step.function) for worker in workers for step in operations.steps)
    is_known = all(not arg.star for arg in started_arguments(call, callees)) and not has_star(call)
    is_plain = is_known and isinstance(file.parent(call), cst.Expr)
    message = (
        "the program makes a process for each of its ranks, which a launcher starts for DeepSpeed"
        if not is_spawn(callees)
        else "cannot determine which function is started in each process, which a launcher starts for DeepSpeed"
        if not workers
        else "the program keeps the processes of its ranks, or hides what it gives them, which a launcher starts for "
        "DeepSpeed"
    )
    makers = ((flow.file(value), flow.node(value)) for step in operations.steps for value in step.optimizers)
    is_made_first = is_called(INIT, flow) and any(home.function(maker) is None for home, maker in makers)
    may_train = is_spawn(callees) and (is_made_first and trains if workers else file in files)
    is_shared = any(one.attributes_by_name.get("share_memory") for one in (file, *files))
    if trains and is_shared and not is_called(INIT, flow):
        yield Refusal(
            Code.PLAIN_DISTRIBUTED, file, call,
            "the processes update one module in shared memory, each by its own gradients, where an engine averages "
            "them",
            "train in one process: the converted script has several ranks, whose gradients are averaged",
        )  # fmt: skip
        return
    if (trains and not (is_spawn(callees) and is_plain)) or may_train:
        yield Refusal(
            Code.PLAIN_DISTRIBUTED, file, call, message,
            "start them by torch.multiprocessing.spawn(function, args=(...), nprocs=n), or call the function once with "
            "LOCAL_RANK from the environment as its rank",
        )  # fmt: skip
