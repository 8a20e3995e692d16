"""The models and optimizers of a trial, and which optimizer owns whose parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import libcst as cst

from ds_migrate.syntax.nodes import children, code, dotted, dotted_names, walk
from ds_migrate.trial.model import Model, Optimizer, Trial, Wrap
from ds_migrate.trial.parameter_coverage import EXPANSION_DEPTH, owns_all


def models_of(wraps: Iterable[Wrap]) -> Iterator[Model]:
    """Yield wraps grouped by where their result lives: branches that set the same name are one model."""
    for target, (same, names) in _by_target(wraps).items():
        yield Model(target, same, names, is_optional=not on_every_path(same))


def optimizers_of(wraps: Iterable[Wrap], models: tuple[Model, ...], trial: Trial) -> Iterator[Optimizer]:
    """Yield the optimizers, with the models whose parameters they own. Needs the trial's methods."""
    for target, (same, names) in _by_target(wraps).items():
        built_by = tuple(expression for wrap in same for expression in _expanded(wrap, trial))
        owned = tuple(m for m in models if any(_mentions(e, m.names) for e in built_by))
        covers = len(owned) == 1 and all(owns_all(wrap, owned[0]) for wrap in same)
        yield Optimizer(target, same, names, built_by, owned, covers)


def _by_target(wraps: Iterable[Wrap]) -> dict[str, tuple[tuple[Wrap, ...], frozenset[str]]]:
    """Return wraps and all their names by the lasting name of what is wrapped."""
    found: dict[str, tuple[tuple[Wrap, ...], frozenset[str]]] = {}
    for wrap in wraps:
        target, names = _names(wrap)
        same, known = found.get(target, ((), frozenset()))
        found[target] = ((*same, wrap), known | names)
    return found


def _names(wrap: Wrap) -> tuple[str, set[str]]:
    """Return the lasting name of a wrapped object and every name it has in its function."""
    target = wrap.target or code(wrap.call)
    names = {target}
    raw = dotted(wrap.argument)
    if raw is not None:
        names.add(raw)
    function = wrap.use.function
    if function is not None:
        for _ in range(2):
            for node in wrap.file.nodes(cst.Assign, below=function):
                if dotted(node.value) in names:
                    names |= {d for t in node.targets if (d := dotted(t.target)) is not None}
    lasting = sorted(n for n in names if n.startswith("self.") and n != raw)
    if not target.startswith("self.") and lasting:
        target = lasting[0]
    return target, names


def on_every_path(wraps: Sequence[Wrap]) -> bool:
    """Return whether one of the wraps is made whichever branch is taken."""
    if any(not w.is_conditional and not w.is_repeated for w in wraps):
        return True
    calls = {w.call for w in wraps}
    file, function = wraps[0].file, wraps[0].use.function
    if function is None:
        return False
    return any(_always(s, calls) for s in function.body.body) and all(w.file is file for w in wraps)


def _always(node: cst.CSTNode | None, calls: set[cst.Call]) -> bool:
    """Return whether one of the calls is made whichever branch is taken (a branch that raises needs none)."""
    if node is None:
        return False
    if isinstance(node, cst.If):
        return _block_always(node.body, calls) and _always(node.orelse, calls)
    if isinstance(node, cst.Else):
        return _block_always(node.body, calls)
    if isinstance(node, cst.Try):
        return _block_always(node.body, calls) and all(_block_always(h.body, calls) for h in node.handlers)
    if isinstance(node, cst.With):
        return _block_always(node.body, calls)
    if isinstance(node, (cst.For, cst.While, cst.FunctionDef, cst.ClassDef)):
        return False
    return any(n in calls for n in walk(node))


def _block_always(block: cst.BaseSuite, calls: set[cst.Call]) -> bool:
    raises = any(isinstance(s, cst.SimpleStatementLine) and isinstance(s.body[0], cst.Raise) for s in block.body)
    return raises or any(_always(s, calls) for s in block.body)


def _immediate(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield everything below that runs when the node does: bodies of lambdas and nested functions run later."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if not isinstance(current, (cst.Lambda, cst.FunctionDef)) or current is node:
            stack.extend(children(current))


def _mentions(node: cst.CSTNode, names: Collection[str]) -> bool:
    for inner in _immediate(node):
        if isinstance(inner, (cst.Name, cst.Attribute, cst.Subscript)):
            text = dotted(inner) if not isinstance(inner, cst.Subscript) else code(inner)
            if text in names:
                return True
    return False


def _expanded(wrap: Wrap, trial: Trial) -> list[cst.BaseExpression]:
    """Return what is wrapped and what it is made of: local names, attributes and own methods, a few steps back."""
    file, function = wrap.file, wrap.use.function
    found: list[cst.BaseExpression] = [wrap.argument]
    seen: set[str] = set()
    frontier: list[cst.BaseExpression] = [wrap.argument]
    for _ in range(EXPANSION_DEPTH):
        wanted = {name for e in frontier for name in dotted_names(e)} - seen
        seen |= wanted
        frontier = []
        if function is not None:
            frontier += file.values_of(wanted, function)
            # names appended to in a loop over named_parameters()
            frontier += [loop.iter for loop in file.nodes(cst.For, below=function) if _appends(loop, wanted)]
        for name in wanted:
            for part, own in trial.methods(name.removeprefix("self.")) if name.startswith("self.") else ():
                if own.name.value != "__init__":
                    frontier += [n.value for n in part.file.nodes(cst.Return, below=own) if n.value is not None]
                    frontier += [n.value for n in part.file.nodes(cst.Assign, below=own)]
        found += frontier
    return found


def _appends(loop: cst.For, names: set[str]) -> bool:
    return any(isinstance(node, cst.Call) and _appends_to(node, names) for node in walk(loop.body))


def _appends_to(call: cst.Call, names: set[str]) -> bool:
    func = call.func
    return isinstance(func, cst.Attribute) and func.attr.value in ("append", "extend") and dotted(func.value) in names
