"""Convert mixed precision to DeepSpeed's ``torch_autocast``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form, is_on_library_base
from ds_migrate.project.library_bases import LIBRARY_PATH
from ds_migrate.rules.codes import Code
from ds_migrate.rules.wrap_edits import argument_alone, remove_statement
from ds_migrate.syntax.nodes import argument, dotted, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.precision import AMP_CALLS

CODE = Code.PRECISION
Asks = list[tuple[SourceFile, cst.CSTNode, str]]
_NEAREST = "replaced by DeepSpeed's torch_autocast; on a GPU, loss scaling and skipped steps will differ from before"


def apply(ctx: RuleContext) -> None:
    asks: Asks = []  # what DeepSpeed's own autocast and loss scaling replace
    for use in ctx.trial.uses:
        if use.call is None:
            continue
        if use.attr in AMP_CALLS:
            _drop(ctx, use, asks)
        elif use.attr == "wrap_scaler":
            _scaler(ctx, use, asks)
        elif use.attr == "autocast_forward_pass":
            _forward(ctx, use, asks)
    _evaluation(ctx)
    _library(ctx)
    asked = ctx.plan.options.precision
    for file, block in ctx.plan.autocast.blocks:
        if asked is None:
            asks.append((file, block, "autocast"))
        else:
            text = f"autocast: the engine's forward is --precision {asked}, this is for what is around it"
            ctx.review(CODE, file, block, text)
    _report(ctx, asks)


def _report(ctx: RuleContext, asks: Asks) -> None:
    """Report what asked for mixed precision in each file as one finding, at the first place."""
    for file in dict.fromkeys(file for file, _, _ in asks):
        found = [(file.position(node)[0], what, node) for each, node, what in asks if each is file]
        places = sorted(found, key=lambda place: place[:2])
        lines: dict[str, list[str]] = {}
        for line, what, _ in places:
            lines.setdefault(what, []).append(str(line))
        first, *others = (
            f"{what} (line{'s' * (len(at) > 1)} {', '.join(at)})" if len(places) > 1 else what
            for what, at in lines.items()
        )
        ctx.review(CODE, file, places[0][2], f"{', '.join([first, *others])}: {_NEAREST}")


def _evaluation(ctx: RuleContext) -> None:
    """Report evaluation that was float32: an engine is autocast in all its forwards."""
    trial = ctx.trial
    whole = any(use.attr in AMP_CALLS for use in trial.uses)
    plan = ctx.plan
    if plan.form is not Form.SIMPLE or not plan.autocast.blocks or whole or plan.options.precision is not None:
        return
    around = {file.function(block) for file, block in plan.autocast.blocks}
    if {function.name.value for function in around if function is not None} != {"train_batch"}:
        return  # evaluation has separate blocks, or the helper may be evaluation's too
    for part, function in trial.methods("evaluate_batch", "evaluate_full_dataset"):
        ctx.review(
            CODE, part.file, function.name,
            "evaluation used float32 before; the DeepSpeed engine also autocasts during evaluation",
        )  # fmt: skip


def _library(ctx: RuleContext) -> None:
    """Report the mixed precision that a library's base class requests where a config sets ``use_apex_amp``."""
    known = ctx.configured.hparams if ctx.configured is not None else {}
    wraps = [wrap for model in ctx.trial.models for wrap in model.wraps]
    if "use_apex_amp" not in known or set(known["use_apex_amp"]) == {False}:
        return
    if any(wrap.file.path == LIBRARY_PATH for wrap in wraps):
        part = ctx.trial.parts[0]
        ctx.review(CODE, part.file, part.node.name, f"use_apex_amp: {_NEAREST}")


def _drop(ctx: RuleContext, use: ContextUse, asks: Asks) -> None:
    """Remove ``use_amp()`` and ``configure_apex_amp(...)``."""
    call = use.call
    assert call is not None
    ctx.handle(use)
    file = use.file
    if not file.edits.once(call, CODE):
        return
    parent = file.parent(call)
    if isinstance(parent, cst.Assign):
        line = file.statement(call)
        names = {t for model in ctx.trial.models for t in model.names} | {
            t for o in ctx.trial.optimizers for t in o.names
        }
        written = {d for t in parent.targets for n in walk(t) if (d := dotted(n)) is not None and d != "self"}
        foreign = {w for w in written if w.startswith("self.") or "." not in w} - names
        if not foreign - {name.split(".")[-1] for name in names}:
            file.remove(line if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else parent)
            _nearest(ctx, use, asks)
            return
        if _passes_through(ctx, use, parent):
            _nearest(ctx, use, asks)
            return
    elif remove_statement(file, call):
        _nearest(ctx, use, asks)
        return
    ctx.blocked(
        CODE, file, call, f"the value of {use.attr}() is used in a way that ds-migrate cannot follow",
        "assign its result to the wrapped model and optimizer, or call it as a statement",
    )  # fmt: skip


def _passes_through(ctx: RuleContext, use: ContextUse, parent: cst.Assign) -> bool:
    """Assign the models and optimizers themselves to the local names that take what apex made of them.

    Return False where the engine is made between the assignment and the last use of a name: they would be met raw.
    """
    call, file, location = use.call, use.file, ctx.plan.location
    assert call is not None
    given = [argument(call, 0, "models"), argument(call, 1, "optimizers")]
    names = {n.value for t in parent.targets for n in walk(t) if isinstance(n, cst.Name)}
    if use.function is None or any(dotted(n) for t in parent.targets for n in walk(t) if isinstance(n, cst.Attribute)):
        return False
    if any(arg is None or any(isinstance(n, cst.Call) for n in walk(arg.value)) for arg in given):
        return False
    read = [n for n in file.nodes(cst.Name, below=use.function) if n.value in names]
    last = max(file.position(file.statement(n)) for n in read)
    if location.function is use.function and file.position(call) < file.position(location.statement) < last:
        return False
    file.replace(call, ", ".join(expression_text(arg.value) for arg in given if arg is not None))
    return True


