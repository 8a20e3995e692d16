"""Models and optimizers of a trial, and who owns whose parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.syntax.source import SourceFile
from ds_migrate.syntax.tree import argument, children, code, dotted, walk
from ds_migrate.trial.model import Model, Optimizer, Trial, Wrap

_EXPANSION_DEPTH = 4


def models_of(wraps: Iterable[Wrap]) -> list[Model]:
    """Wraps grouped by where their result lives: branches that set the same name are one model."""
    found: dict[str, Model] = {}
    for wrap in wraps:
        target, names = _names(wrap)
        model = found.setdefault(target, Model(target, []))
        model.wraps.append(wrap)
        model.names |= names
    for model in found.values():
        model.sometimes = not _on_every_path(model.wraps)
    return list(found.values())


def optimizers_of(wraps: Iterable[Wrap], models: list[Model], trial: Trial) -> list[Optimizer]:
    found: dict[str, Optimizer] = {}
    for wrap in wraps:
        target, names = _names(wrap)
        optimizer = found.setdefault(target, Optimizer(target, []))
        optimizer.wraps.append(wrap)
        optimizer.names |= names
        optimizer.built_by.extend(_expanded(wrap.file, wrap.argument, wrap.use.function, trial))
    for optimizer in found.values():
        optimizer.models = [m for m in models if any(_mentions(e, m.names) for e in optimizer.built_by)]
        optimizer.covers_model = len(optimizer.models) == 1 and all(
            _covers(wrap, optimizer.models[0], trial) for wrap in optimizer.wraps
        )
    return list(found.values())


def on_every_path(wraps: list[Wrap]) -> bool:
    return _on_every_path(wraps)


def mentions(node: cst.CSTNode, names: set[str]) -> bool:
    """Whether the code reads one of the dotted names (or something below it), deferred code not counted."""
    return _mentions(node, names)


def _names(wrap: Wrap) -> tuple[str, set[str]]:
    """The lasting name of a wrapped object and every other name it has in its function."""
    target = wrap.target or code(wrap.call)
    names = {target}
    raw = dotted(wrap.argument)
    if raw is not None:
        names.add(raw)
    function = wrap.use.function
    if function is not None:
        for _ in range(2):
            for node in walk(function):
                if isinstance(node, cst.Assign) and dotted(node.value) in names:
                    names |= {d for t in node.targets if (d := dotted(t.target)) is not None}
    lasting = sorted(n for n in names if n.startswith("self.") and n != raw)
    if not target.startswith("self.") and lasting:
        target = lasting[0]
    return target, names


def _on_every_path(wraps: list[Wrap]) -> bool:
    if any(not w.conditional and not w.repeated for w in wraps):
        return True
    calls = {w.call for w in wraps}
    file, function = wraps[0].file, wraps[0].use.function
    if function is None:
        return False
    return any(_always(s, calls) for s in function.body.body) and all(w.file is file for w in wraps)


def _always(node: cst.CSTNode | None, calls: set[cst.Call]) -> bool:
    """Whether one of the calls is made whichever branch is taken (a branch that raises needs none)."""
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
    """Everything below that runs when the node does: bodies of lambdas and nested functions run later."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if not isinstance(current, (cst.Lambda, cst.FunctionDef)) or current is node:
            stack.extend(children(current))


def _mentions(node: cst.CSTNode, names: set[str]) -> bool:
    for inner in _immediate(node):
        if isinstance(inner, (cst.Name, cst.Attribute, cst.Subscript)):
            text = dotted(inner) if not isinstance(inner, cst.Subscript) else code(inner)
            if text in names:
                return True
    return False


def _expanded(
    file: SourceFile, node: cst.BaseExpression, function: cst.FunctionDef | None, trial: Trial
) -> list[cst.BaseExpression]:
    """The expression and those it is made of: local names, attributes and own methods, a few steps back."""
    found: list[cst.BaseExpression] = [node]
    seen: set[str] = set()
    frontier: list[cst.BaseExpression] = [node]
    for _ in range(_EXPANSION_DEPTH):
        wanted = {
            d for e in frontier for n in walk(e) if isinstance(n, (cst.Name, cst.Attribute)) and (d := dotted(n))
        } - seen
        seen |= wanted
        frontier = []
        for scope in [function] if function is not None else []:
            for inner in walk(scope):
                if (isinstance(inner, cst.Assign) and any(dotted(t.target) in wanted for t in inner.targets)) or (
                    isinstance(inner, (cst.AnnAssign, cst.AugAssign))
                    and inner.value is not None
                    and dotted(inner.target) in wanted
                ):
                    frontier.append(inner.value)
                elif isinstance(inner, cst.For) and isinstance(inner.iter, cst.BaseExpression):
                    # names appended to in a loop over named_parameters()
                    if any(isinstance(n, cst.Call) and _appends_to(n, wanted) for n in walk(inner.body)):
                        frontier.append(inner.iter)
        for method in {w.removeprefix("self.") for w in wanted if w.startswith("self.")}:
            for part, own in trial.methods(method):
                if method != "__init__" and part.file is not None:
                    frontier.extend(n.value for n in walk(own) if isinstance(n, cst.Return) and n.value is not None)
                    frontier.extend(n.value for n in walk(own) if isinstance(n, cst.Assign))
        found.extend(frontier)
    return found


def _appends_to(call: cst.Call, names: set[str]) -> bool:
    func = call.func
    return isinstance(func, cst.Attribute) and func.attr.value in ("append", "extend") and dotted(func.value) in names


