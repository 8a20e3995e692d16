"""The names of engines in the converted code, and of the models and optimizers that they are made of."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import chain, count

import libcst as cst

from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.decisions.location_search import needs_raw
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.trial.model import Model, Optimizer, Trial


def name_engines(trial: Trial) -> dict[Optimizer, str]:
    """Return a separate name for each optimizer's engine, one that no class of the family uses on itself."""
    taken = {
        name
        for file in trial.files
        for node in file.nodes(cst.Attribute)
        if (name := dotted(node)) is not None and name.startswith("self.")
    }
    names: dict[Optimizer, str] = {}
    for optimizer in trial.optimizers:
        names[optimizer] = engine_name(optimizer, taken)
        taken.add(names[optimizer])
    return names


def engine_name(optimizer: Optimizer, taken: Collection[str] = ()) -> str:
    """Return ``self.engine_d`` for ``self.optimizer_d``, ``self.adam_engine`` for ``self.adam``: a name not taken."""
    attribute = re.sub(r"\W+", "_", optimizer.target.removeprefix("self.")).strip("_")
    wishes = [f"self.{attribute}_engine"]
    for word in ("optimizer", "optimiser", "optim", "opt"):
        found = re.search(rf"(?<![A-Za-z])(?i:{word})(?=s?(?![a-z]))", attribute)
        if found:
            wishes.insert(0, "self." + attribute[: found.start()] + "engine" + attribute[found.end() :])
            break
    numbered = (f"{wishes[-1]}{number}" for number in count(2))
    return next(name for name in chain(wishes, numbered) if name not in taken)


def raw_name(trial: Trial, owner: Model | Optimizer, location: EngineLocation) -> str:
    """Return ``net`` of ``self.model = context.wrap_model(net)`` when ``self.model`` has no use before the engine is
    made, so that the statement can go and the engine be made of ``net``; "" otherwise."""
    wrap = owner.wraps[0]
    if len(owner.wraps) != 1 or wrap.use.function is not location.function or wrap.is_discarded:
        return ""
    name = dotted(wrap.argument)
    if not isinstance(wrap.argument, cst.Name) or name is None or not owner.target.startswith("self."):
        return ""
    if wrap.target != owner.target or not isinstance(wrap.file.parent(wrap.call), cst.Assign):
        return ""
    own = wrap.file.statement_in(wrap.call, location.function)
    between = location.statements_above
    taken = [s for s in between if s is not own and needs_raw(s, {owner.target}, trial)]
    rebound = (
        [
            s
            for s in between[between.index(own) + 1 :]
            for n in walk(s)
            if isinstance(n, cst.AssignTarget) and dotted(n.target) == name
        ]
        if own in between
        else [own]
    )
    return "" if taken or rebound else name