def _nearest(ctx: RuleContext, use: ContextUse, asks: Asks) -> None:
    """Report the replacement; put autocast around forwards that go past the engines."""
    if ctx.plan.options.precision is not None:
        what = f"{use.attr.rpartition('.')[2]} is removed: --precision {ctx.plan.options.precision} replaces it"
        ctx.review(CODE, use.file, use.node, what)
        return
    if ctx.plan.form is Form.SIMPLE or _wrap_forwards(ctx):
        asks.append((use.file, use.node, use.attr.rpartition(".")[2]))
        return
    ctx.blocked(
        CODE, use.file, use.node, f"{use.attr.rpartition('.')[2]} concerns models that are known only at run time",
        "put torch.autocast around their forward passes instead",
    )  # fmt: skip


def _autocast(ctx: RuleContext, file: SourceFile, module: str, context: str, condition: str = "") -> str:
    """Return the line that puts autocast around a module's forward; without the helper its outputs stay float16."""
    on = f'{context}.device.type == "cuda"' + (f" and {condition}" if condition else "")
    if ctx.target.ships_helpers:
        return f"{ctx.deepspeed_name(file, 'autocast_forward')}({module}, enabled={on})"
    return f'{module}.forward = {file.imports.module("torch")}.autocast("cuda", enabled={on})({module}.forward)'


def _wrap_forwards(ctx: RuleContext) -> bool:
    """Put autocast around forwards that bypass the engines, as PyTorchTrial did; return False where none is known."""
    location = ctx.plan.location
    if not ctx.trial.models or (ctx.plan.form is Form.COLLECTED and not is_on_library_base(ctx.trial)):
        return False
    context, condition = expression_text(ctx.trial.models[0].wraps[0].use.receiver), ctx.plan.autocast_condition
    for model in ctx.trial.models:
        if location.file.edits.once(location.statement, f"autocast {model.target}"):
            location.file.after(
                location.statement, _autocast(ctx, location.file, model.target, context, condition or "")
            )
    return True


def _scaler(ctx: RuleContext, use: ContextUse, asks: Asks) -> None:
    """Convert ``wrap_scaler(GradScaler(...))`` to ``GradScaler(enabled=False)``."""
    call = use.call
    assert call is not None
    ctx.handle(use)
    given = argument(call, 0, "scaler")
    file = use.file
    if given is None or not file.edits.once(call, CODE):
        return
    made = given.value
    if isinstance(made, cst.Call):
        if not (file.names.qualified(made.func) or "").endswith("GradScaler"):
            _unseen(ctx, use)
            return
        file.replace(call, f"{expression_text(made.func)}(enabled=False)")
    elif isinstance(file.parent(call), cst.Expr):
        remove_statement(file, call)
        _disable(ctx, use, dotted(made))
    else:
        position = next(i for i, a in enumerate(call.args) if a is given)
        file.change(call, argument_alone(position))
        _disable(ctx, use, dotted(made))
    asked = ctx.plan.options.precision
    if asked is None:
        asks.append((file, call, "GradScaler"))
    else:
        ctx.review(
            CODE, file, call, f"GradScaler: it has no effect now, --precision {asked} sets the engine's precision"
        )


def _disable(ctx: RuleContext, use: ContextUse, name: str | None) -> None:
    """Disable a scaler where it is made under a name."""
    found = False
    for scope in [f for _, f in ctx.trial.methods()]:
        for node in walk(scope):
            if isinstance(node, cst.Assign) and any(dotted(t.target) == name for t in node.targets):
                for inner in walk(node.value):
                    if isinstance(inner, cst.Call) and (use.file.names.qualified(inner.func) or "").endswith(
                        "GradScaler"
                    ):
                        if use.file.edits.once(inner, CODE):
                            use.file.replace(inner, f"{expression_text(inner.func)}(enabled=False)")
                        found = True
    if not found:
        _unseen(ctx, use)


def _unseen(ctx: RuleContext, use: ContextUse) -> None:
    ctx.blocked(
        CODE, use.file, use.node, "cannot determine where this scaler is made",
        "make it in the trial: self.context.wrap_scaler(torch.cuda.amp.GradScaler())",
    )  # fmt: skip


def _forward(ctx: RuleContext, use: ContextUse, asks: Asks) -> None:
    """Replace ``autocast_forward_pass(module)`` by torch's autocast around the module's forward."""
    call = use.call
    assert call is not None
    ctx.handle(use)
    file = use.file
    module = argument(call, 0, "module")
    name = dotted(module.value) if module is not None else None
    if name is None:
        ctx.blocked(CODE, file, call, "cannot determine which module runs under autocast", "give the module a name")
        return
    if not file.edits.once(call, CODE):
        return
    line = _autocast(ctx, file, name, expression_text(use.receiver))
    small = file.parent(call)
    if isinstance(small, cst.Expr):
        file.expand(small, line)
    else:
        file.replace(call, name)
        file.before(file.statement(call), line)
    asks.append((file, call, "autocast_forward_pass"))
