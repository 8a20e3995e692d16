"""Let ``train_batch`` and ``evaluate_batch`` take an iterator and fetch their batch from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.batch_method import ORDER, add_first_line, fold_head, rename_parameter, take_indices
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import code, dotted, has_star, parameters, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.batch import Consumption, batch_use
from ds_migrate.trial.batch_calls import BatchCalls
from ds_migrate.trial.batch_decorators import Passing, decorators

CODE = Code.BATCH


def apply(ctx: RuleContext) -> None:
    for file, node, text in _put_on(ctx):
        ctx.blocked(
            CODE, file, node, f"{text} is assigned another function: cannot determine what takes the batch there",
            "define the method in the class, and let it call that function with the batch",
        )  # fmt: skip
    moved = not any(True for _ in ctx.trial.uses_of("experimental.disable_auto_to_device"))
    for part, function in ctx.trial.methods(*ORDER):
        if not part.file.edits.once(function, CODE):
            continue
        problem = _problem(function)
        if problem is not None:
            ctx.blocked(CODE, part.file, function, *problem)
            continue
        _decorated(ctx, part.file, function)
        if function.name.value == "train_batch" and ctx.plan.accumulation.is_used and ctx.target.ships_helpers:
            _serve_index(ctx, part.file, function)
        _convert(ctx, part.file, function, moved)
    _calls(ctx)
    if not ctx.target.ships_helpers:
        _determined_loop(ctx)


def _determined_loop(ctx: RuleContext) -> None:
    """Report what the DeepSpeedTrial loop of Determined 0.38 gets wrong or lacks."""
    _indices(ctx, "in Determined 0.38 epoch_idx is always 0 here and batch_idx starts anew after each report",
             "count batches in the trial, or convert for the bundled runtime", ("batch_idx", "epoch_idx"))  # fmt: skip
    for part, function in ctx.trial.methods("evaluate_full_dataset"):
        ctx.blocked(
            CODE, part.file, function, "Determined's DeepSpeedTrial never calls evaluate_full_dataset",
            "evaluate in evaluate_batch with a reducer, or convert for the bundled runtime (--target runtime)",
        )  # fmt: skip


def _indices(ctx: RuleContext, message: str, advice: str, names: tuple[str, ...]) -> None:
    """Point at the first use of an index whose meaning changes."""
    for part, function in ctx.trial.methods("train_batch"):
        node = _first_use(part.file, function, names)
        if node is not None:
            ctx.review(CODE, part.file, node, message, advice)


def _first_use(file: SourceFile, function: cst.FunctionDef, names: Sequence[str]) -> cst.CSTNode | None:
    """Return where a method first uses one of the names as a variable, or as a key of its ``**kwargs``."""
    keywords = function.params.star_kwarg is not None
    for node in walk(function.body):
        if isinstance(node, cst.SimpleString) and keywords and node.evaluated_value in names:
            return node
        if isinstance(node, cst.Name) and node.value in names:
            parent = file.parent(node)
            is_variable = not (isinstance(parent, cst.Attribute) and parent.attr is node)
            if is_variable and not (isinstance(parent, cst.Arg) and parent.keyword is node):
                return node
    return None


def _serve_index(ctx: RuleContext, file: SourceFile, function: cst.FunctionDef) -> None:
    """Let ``batch_idx`` count micro-batches with accumulation, as it did: the loop counts optimizer steps."""
    star, kwargs = function.params.star_arg, function.params.star_kwarg
    if isinstance(star, cst.Param) and (hidden := _first_use(file, function, [star.name.value])) is not None:
        ctx.review(
            CODE, file, hidden, "with accumulation batch_idx counts optimizer steps now, it counted micro-batches",
            f"take it from {ctx.context_attribute()}.get_micro_batch_idx()",
        )  # fmt: skip
    elif _first_use(file, function, ["batch_idx", *([kwargs.name.value] if kwargs is not None else [])]) is not None:
        add_first_line(file, function, f"batch_idx = {ctx.context_attribute()}.get_micro_batch_idx()")
        ctx.converted(
            CODE, file, function, "batch_idx counts micro-batches, as it did: the loop counts optimizer steps"
        )


def _decorated(ctx: RuleContext, file: SourceFile, function: cst.FunctionDef) -> None:
    """Report decorators: they get the iterator, too."""
    method = function.name.value
    for decorator, passing in decorators(ctx.trial, file, function):
        name = code(decorator.decorator)
        if passing is Passing.TOUCHED:
            ctx.blocked(
                CODE, file, decorator,
                f"the decorator {name} uses its arguments, and would get an iterator where {method} took a batch",
                "do it in the method, or in a helper that the method calls with its batch",
            )  # fmt: skip
        elif passing is Passing.UNKNOWN:
            ctx.review(
                CODE, file, decorator,
                f"the decorator {name} gets an iterator where {method} took a batch; cannot determine how it uses it",
            )  # fmt: skip


def _problem(function: cst.FunctionDef) -> tuple[str, str] | None:
    name = function.name.value
    params = function.params
    given = [p.name.value for p in parameters(function)]
    required = [p.name.value for p in parameters(function) if p.default is None]
    if (
        name == "train_batch"
        and not params.star_kwarg
        and given[1:4] != list(ORDER[name])
        and not isinstance(params.star_arg, cst.Param)
    ):
        wanted = ", ".join(ORDER[name])
        return f"{name}({', '.join(given)}) is not called with those parameters", f"write {name}(self, {wanted})"
    extra = [p for p in required if p not in ("self", *ORDER[name])]
    if len(given) < 2 or given[1] != "batch" or extra:
        wanted = ", ".join(ORDER[name])
        return f"{name}({', '.join(given)}) is not called with those parameters", f"write {name}(self, {wanted})"
    return None


def _convert(ctx: RuleContext, file: SourceFile, function: cst.FunctionDef, moved: bool) -> None:
    name = parameters(function)[1].name.value
    used = {n.value for n in file.nodes(cst.Name, below=function)}
    iterator = "dataloader_iter" if "dataloader_iter" not in used else "dataloader_iterator"
    use = batch_use(file, function, name)
    fetch = f"next({iterator})"
    if moved:
        fetch = f"{ctx.context_attribute()}.to_device({fetch})"
    rename_parameter(file, function, iterator)
    fold_head(file, function)
    take_indices(file, function)
    if use.consumption is Consumption.INLINE:
        assert use.read is not None
        file.replace(use.read, fetch)
    elif use.consumption is Consumption.DELEGATED:
        given = file.parent(use.read) if use.read is not None else None
        assert use.read is not None and isinstance(given, cst.Arg)
        file.replace(use.read, iterator)
        if given.keyword is not None:
            file.replace(given.keyword, "dataloader_iter")
        file.edits.once(given, CODE)  # it is no batch any more
    elif use.consumption is Consumption.UNUSED:
        add_first_line(file, function, f"next({iterator})  # this trial does not use its batches")
    else:
        add_first_line(file, function, f"{name} = {fetch}")
    ctx.converted(
        CODE,
        file,
        function,
        f"{function.name.value} takes an iterator; its batch, from next(), is {use.consumption.value}",
    )


def _calls(ctx: RuleContext) -> None:
    """Convert ``trial.evaluate_batch(batch)``: it gets an iterator over that one batch."""
    calls = BatchCalls(ctx.trial)
    for file, call in calls.unknown():
        method = code(call.func)
        ctx.review(
            CODE, file, call, f"{method}() is given a batch; if that is {ctx.trial.name}, it takes an iterator now",
            f"if it is, call {method}(iter([batch]), ...)",
        )  # fmt: skip
    for found in calls:
        given = found.batch
        if given is None:
            if has_star(found.call):
                ctx.blocked(
                    CODE, found.file, found.call, f"the batch that {found.method} is given is hidden behind * or **",
                    "write the arguments out",
                )  # fmt: skip
            continue
        if not found.file.edits.once(given, CODE):
            continue
        if given.keyword is not None:
            found.file.replace(given.keyword, "dataloader_iter")
        found.file.change(given.value, _as_iterator)


def _as_iterator(updated: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(updated, cst.BaseExpression)
    return cst.Call(cst.Name("iter"), [cst.Arg(cst.List([cst.Element(updated)]))])


def _put_on(ctx: RuleContext) -> Iterator[tuple[SourceFile, cst.Assign, str]]:
    """Yield where a method that takes a batch is assigned, to the class or to the trial, instead of defined."""
    for file in ctx.trial.files:
        for node in file.nodes(cst.Assign):
            for target in node.targets:
                owner, _, name = (dotted(target.target) or "").rpartition(".")
                if name in ("train_batch", "evaluate_batch") and owner in ("self", ctx.trial.facts.facts.name):
                    yield file, node, f"{owner}.{name}"
