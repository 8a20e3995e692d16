"""How a trial asks for mixed precision, and what its engines' config must say for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from ds_migrate.syntax.nodes import argument, code, dotted, dotted_names, is_literal, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.model import Form, Trial

AMP_CALLS = frozenset({"experimental.use_amp", "use_amp", "configure_apex_amp"})
_AUTOCASTS = frozenset(
    {
        "torch.cuda.amp.autocast",
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp.autocast_mode.autocast",
        "torch.cpu.amp.autocast",
    }
)


@dataclass
class Precision:
    """``condition``: when autocast is on, as an expression where the engines are made ("" for always); None for never.

    ``blocks``: the trial's own autocast contexts, with their files.
    """

    condition: str | None = None
    dtype: str = "float16"
    blocks: list[tuple[SourceFile, cst.CSTNode]] = field(default_factory=list)


def precision_of(trial: Trial) -> Precision:
    """Read the trial. With one engine, autocast blocks count too: an engine's forward switches outer autocast off."""
    found = Precision()
    for use in trial.uses:
        if use.call is None:
            continue
        if use.attr in AMP_CALLS:
            found.condition = _condition(use.file, use.call, trial)
            if use.attr == "configure_apex_amp":
                enabled = argument(use.call, 2, "enabled")
                if enabled is not None and code(enabled.value) != "True":
                    found.condition = code(enabled.value)
        elif use.attr == "wrap_scaler":
            found.condition = _scaled(use, trial)
    whole = any(use.attr in AMP_CALLS and use.call is not None for use in trial.uses)
    blocks: list[str] = []
    for part, function in trial.methods():
        if function.name.value == "__init__":
            continue
        for node in part.file.nodes(cst.Call, below=function):
            if part.file.names.qualified(node.func) in _AUTOCASTS:
                if _says_off(part.file, node):
                    continue
                found.blocks.append((part.file, node))
                said = _block(found, part.file, node, function, trial) if trial.form is Form.SIMPLE else None
                blocks += [said] if said is not None and not whole else []
    if blocks and (found.condition is None or _either(blocks)):  # what blocks say counts more than what a scaler says
        found.condition = _either(blocks)
    return found


def _enabled(file: SourceFile, call: cst.Call) -> cst.BaseExpression | None:
    """The ``enabled`` of an autocast, None when it is left out."""
    first = (file.names.qualified(call.func) or "").startswith(("torch.cuda.", "torch.cpu."))
    found = argument(call, 0 if first else 2, "enabled")
    return found.value if found is not None and not is_literal(found.value, "True") else None


def _says_off(file: SourceFile, call: cst.Call) -> bool:
    enabled = _enabled(file, call)
    return enabled is not None and is_literal(enabled, "False")


def _scaled(use: ContextUse, trial: Trial) -> str | None:
    """When a wrapped scaler scales: the branches around the wrap, and what its ``GradScaler(enabled=...)`` says."""
    assert use.call is not None
    branches = _condition(use.file, use.call, trial)
    given = argument(use.call, 0, "scaler")
    for function, made in _scalers(use, None if given is None else given.value, trial):
        enabled = argument(made, None, "enabled")
        if enabled is None or is_literal(enabled.value, "True"):
            continue
        if is_literal(enabled.value, "False"):
            return None
        at_place = trial.place is not None and function is trial.place.function
        if at_place or _known_early(enabled.value, function):
            return " and ".join(filter(None, (branches, _operand(enabled.value))))
    return branches


def _scalers(
    use: ContextUse, given: cst.BaseExpression | None, trial: Trial
) -> Iterator[tuple[cst.FunctionDef, cst.Call]]:
    """Where the scaler is made: in the wrap itself, or under the name that it is given."""
    if isinstance(given, cst.Call) and use.function is not None:
        yield use.function, given
    name = dotted(given)
    for part, function in trial.methods():
        for value in part.file.values_of({name}, function) if name is not None else ():
            if isinstance(value, cst.Call) and (part.file.names.qualified(value.func) or "").endswith("GradScaler"):
                yield function, value


def _block(found: Precision, file: SourceFile, call: cst.Call, function: cst.FunctionDef, trial: Trial) -> str | None:
    """When an autocast block is on, "" for always or for what cannot be told; None for one that is the CPU's."""
    text = code(call)
    if "bfloat16" in text:
        found.dtype = "bfloat16"
    if '"cpu"' in text or "'cpu'" in text:
        return None
    enabled = _enabled(file, call)
    said = [] if enabled is None or not _known_early(enabled, function) else [_operand(enabled)]
    for test, negated in _branches(file, call):
        if _known_early(test, function) and _lasting(test, trial):
            said.append(f"not {_operand(test)}" if negated else _operand(test))
    return " and ".join(reversed(said))


def _either(conditions: list[str]) -> str:
    """On where any of them is."""
    each = list(dict.fromkeys(conditions))
    if "" in each or not each:
        return ""
    return each[0] if len(each) == 1 else "(" + " or ".join(f"({one})" if " and " in one else one for one in each) + ")"


def _lasting(node: cst.BaseExpression, trial: Trial) -> bool:
    """Whether a test of a branch is a setting of the trial: it calls nothing that changes, and no method but
    ``__init__`` sets what it reads."""
    if any(isinstance(n, cst.Call) and not (dotted(n.func) or "").endswith("get_hparam") for n in walk(node)):
        return False
    read = {name for n in walk(node) if (name := dotted(n)) is not None and name.startswith("self.")}
    return bool(read) and not any(
        part.file.values_of(read, function)
        for part, function in trial.methods()
        if function.name.value != "__init__" and (trial.place is None or function is not trial.place.function)
    )


def _known_early(node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    """Whether it says the same where the engines are made: nothing of it is local to the method."""
    local = {p.name.value for p in parameters(function)} - {"self"}
    local |= {name for n in walk(function.body) for t in targets(n) for name in dotted_names(t) if "." not in name}
    return not local & {n.value for n in walk(node) if isinstance(n, cst.Name)}


def _condition(file: SourceFile, call: cst.Call, trial: Trial) -> str:
    """The branch conditions around a call in the function where the engines are made, joined by ``and``."""
    tests = [f"not ({code(test)})" if negated else _operand(test) for test, negated in _branches(file, call)]
    function = file.function(call)
    if tests and trial.place is not None and function is not trial.place.function:
        return ""  # the condition belongs to another function: on, and said in the report
    return " and ".join(reversed(tests))


def _branches(file: SourceFile, call: cst.Call) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """The tests of the branches around a call in its function, innermost first, and whether each must be false."""
    node: cst.CSTNode = call
    for ancestor in file.ancestors(call):
        if isinstance(ancestor, cst.FunctionDef):
            return
        if isinstance(ancestor, (cst.If, cst.IfExp)) and node is not ancestor.test:
            yield ancestor.test, node is not ancestor.body
        node = ancestor


def _operand(test: cst.BaseExpression) -> str:
    """The test as an operand of ``and`` or ``not``."""
    plain = isinstance(test, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or test.lpar
    return code(test) if plain else f"({code(test)})"
