"""Parameters that a model changes itself, in its forward pass.

A norm that is imposed on weights, a codebook that follows averages: ZeRO keeps copies of the parameters, which such
code does not reach. What was frozen when the model was made has no copy, as the second encoder of momentum contrast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import code, dotted, last_name, targets, walk, without_index
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial

_PARTS = frozenset(["parameters", "named_parameters", "modules", "named_modules", "children", "named_children"])
_PAST_AUTOGRAD = re.compile(rb"\.data\b|no_grad|requires_grad|Parameter\(")
_CHANGED = "a parameter is changed in the model's forward pass"


def module_hazard(trial: Trial) -> str:
    """Return where a model's forward pass changes its parameters, "" where none does."""
    for file in dict.fromkeys((*trial.files, *trial.helper_files.matching(_PAST_AUTOGRAD))):
        for node in file.nodes(cst.ClassDef):
            methods = {s.name.value: s for s in node.body.body if isinstance(s, cst.FunctionDef)}
            if "forward" in methods:
                changed = next(_changes(file, node, methods), None)
                if changed is not None:
                    return f"{_CHANGED} ({file.path.name}, line {file.position(changed)[0]})"
    return ""


def _changes(file: SourceFile, owner: cst.ClassDef, methods: dict[str, cst.FunctionDef]) -> Iterator[cst.CSTNode]:
    """Yield what changes parameters in ``forward`` and the methods that it calls."""
    spared = _buffers(file, owner) | _frozen(file, methods.get("__init__"))
    seen: set[str] = set()
    queue = ["forward"]
    while queue:
        name = queue.pop()
        if name in seen or name not in methods:
            continue
        seen.add(name)
        owners = _owners(file, methods[name])
        for node in walk(methods[name]):
            if isinstance(node, cst.Call):
                queue.append((dotted(node.func) or "").removeprefix("self."))
            for tensor in _changed_in_place(node):
                past_autograd = _is_without_gradients(file, methods[name], node) or _is_raw(dotted(tensor) or "")
                other = _makes_parameter(node) or _toggles(node)
                if (past_autograd or other) and _is_parameter(tensor, owners, spared):
                    yield node


def _changed_in_place(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the tensors, or attributes of them, that a statement or call changes."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        name = node.func.attr.value
        return [node.func.value] if name.endswith("_") and not name.startswith("_") else []
    if isinstance(node, cst.AugAssign):
        return [] if isinstance(node.value, (cst.Integer, cst.Float)) else [without_index(node.target)]
    if _makes_parameter(node):
        return [target for target in targets(node) if isinstance(target, cst.Attribute)]
    return [without_index(t) for t in targets(node) if isinstance(t, cst.Subscript) or _is_raw(dotted(t) or "")]


def _makes_parameter(node: cst.CSTNode) -> bool:
    made = node.value if isinstance(node, cst.Assign) else None
    return isinstance(made, cst.Call) and last_name(made.func) == "Parameter"


def _toggles(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and (dotted(node.func) or "").endswith(".requires_grad_")


def _is_raw(name: str) -> bool:
    """Return whether a name is a tensor past autograd, or its flag."""
    return name.endswith((".data", ".requires_grad"))


def _is_parameter(tensor: cst.BaseExpression, owners: dict[str, str], spared: set[str]) -> bool:
    """Return whether the tensor may be a parameter of the model that an optimizer has."""
    name = dotted(tensor) or ""
    root = name.partition(".")[0]
    owner = owners.get(root, name)
    is_own = owner.startswith("self") and not any(owner == one or owner.startswith(f"{one}.") for one in spared)
    return is_own and "running_" not in name


def _is_without_gradients(file: SourceFile, method: cst.FunctionDef, node: cst.CSTNode) -> bool:
    blocks = [item.item for a in file.ancestors(node) if isinstance(a, cst.With) for item in a.items]
    return any("no_grad" in code(each) for each in (*blocks, *(d.decorator for d in method.decorators)))


def _buffers(file: SourceFile, owner: cst.ClassDef) -> set[str]:
    """Return the names of the class's buffers, as attributes of ``self``."""
    calls = [call for call in file.nodes(cst.Call, below=owner) if dotted(call.func) == "self.register_buffer"]
    names = [call.args[0].value for call in calls if call.args]
    return {f"self.{name.raw_value}" for name in names if isinstance(name, cst.SimpleString)}


def _frozen(file: SourceFile, init: cst.FunctionDef | None) -> set[str]:
    """Return the parts of the model that ``__init__`` takes the gradients from."""
    if init is None:
        return set()
    owners = _owners(file, init)
    names: list[str] = []
    for node in walk(init):
        if isinstance(node, cst.Assign) and dotted(node.value) == "False":
            names += [(dotted(target) or "").removesuffix(".requires_grad") for target in targets(node)]
        elif isinstance(node, cst.Call) and (dotted(node.func) or "").endswith(".requires_grad_"):
            given = [dotted(arg.value) for arg in node.args]
            names += [(dotted(node.func) or "").removesuffix(".requires_grad_")] if given == ["False"] else []
    return {owner for name in names if (owner := owners.get(name, name)).startswith("self.")}


def _owners(file: SourceFile, function: cst.FunctionDef) -> dict[str, str]:
    """Return local names of parameters and modules, with the part of the model that each is of."""
    owners: dict[str, str] = {}
    for assign in file.nodes(cst.Assign, below=function):
        value = dotted(assign.value) or ""
        if value.startswith("self."):
            owners |= {target.value: value for target in targets(assign) if isinstance(target, cst.Name)}
    for loop in file.nodes(cst.For, below=function):
        iterated = [loop.iter]
        names: list[cst.BaseExpression] = [loop.target]
        if isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "zip" and isinstance(loop.target, cst.Tuple):
            iterated = [arg.value for arg in loop.iter.args]
            names = [element.value for element in loop.target.elements]
        for over, variable in zip(iterated, names, strict=False):
            if isinstance(over, cst.Call) and isinstance(over.func, cst.Attribute):
                owner = dotted(over.func.value)
                if over.func.attr.value in _PARTS and owner is not None:
                    owners |= {name.value: owner for name in _names(variable)}
    return owners


def _names(variable: cst.BaseExpression) -> list[cst.Name]:
    return [node for node in walk(variable) if isinstance(node, cst.Name)]
