"""Find callbacks whose restored state may differ by rank.

A rank now restores what it saved itself. Numbers that hooks computed from reported metrics are the same on every rank;
what a callback restores of another object, or what the trial wrote into it, need not be.
"""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_RESTORING = ("load_state_dict", "on_checkpoint_load_start")
_CONTAINER_METHODS = frozenset(
    ["add", "append", "clear", "copy", "extend", "get", "insert", "pop", "setdefault", "update"]
)
_OUTPUT = frozenset(["print", "log", "logger", "logging", "warnings"])


def restored_by_rank(file: SourceFile, hook: cst.FunctionDef) -> bool:
    """Return whether the hook restores state of a callback that may differ by rank."""
    if hook.name.value not in _RESTORING:
        return False
    owner = next((a for a in file.ancestors(hook) if isinstance(a, cst.ClassDef)), None)
    if owner is None or not _is_callback(file, owner):
        return False
    return _restores_an_object(hook) or _is_written_elsewhere(file, owner, _own_attributes(hook))


def _is_callback(file: SourceFile, owner: cst.ClassDef) -> bool:
    """Return whether the class is built on a callback, directly or through others."""
    classes = {node.name.value: node for node in file.nodes(cst.ClassDef)}
    queue = [owner]
    bases: dict[str, None] = {}
    while queue:
        names = [dotted(base.value) or "" for base in queue.pop().bases]
        queue += [classes[name] for name in names if name in classes and name not in bases]
        bases |= dict.fromkeys(names)
    return any(name.endswith("Callback") for name in bases)


def _restores_an_object(hook: cst.FunctionDef) -> bool:
    """Return whether the hook gives state to something else than the callback's own attributes."""
    for node in walk(hook):
        if isinstance(node, cst.Call) and _loads_state(node.func):
            return True
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and _acts_elsewhere(node.value):
            return True
        if any(map(_is_deep, _names_set(node))):
            return True
    return False


def _loads_state(func: cst.BaseExpression) -> bool:
    return isinstance(func, cst.Attribute) and func.attr.value == "load_state_dict" and not _is_super(func.value)


def _acts_elsewhere(call: cst.Call) -> bool:
    """Return whether a call that is made for its effect may change another object than a container of the callback."""
    if isinstance(call.func, cst.Attribute) and _is_super(call.func.value):
        return False
    root, *inner = (dotted(call.func) or "").split(".")
    if root != "self":
        return root not in _OUTPUT and bool(call.args)
    return len(inner) > 2 or (len(inner) == 2 and inner[0] not in _OUTPUT and inner[1] not in _CONTAINER_METHODS)


def _is_super(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "super"


def _names_set(node: cst.CSTNode) -> list[str]:
    """Return the dotted names that an assignment sets or sets an element of; nothing for other nodes."""
    names: list[str] = []
    queue: list[cst.BaseExpression] = targets(node)
    while queue:
        target = queue.pop()
        if isinstance(target, (cst.Tuple, cst.List)):
            queue += [element.value for element in target.elements]
        elif isinstance(target, cst.Subscript):
            queue.append(target.value)
        else:
            names.append(dotted(target) or "")
    return names


def _is_deep(name: str) -> bool:
    """Return whether a dotted name is an attribute of another object than ``self``."""
    return name.count(".") > 1 or (name.count(".") == 1 and not name.startswith("self."))


def _own_attributes(hook: cst.FunctionDef) -> set[str]:
    """Return the attributes of the callback that the hook restores."""
    names = (name for node in walk(hook) for name in _names_set(node))
    return {name.removeprefix("self.") for name in names if name.startswith("self.") and not _is_deep(name)}


def _is_written_elsewhere(file: SourceFile, owner: cst.ClassDef, attributes: set[str]) -> bool:
    """Return whether the attributes are set by code outside the callback, or by a method that such code calls."""
    own = set(walk(owner))
    for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign):
        if node not in own and any(_is_deep(n) and n.rpartition(".")[2] in attributes for n in _names_set(node)):
            return True
    setters = {node.name.value for node in own if isinstance(node, cst.FunctionDef) and _sets(node, attributes)}
    public = [name for name in setters if not name.startswith(("_", "on_")) and name not in _RESTORING]
    uses = (use for name in public for use in file.attributes_by_name.get(name, ()))
    return any(use not in own and isinstance(file.parent(use), cst.Call) for use in uses)


def _sets(method: cst.FunctionDef, attributes: set[str]) -> bool:
    """Return whether the method sets one of the attributes of ``self``, or calls a method of one."""
    for node in walk(method):
        if any(name.removeprefix("self.") in attributes for name in _names_set(node)):
            return True
        if isinstance(node, cst.Call):
            root, *inner = (dotted(node.func) or "").split(".")
            if root == "self" and len(inner) == 2 and inner[0] in attributes:
                return True
    return False
