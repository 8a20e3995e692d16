"""The autocast of the engines' forward passes, as the trial itself requests it: its condition and type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ds_migrate.decisions.engine_layout import Form
from ds_migrate.syntax.nodes import argument, code, dotted, dotted_names, is_literal, parameters, targets, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.model import Trial
from ds_migrate.trial.precision import AMP_CALLS, autocast_blocks, enabled_argument, scalers


@dataclass(frozen=True)
class Autocast:
    """``condition``: when autocast is on, as an expression where the engines are made ("" for always); None for never.

    ``blocks``: the trial's own autocast contexts, with their files.
    """

    condition: str | None
    dtype: str
    blocks: tuple[tuple[SourceFile, cst.Call], ...]


def choose_autocast(trial: Trial, form: Form, engine_function: cst.FunctionDef) -> Autocast:
    """Return what the trial requests. With one engine, autocast blocks count too: an engine's forward switches outer
    autocast off. ``engine_function`` is where the engines are made."""
    condition = _requested_condition(trial, engine_function)
    blocks = list(autocast_blocks(trial))
    dtype = "float16"
    if form is Form.SIMPLE:
        if any("bfloat16" in code(call) for _, call, _ in blocks):
            dtype = "bfloat16"
        if not any(use.attr in AMP_CALLS and use.call is not None for use in trial.uses):
            conditions = [
                _block_condition(file, call, function, trial, engine_function)
                for file, call, function in blocks
                if not _is_on_cpu(call)
            ]
            if conditions and (condition is None or _any_of(conditions)):  # blocks count more than a scaler
                condition = _any_of(conditions)
    return Autocast(condition, dtype, tuple((file, call) for file, call, _ in blocks))


def _requested_condition(trial: Trial, engine_function: cst.FunctionDef) -> str | None:
    """Return the condition under which the trial requests mixed precision from its context."""
    condition: str | None = None
    for use in trial.uses:
        if use.call is None:
            continue
        if use.attr in AMP_CALLS:
            condition = _branch_condition(use.file, use.call, engine_function)
            if use.attr == "configure_apex_amp":
                enabled = argument(use.call, 2, "enabled")
                if enabled is not None and code(enabled.value) != "True":
                    condition = expression_text(enabled.value)
        elif use.attr == "wrap_scaler":
            condition = _scaler_condition(use, use.call, trial, engine_function)
    return condition


def _scaler_condition(use: ContextUse, call: cst.Call, trial: Trial, engine_function: cst.FunctionDef) -> str | None:
    """Return when a wrapped scaler scales: the branches around the wrap, and its ``GradScaler(enabled=...)``."""
    branches = _branch_condition(use.file, call, engine_function)
    given = argument(call, 0, "scaler")
    for function, made in scalers(use, None if given is None else given.value, trial):
        enabled = argument(made, None, "enabled")
        if enabled is None or is_literal(enabled.value, "True"):
            continue
        if is_literal(enabled.value, "False"):
            return None
        if function is engine_function or _is_known_early(enabled.value, function):
            return " and ".join(filter(None, (branches, _operand(enabled.value))))
    return branches


def _is_on_cpu(autocast: cst.Call) -> bool:
    text = code(autocast)
    return '"cpu"' in text or "'cpu'" in text


def _block_condition(
    file: SourceFile, call: cst.Call, function: cst.FunctionDef, trial: Trial, engine_function: cst.FunctionDef
) -> str:
    """Return when an autocast block is on, "" for always or when that cannot be determined."""
    enabled = enabled_argument(file, call)
    tests = [] if enabled is None or not _is_known_early(enabled, function) else [_operand(enabled)]
    for test, negated in _branches(file, call):
        if _is_known_early(test, function) and _is_setting(test, trial, engine_function):
            tests.append(f"not {_operand(test)}" if negated else _operand(test))
    return " and ".join(reversed(tests))


def _any_of(conditions: list[str]) -> str:
    """Return the condition that holds where any of them does."""
    each = list(dict.fromkeys(conditions))
    if "" in each or not each:
        return ""
    return each[0] if len(each) == 1 else "(" + " or ".join(f"({one})" if " and " in one else one for one in each) + ")"


def _is_setting(node: cst.BaseExpression, trial: Trial, engine_function: cst.FunctionDef) -> bool:
    """Return whether a test of a branch is a setting of the trial: it calls nothing that changes, and no method but
    ``__init__`` sets what it reads."""
    if any(isinstance(n, cst.Call) and not (dotted(n.func) or "").endswith("get_hparam") for n in walk(node)):
        return False
    read = {name for n in walk(node) if (name := dotted(n)) is not None and name.startswith("self.")}
    return bool(read) and not any(
        part.file.values_of(read, function)
        for part, function in trial.methods()
        if function.name.value != "__init__" and function is not engine_function
    )


def _is_known_early(node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    """Return whether it has the same value where the engines are made: nothing of it is local to the method."""
    local = {p.name.value for p in parameters(function)} - {"self"}
    local |= {name for n in walk(function.body) for t in targets(n) for name in dotted_names(t) if "." not in name}
    return not local & {n.value for n in walk(node) if isinstance(n, cst.Name)}


def _branch_condition(file: SourceFile, call: cst.Call, engine_function: cst.FunctionDef) -> str:
    """Return the conditions of the branches around a call in the function where the engines are made, joined by
    ``and``; "" (always) for a call in another function."""
    tests = [f"not ({expression_text(test)})" if negated else _operand(test) for test, negated in _branches(file, call)]
    return " and ".join(reversed(tests)) if file.function(call) is engine_function else ""


def _branches(file: SourceFile, call: cst.Call) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield the tests of the branches around a call in its function, innermost first, and whether each is negated."""
    node: cst.CSTNode = call
    for ancestor in file.ancestors(call):
        if isinstance(ancestor, cst.FunctionDef):
            return
        if isinstance(ancestor, (cst.If, cst.IfExp)) and node is not ancestor.test:
            yield ancestor.test, node is not ancestor.body
        node = ancestor


def _operand(test: cst.BaseExpression) -> str:
    """Return the test as an operand of ``and`` or ``not``."""
    plain = isinstance(test, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or test.lpar
    return expression_text(test) if plain else f"({expression_text(test)})"