def _covers(wrap: Wrap, model: Model, trial: Trial) -> bool:
    """Whether the optimizer provably owns every trainable parameter of the model.

    ``M.parameters()`` itself, filtered by ``requires_grad`` or not, or the usual two groups with and without decay.
    """
    constructor = _resolve(wrap.argument, wrap)
    if not isinstance(constructor, cst.Call):
        return False
    first = argument(constructor, 0, "params")
    if first is None or first.star:
        return False
    return _all_parameters(_resolve(first.value, wrap), model, wrap)


def _resolve(node: cst.BaseExpression, wrap: Wrap) -> cst.BaseExpression:
    """A local name or attribute set once in the function stands for what it was set to."""
    for _ in range(_EXPANSION_DEPTH):
        name = dotted(node)
        if name is None or wrap.use.function is None:
            return node
        values = [
            a.value
            for a in walk(wrap.use.function)
            if isinstance(a, (cst.Assign, cst.AnnAssign))
            and a.value is not None
            and any(
                dotted(t) == name for t in ([x.target for x in a.targets] if isinstance(a, cst.Assign) else [a.target])
            )
            and wrap.call not in set(walk(a.value))
        ]
        if len(values) != 1:
            return node
        node = values[0]
    return node


def _all_parameters(node: cst.BaseExpression, model: Model, wrap: Wrap) -> bool:
    if isinstance(node, cst.Call):
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value == "parameters" and not node.args:
            return dotted(func.value) in model.names
        if dotted(func) in ("list", "tuple", "iter") and len(node.args) == 1:
            return _all_parameters(node.args[0].value, model, wrap)
        if dotted(func) == "filter" and len(node.args) == 2 and "requires_grad" in code(node.args[0].value):
            return "not " not in code(node.args[0].value) and _all_parameters(node.args[1].value, model, wrap)
        return False
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        source = node.for_in
        plain = source.inner_for_in is None and all(
            "requires_grad" in code(i.test) and "not " not in code(i.test) for i in source.ifs
        )
        return plain and same_name(node.elt, source.target) and _all_parameters(source.iter, model, wrap)
    if isinstance(node, cst.List):
        return _decay_groups(node, model, wrap)
    return False


def same_name(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    return isinstance(one, cst.Name) and isinstance(other, cst.Name) and one.value == other.value


def _decay_groups(node: cst.List, model: Model, wrap: Wrap) -> bool:
    """Two groups that part the model's parameters by a condition and its opposite, or one group of them all.

    ``[{"params": [p for n, p in M.named_parameters() if not any(...)]}, {"params": [... if any(...)]}]``.
    """
    conditions: list[cst.BaseExpression] = []
    for element in node.elements:
        params = _params_of_group(element.value)
        if params is None:
            return False
        params = _resolve(params, wrap)
        if len(node.elements) == 1 and _all_parameters(params, model, wrap):
            return True
        condition = _selection(params, model, wrap)
        if condition is None:
            return False
        conditions.append(condition)
    return len(conditions) == 2 and opposite(*conditions)


def _params_of_group(group: cst.BaseExpression) -> cst.BaseExpression | None:
    if not isinstance(group, cst.Dict):
        return None
    for element in group.elements:
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
            if element.key.evaluated_value == "params":
                return element.value
    return None


def _selection(node: cst.BaseExpression, model: Model, wrap: Wrap) -> cst.BaseExpression | None:
    """The condition of ``[p for ... in M.parameters() if condition]`` (``p.requires_grad`` does not count)."""
    if not isinstance(node, (cst.ListComp, cst.GeneratorExp)) or node.for_in.inner_for_in is not None:
        return None
    source = _resolve(node.for_in.iter, wrap)
    if isinstance(source, cst.Call) and dotted(source.func) in ("list", "tuple") and source.args:
        source = source.args[0].value
    func = source.func if isinstance(source, cst.Call) else None
    if not isinstance(func, cst.Attribute) or func.attr.value not in ("named_parameters", "parameters"):
        return None
    tests = [t for i in node.for_in.ifs for t in _conjuncts(i.test) if not code(t).endswith(".requires_grad")]
    return tests[0] if len(tests) == 1 and dotted(func.value) in model.names else None


def _conjuncts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
        return [*_conjuncts(node.left), *_conjuncts(node.right)]
    return [node]


_OPPOSITES = (
    (cst.In, cst.NotIn),
    (cst.Equal, cst.NotEqual),
    (cst.Is, cst.IsNot),
    (cst.LessThan, cst.GreaterThanEqual),
    (cst.LessThanEqual, cst.GreaterThan),
)


def opposite(one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    """Whether exactly one of two conditions holds, whatever they are asked of."""
    for a, b in ((one, other), (other, one)):
        if isinstance(a, cst.UnaryOperation) and isinstance(a.operator, cst.Not):
            if _text(a.expression) == _text(b):
                return True
        if (
            isinstance(a, cst.Comparison)
            and isinstance(b, cst.Comparison)
            and len(a.comparisons) == len(b.comparisons) == 1
        ):
            left, right = a.comparisons[0], b.comparisons[0]
            pair = (type(left.operator), type(right.operator))
            if (
                pair in _OPPOSITES
                and _text(a.left) == _text(b.left)
                and _text(left.comparator) == _text(right.comparator)
            ):
                return True
    return False


def _text(node: cst.BaseExpression) -> str:
    return "".join(code(node.with_changes(lpar=[], rpar=[])).split())
