"""How a trial asks for mixed precision, and what its engines' config must say for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ds_migrate.syntax.source import SourceFile
from ds_migrate.syntax.tree import argument, code, dotted_names, is_literal, parameters, targets, walk
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
            found.condition = _condition(use.file, use.call, trial)
    for part, function in trial.methods():
        if function.name.value == "__init__":
            continue
        for node in part.file.nodes(cst.Call, below=function):
            if part.file.names.qualified(node.func) in _AUTOCASTS:
                if _says_off(part.file, node):
                    continue
                found.blocks.append((part.file, node))
                if trial.form is Form.SIMPLE:
                    _block(found, part.file, node, function)
    return found


def _enabled(file: SourceFile, call: cst.Call) -> cst.BaseExpression | None:
    """The ``enabled`` of an autocast, None when it is left out."""
    first = (file.names.qualified(call.func) or "").startswith(("torch.cuda.", "torch.cpu."))
    found = argument(call, 0 if first else 2, "enabled")
    return found.value if found is not None and not is_literal(found.value, "True") else None


def _says_off(file: SourceFile, call: cst.Call) -> bool:
    enabled = _enabled(file, call)
    return enabled is not None and is_literal(enabled, "False")


def _block(found: Precision, file: SourceFile, call: cst.Call, function: cst.FunctionDef) -> None:
    """An autocast block around the engine's forward: the engine must be told the same."""
    text = code(call)
    if "bfloat16" in text:
        found.dtype = "bfloat16"
    if '"cpu"' in text or "'cpu'" in text:
        return
    if found.condition is None:
        enabled = _enabled(file, call)
        found.condition = code(enabled) if enabled is not None and _known_early(enabled, function) else ""


def _known_early(node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    """Whether it says the same where the engines are made: nothing of it is local to the method."""
    local = {p.name.value for p in parameters(function)} - {"self"}
    local |= {name for n in walk(function.body) for t in targets(n) for name in dotted_names(t) if "." not in name}
    return not local & {n.value for n in walk(node) if isinstance(n, cst.Name)}


def _condition(file: SourceFile, call: cst.Call, trial: Trial) -> str:
    """The branch conditions around a call in the function where the engines are made, joined by ``and``."""
    tests: list[str] = []
    node: cst.CSTNode = call
    for ancestor in file.ancestors(call):
        if isinstance(ancestor, cst.FunctionDef):
            break
        if isinstance(ancestor, cst.If):
            text = (
                f"({code(ancestor.test)})" if isinstance(ancestor.test, cst.BooleanOperation) else code(ancestor.test)
            )
            tests.append(text if node is ancestor.body or node is ancestor.test else f"not ({code(ancestor.test)})")
        if isinstance(ancestor, cst.IfExp):
            text = f"({code(ancestor.test)})"
            tests.append(text if node is ancestor.body else f"not {text}")
        node = ancestor
    function = file.function(call)
    if tests and trial.place is not None and function is not trial.place.function:
        return ""  # the condition belongs to another function: on, and said in the report
    return " and ".join(reversed(tests))
