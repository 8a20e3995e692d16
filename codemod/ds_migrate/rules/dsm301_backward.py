"""Convert ``context.backward(loss)`` to ``engine.backward(loss)`` of the engine that steps next."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.rules.codes import Code
from ds_migrate.rules.wrap_edits import trim_comma
from ds_migrate.syntax.nodes import argument, has_star, is_literal
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.trial.ddp_bypass import never_averaged, thawed_late
from ds_migrate.trial.gradient_access import handles_gradients
from ds_migrate.trial.manual_steps import steps_of_helpers, steps_outside
from ds_migrate.trial.model import Backward
from ds_migrate.trial.repeated_backward import unaveraged_passes

CODE = Code.BACKWARD


def apply(ctx: RuleContext) -> None:
    helpers = [Backward(u, u.call) for u in ctx.trial.helpers if u.attr == "backward" and u.call is not None]
    looks = handles_gradients(ctx.trial)
    reduces = looks and not ctx.plan.managed
    for backward in (*ctx.trial.backwards, *helpers):
        ctx.handle(backward.use)
        file, call = backward.use.file, backward.call
        problem = _problem(backward)
        if problem is not None:
            ctx.blocked(CODE, file, call, *problem)
            continue
        engine = _engine(ctx, backward)
        if file.edits.once(call, CODE):
            if backward.is_manual:
                file.change(call, _given_to(engine))
            else:
                file.replace(call.func, f"{engine}.backward")
            _refuse_create_graph(ctx, backward)
            _name_arguments(backward)
            if _keeps_sums(ctx, backward):
                file.change(call, _unscaled)
            elif ctx.plan.accumulation.is_used and looks:
                ctx.review(
                    CODE, file, call, "gradients that the trial reads are averaged over the accumulation steps by now",
                    "they used to be averaged in step_optimizer; adapt thresholds and logged norms",
                )  # fmt: skip
            if reduces:  # the trial looks at gradients before the step: every rank must see the reduced ones
                engines = [engine] if ctx.plan.form is not Form.PER_OPTIMIZER else list(ctx.plan.engine_names.values())
                for each in engines:
                    file.after(file.statement(call), f"{each}.allreduce_gradients()")
        ctx.converted(CODE, file, call, f"{engine} runs the backward pass: it scales the loss and averages gradients")
    for file, call, text in never_averaged(ctx.trial) if ctx.trial.backwards else ():
        ctx.review(
            CODE, file, call,
            f"{text} goes past DistributedDataParallel: on several ranks PyTorchTrial left each its own gradients and "
            "buffers; the engine averages the gradients, the buffers stay each rank's own",
        )  # fmt: skip
    for file, call in unaveraged_passes(ctx.trial, (*ctx.trial.backwards, *helpers)):
        ctx.review(
            CODE, file, call,
            "a backward pass through a forward pass that another one went through: on several ranks PyTorchTrial left "
            "each rank its own gradients of it, the engine averages them",
            "add the losses and call backward once, and both train the same",
        )  # fmt: skip
    thawed = thawed_late(ctx.trial) if ctx.trial.backwards else None
    if thawed is not None:
        ctx.review(
            CODE, *thawed, "parameters that are frozen when the model is wrapped and learn later: on several ranks "
            "PyTorchTrial never averaged their gradients, the engine does",
        )  # fmt: skip
    for file, call, what, where in steps_outside(ctx.trial):
        ctx.blocked(
            CODE, file, call, f"a helper calls {what}() past the context, in {where}",
            "give the helper the context and call context.backward and context.step_optimizer, "
            "or backpropagate and step in the trial itself",
        )  # fmt: skip
    for file, call in steps_of_helpers(ctx.trial):
        ctx.blocked(
            CODE, file, call, f"a helper calls {expression_text(call.func)}() past the context",
            "give the helper the context and call context.backward and context.step_optimizer, "
            "or backpropagate and step in the trial itself",
        )  # fmt: skip


def _keeps_sums(ctx: RuleContext, backward: Backward) -> bool:
    """Return whether the backward does not average gradients over the accumulation steps: never, or later, or nothing
    accumulates in what follows."""
    is_manual = backward.is_foreign or (backward.step is not None and backward.step.is_manual)
    return ctx.plan.averages_late or is_manual or not ctx.plan.accumulation.averages


def _engine(ctx: RuleContext, backward: Backward) -> str:
    if ctx.plan.form is Form.COLLECTED:
        context = ctx.context_attribute() if backward.is_manual else expression_text(backward.use.receiver)
        return f"{context}.engines"
    assert backward.owner is not None  # else the engines were collected
    return ctx.plan.engine_names[backward.owner]


def _given_to(engine: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    """Return the change of ``loss.backward(...)`` into ``engine.backward(loss, ...)``."""

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call) and isinstance(updated.func, cst.Attribute)
        loss = updated.func.value.with_changes(lpar=[], rpar=[])
        first = cst.Arg(
            loss,
            comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if updated.args else cst.MaybeSentinel.DEFAULT,
        )
        return updated.with_changes(func=cst.parse_expression(f"{engine}.backward"), args=[first, *updated.args])

    return change


def _unscaled(node: cst.CSTNode) -> cst.CSTNode:
    """Add ``scale_wrt_gas=False``: the gradients of micro-batches are summed, not averaged."""
    assert isinstance(node, cst.Call)
    flag = cst.Arg(
        cst.Name("False"),
        keyword=cst.Name("scale_wrt_gas"),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    return node.with_changes(
        args=[
            *node.args[:-1],
            node.args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))),
            flag,
        ]
    )


def _problem(backward: Backward) -> tuple[str, str] | None:
    """Return message and help for what an engine's backward cannot do, None where it can."""
    call = backward.call
    if has_star(call):
        return "backward's arguments are hidden behind * or **", "write the arguments out"
    first = 0 if backward.is_manual else 1  # tensor.backward has no loss argument
    gradient = argument(call, first, "gradient")
    if gradient is not None and not is_literal(gradient.value, "None"):
        return (
            f"backward(gradient={expression_text(gradient.value)}) has no engine form: its loss is a scalar",
            "make the loss a scalar, for instance (output * gradient).sum()"
            + (", or, if that is the trial's context, call it as self.context.backward" if backward.is_manual else ""),
        )
    create = argument(call, first + 2, "create_graph")
    if create is not None and is_literal(create.value, "True"):
        return (
            "backward(create_graph=True) has no engine form",
            "take the second-order term with torch.autograd.grad and add it to the loss",
        )
    if not call.args and not backward.is_manual:
        return "backward has no loss", "pass the loss"
    return None


