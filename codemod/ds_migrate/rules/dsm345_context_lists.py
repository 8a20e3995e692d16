"""``context.models`` and ``context.optimizers`` become lists of the trial's own names.

What it does
    In the trial's methods, ``context.models`` and ``context.optimizers`` become a list of what the trial wrapped, in
    the order in which it wrapped it; one element, when it is taken at once. ``context.lr_schedulers`` stays.

Why
    A DeepSpeedTrialContext's ``models`` are engines, and it has no ``optimizers``.

Before
    def build_validation_data_loader(self) -> DataLoader:
        print(self.context.optimizers[0].param_groups[0]["lr"], len(self.context.models))
        return DataLoader(make_data(), batch_size=4)

After
    def build_validation_data_loader(self) -> DataLoader:
        print(self.optimizer.param_groups[0]["lr"], len([self.model]))
        return DataLoader(make_data(), batch_size=4)

Numbers
    Unchanged.

References
    PyTorchTrialContext.models, PyTorchTrialContext.optimizers
"""

from __future__ import annotations

import libcst as cst

from ds_migrate.plan import Plan
from ds_migrate.syntax.tree import number
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.model import Form

CODE = "DSM345"
NAME = "context-lists"


def apply(plan: Plan) -> None:
    trial = plan.trial
    inside = {part.node for part in trial.parts}
    lists = {"models": [m.target for m in trial.models], "optimizers": [o.target for o in trial.optimizers]}
    for use in trial.uses:
        if use.attr == "lr_schedulers" and plan.target.ships_helpers:
            plan.handle(use)
            continue
        names = lists.get(use.attr)
        if names is None or use.call is not None or use.owner not in inside or trial.form is Form.COLLECTED:
            continue
        if not names or not all(name.startswith("self.") for name in names):
            continue
        plan.handle(use)
        if use.file.edits.once(use.node, CODE):
            _replace(use, names)
        plan.converted(CODE, use.file, use.node, f"context.{use.attr} is {', '.join(names)}")


def _replace(use: ContextUse, names: list[str]) -> None:
    parent = use.file.parent(use.node)
    if isinstance(parent, cst.Subscript) and parent.value is use.node and len(parent.slice) == 1:
        index = parent.slice[0].slice
        value = number(index.value) if isinstance(index, cst.Index) else None
        if isinstance(value, int) and -len(names) <= value < len(names):
            use.file.replace(parent, names[value])
            return
    use.file.replace(use.node, f"[{', '.join(names)}]")
