"""Replace ``context.models`` and ``context.optimizers`` by lists of the trial's own names."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.rules.codes import Code
from ds_migrate.rules.wrap_edits import children_of
from ds_migrate.syntax.nodes import number, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.trial.context import ContextUse

CODE = Code.CONTEXT_LISTS


def apply(ctx: RuleContext) -> None:
    for use in ctx.trial.uses:
        if use.attr == "lr_schedulers" and ctx.target.ships_helpers:
            ctx.handle(use)
        elif use.attr in ("models", "optimizers") and use.call is None:
            _convert(ctx, use)


def _convert(ctx: RuleContext, use: ContextUse) -> None:
    trial = ctx.trial
    inside = use.owner in {part.node for part in trial.parts}
    if ctx.plan.form is Form.COLLECTED:
        items, whole = [], f"{expression_text(use.receiver)}.engines.{use.attr}"
    else:
        items = _own_names(ctx, use.attr) if inside else _through_engines(ctx, use)
        whole = f"[{', '.join(items)}]"
        if not items or not (inside or _runs_after_init(ctx, use)):
            return
    if not use.file.edits.once(use.node, f"{CODE} {whole}"):
        ctx.handle(use)
        return
    if not use.file.edits.once(use.node, CODE):  # another trial's helper too, and it means other models there
        return
    ctx.handle(use)
    _replace(use, items, whole)
    ctx.converted(CODE, use.file, use.node, f"context.{use.attr} is {whole.strip('[]')}")


def _own_names(ctx: RuleContext, attr: str) -> list[str]:
    """Return the attributes of the trial that hold what it wrapped; empty when some has no such name."""
    owners = ctx.trial.models if attr == "models" else ctx.trial.optimizers
    names = [owner.target for owner in owners]
    return names if all(name.startswith("self.") for name in names) else []


def _through_engines(ctx: RuleContext, use: ContextUse) -> list[str]:
    """Return expressions for what the trial wrapped, for code outside of its classes: through the context's engines."""
    trial, engines = ctx.trial, f"{expression_text(use.receiver)}.models"
    if use.attr == "optimizers":
        return [f"{engines}[{index}].optimizer" for index in range(len(trial.optimizers))]
    if ctx.plan.form is Form.SIMPLE:
        return [f"{engines}[0].module"]
    paths: dict[str, str] = {}
    for index, optimizer in enumerate(trial.optimizers):
        for name, target in children_of(trial, optimizer).items():
            paths.setdefault(target, f"{engines}[{index}].module.{name}")
    return [paths[model.target] for model in trial.models]


def _runs_after_init(ctx: RuleContext, use: ContextUse) -> bool:
    """Return whether ``__init__``, where there are no engines yet, does not name the class or function of the use."""
    around = [a for a in use.file.ancestors(use.node) if isinstance(a, (cst.ClassDef, cst.FunctionDef))]
    names = {node.name.value for node in around} - {"__init__"}
    return not any(
        isinstance(node, (cst.Name, cst.Attribute)) and _last(node) in names
        for _, init in ctx.trial.methods("__init__")
        for node in walk(init.body)
    )


def _last(node: cst.Name | cst.Attribute) -> str:
    return node.value if isinstance(node, cst.Name) else node.attr.value


def _replace(use: ContextUse, items: list[str], whole: str) -> None:
    parent = use.file.parent(use.node)
    if isinstance(parent, cst.Subscript) and parent.value is use.node and len(parent.slice) == 1:
        index = parent.slice[0].slice
        value = number(index.value) if isinstance(index, cst.Index) else None
        if isinstance(value, int) and -len(items) <= value < len(items):
            use.file.replace(parent, items[value])
            return
    use.file.replace(use.node, whole)