def _refuse_create_graph(ctx: RuleContext, backward: Backward) -> None:
    """Let the trial raise where a flag asks for the graph of the gradients: an engine's backward keeps none."""
    file, call = backward.use.file, backward.call
    create = argument(call, 2 if backward.is_manual else 3, "create_graph")
    if create is None or is_literal(create.value, "False"):
        return
    flag = expression_text(create.value)
    raised = 'raise NotImplementedError("an engine\'s backward cannot create a graph of the gradients")'
    file.before(file.statement(call), f"if {flag}:\n    {raised}")
    ctx.review(CODE, file, call, f"backward(create_graph={flag}): an engine cannot, so the trial raises where it holds")


def _name_arguments(backward: Backward) -> None:
    """Keep the loss and retain_graph, the latter by keyword: its place differs between DeepSpeed versions."""
    file, call = backward.use.file, backward.call
    first = 0 if backward.is_manual else 1
    retain = argument(call, first + 1, "retain_graph")
    for arg in call.args:
        keyword = arg.keyword.value if arg.keyword is not None else None
        if arg is retain and keyword is None:
            file.change(arg, _as_retain_graph)
        elif keyword in ("gradient", "create_graph") or (
            keyword is None and call.args.index(arg) in (first, first + 2)
        ):
            file.change(arg, lambda _: cst.RemoveFromParent())
    if len(call.args) > first:
        file.change(call, trim_comma)


def _as_retain_graph(node: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(node, cst.Arg)
    return node.with_changes(
        keyword=cst.Name("retain_graph"),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
