"""``__init__``: the trial makes its model, optimizer and schedule there, and wraps them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set

from ds_migrate.upgrade.clipping import upgrade_clipping
from ds_migrate.upgrade.factories import GETTERS, check_factories, inline
from ds_migrate.upgrade.family import Family, OldClass
from ds_migrate.upgrade.functions import all_parameters, own_nodes, receiver
from ds_migrate.upgrade.problem import UpgradeError
from ds_migrate.upgrade.schedule import upgrade_schedule
from ds_migrate.upgrade.training_step import StepNames, upgrade_methods

_WIDTH = 100


def upgrade_family(family: Family, words: Set[str]) -> None:
    """Rewrite the classes of a family.

    Args:
        family: the trials and their base classes.
        words: the words of the experiment configs.

    Raises:
        UpgradeError: one of the classes cannot be rewritten.
    """
    host = _host(family)
    check_factories(family)
    init = host.methods.get("__init__")
    me = receiver(init) if init is not None else "self"
    context = family.context or "context"
    model = family.fresh("model", "wrapped_model")
    inlined = _inlined_optimizer(family, host, f"{me}.{model}")
    optimizer = "optimizer" if inlined else family.fresh("_optimizer")
    given = _context_parameter(host)
    lines = [] if family.context else [f"{me}.context = {given}"]
    lines += [
        f"{me}.{model} = {me}.{context}.wrap_model({me}.build_model())",
        f"{me}.{optimizer} = {me}.{context}.wrap_optimizer({inlined or f'{me}.optimizer({me}.{model})'})",
    ]
    schedule = upgrade_schedule(family, host, me, f"{me}.{optimizer}", "aggregation_frequency" in words)
    attributes = {"get_model": model, "get_optimizer": optimizer}
    if schedule is not None:
        attributes["get_lr_scheduler"] = family.fresh("lr_scheduler", "_lr_scheduler")
        head = f"{me}.{attributes['get_lr_scheduler']} = {me}.{context}.wrap_lr_scheduler("
        lines += _folded(head, schedule.scheduler, schedule.step_mode)
    _add_to_init(host, lines)
    _replace_getters(family, context, attributes)
    step = StepNames(context, model, optimizer, upgrade_clipping(family, context, words))
    for cls in family.classes.values():
        upgrade_methods(cls, step)
    host.edits.notice(
        host.node,
        f"{host.name} was written for the API before 0.13: now it wraps its model and steps itself",
    )


def _host(family: Family) -> OldClass:
    """Return the class whose ``__init__`` wraps: the one that all trials of the family get theirs from."""
    hosts = [family.defining(cls, "__init__") or _root(family, cls) for cls in family.trials]
    if any(host is not hosts[0] for host in hosts) or len(family.owners("__init__")) > 1:
        raise UpgradeError(
            hosts[0].node,
            f"{hosts[0].name} and another class that builds on the same trial have an __init__ each",
            "keep one __init__ in the classes that build on each other, or wrap model and optimizer by hand",
        )
    return hosts[0]


def _root(family: Family, cls: OldClass) -> OldClass:
    """Return the class that derives from PyTorchTrial itself."""
    return family.classes.get(cls.lineage[-1], cls) if cls.lineage else cls


def _context_parameter(host: OldClass) -> str:
    init = host.methods.get("__init__")
    given = all_parameters(init)[1:] if init is not None else []
    if init is not None and (len(given) != 1 or init.args.vararg or init.args.kwarg or "hparam" in given[0].arg):
        raise UpgradeError(
            init, f"{host.name}.__init__ takes more or less than the context", "write __init__(self, context)"
        )  # fmt: skip
    return given[0].arg if given else "context"


def _inlined_optimizer(family: Family, host: OldClass, model: str) -> str | None:
    """Return the optimizer as source, where its method is no more than that expression; the method goes then."""
    if family.owners("optimizer") != [host]:
        return None
    only = host.methods["optimizer"].body[0]
    if not isinstance(only, ast.Return) or only.value is None:
        return None
    return inline(family, host, "optimizer", only.value, model)


def _folded(head: str, *arguments: str) -> list[str]:
    line = f"{head}{', '.join(arguments)})"
    return [line] if len(line) <= _WIDTH else [head, *(f"    {argument}," for argument in arguments), ")"]


def _add_to_init(host: OldClass, lines: list[str]) -> None:
    """Add lines to the end of ``__init__``, which is made where there is none."""
    edits, init = host.edits, host.methods.get("__init__")
    if not edits.begins_line(host.node.body[0]):
        raise UpgradeError(host.node, f"the body of {host.name} is on the line of its head", "write it below the head")
    if init is None:
        first = host.node.body[0]
        anchor = host.node.body[1] if _is_text(first) and len(host.node.body) > 1 else first
        edits.insert_before(anchor, ["def __init__(self, context):", *(f"    {line}" for line in lines), ""])
        return
    early = next((n for n in own_nodes(init) if isinstance(n, ast.Return)), None)
    if early is not None:
        raise UpgradeError(early, f"{host.name}.__init__ returns before its end", "let __init__ run to its end")
    if edits.begins_line(init.body[0]) and edits.begins_line(init.body[-1]):
        edits.insert_after(init.body[-1], lines)
        return
    start, indent = edits.start(init.body[0]), f"{edits.indent(init)}    "  # the body is on the line of the head
    edits.replace(len(edits.text[:start].rstrip()), start, f"\n{indent}")
    end = edits.end(init.body[-1])
    edits.replace(end, end, "".join(f"\n{indent}{line}" for line in lines))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _replace_getters(family: Family, context: str, attributes: Mapping[str, str]) -> None:
    """Replace ``self.context.get_model()`` and its like by the trial's own attribute."""
    for cls in family.classes.values():
        methods = {node: method for method in cls.methods.values() for node in ast.walk(method)}
        for node in ast.walk(cls.edits.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            asked, name = ast.unparse(node.func.value), node.func.attr
            if name not in GETTERS or not asked.endswith("context"):
                continue
            method = methods.get(node)
            if method is None or asked != f"{receiver(method)}.{context}" or name not in attributes:
                raise UpgradeError(
                    node,
                    f"{name}() is asked of a context outside of the trial's own methods",
                    "give it the trial's model, optimizer or scheduler",
                )
            cls.edits.replace_node(node, f"{receiver(method)}.{attributes[name]}")
