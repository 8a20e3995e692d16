"""Report checkpoint hooks of callbacks: they now run on every rank, which saves and restores its own state."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.callback_state import restored_by_rank

CODE = Code.CALLBACKS

_EVERYWHERE = "this hook now runs on every rank; before, it ran on rank 0 only"
_RESTORED = (
    "after a restart each rank restores what it saved itself; before, every rank got what rank 0 saved (a replay "
    "buffer, a generator, batch norm statistics in a copy of the model differ by rank)"
)
_STATE = frozenset(
    ["models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict", "scaler_state_dict", "amp_state"]
)
_HOOKS = (
    "on_checkpoint_save_start",
    "on_checkpoint_load_start",
    "on_checkpoint_write_end",
    "on_checkpoint_end",
)


def apply_file(file: SourceFile, context_names: Sequence[RuleContext]) -> None:
    ctx = context_names[0]
    for node in file.nodes(cst.FunctionDef):
        if node.name.value == "on_training_epoch_start":
            if not ctx.target.ships_helpers:
                ctx.review(
                    CODE, file, node.name,
                    "in Determined 0.38 this hook fires after every report, always with epoch_idx 0",
                    "use on_training_epoch_end, or convert for the bundled runtime",
                )  # fmt: skip
        elif node.name.value in _HOOKS:
            change = _change(node)
            owner = file.parent(file.parent(node)) if file.parent(node) is not None else None  # type: ignore[arg-type]
            own = [f for p in context_names for _, f in p.trial.methods()]
            if change and isinstance(owner, cst.ClassDef) and node not in own:
                ctx.review(
                    CODE, file, node.name, change,
                    "where once is enough, give the callback the trial's context in its constructor and begin the hook "
                    "with `if self.context.distributed.get_rank() != 0: return`",
                )  # fmt: skip
        if restored_by_rank(file, node):
            ctx.review(CODE, file, node.name, _RESTORED)


def _change(hook: cst.FunctionDef) -> str:
    """Return what is different for a checkpoint hook; "" for nothing."""
    name = hook.name.value
    if name in ("on_checkpoint_write_end", "on_checkpoint_end"):
        return _EVERYWHERE
    if any(isinstance(n, cst.SimpleString) and n.evaluated_value in _STATE for n in walk(hook)):
        return "the checkpoint holds no models_state_dict: engines save and load their own"
    return _EVERYWHERE if name == "on_checkpoint_save_start" and _acts(hook) else ""


def _acts(hook: cst.FunctionDef) -> bool:
    """Return whether the hook calls something for its effect, other than filling the dictionary that it is given."""
    given = [p.name.value for p in parameters(hook)][1:]
    return any(
        isinstance(node, cst.Expr)
        and isinstance(node.value, cst.Call)
        and (dotted(node.value.func) or "").partition(".")[0] not in given
        for node in walk(hook)
    )
