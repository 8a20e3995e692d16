"""The optimizer that DeepSpeed makes from its config, where that is the very one that the trial makes.

DeepSpeed makes the classes of ``torch.optim`` under their own names, of all the model's parameters in one group, with
the arguments that the config gives. What a trial does beyond that has no place in a config.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from ds_migrate.decisions.engine_layout import Form
from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.syntax.nodes import argument, code, dotted, has_star, number, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Optimizer, Trial

# The arguments that torch takes by position, behind the parameters.
_POSITIONS: Mapping[str, tuple[str, ...]] = {
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adam": ("lr", "betas", "eps", "weight_decay", "amsgrad"),
    "AdamW": ("lr", "betas", "eps", "weight_decay", "amsgrad"),
    "Adagrad": ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
    "Adadelta": ("lr", "rho", "eps", "weight_decay"),
    "Adamax": ("lr", "betas", "eps", "weight_decay"),
    "NAdam": ("lr", "betas", "eps", "weight_decay", "momentum_decay"),
    "RAdam": ("lr", "betas", "eps", "weight_decay"),
    "ASGD": ("lr", "lambd", "alpha", "t0", "weight_decay"),
    "Rprop": ("lr", "etas", "step_sizes"),
}
# What an expression may consist of that gives the same value where the engine is made, a few lines further down.
_REPEATABLE = (cst.Name, cst.Attribute, cst.Subscript, cst.SubscriptElement, cst.Index, cst.Arg, cst.SimpleString,
               cst.Integer, cst.Float, cst.BinaryOperation, cst.BaseBinaryOp, cst.UnaryOperation, cst.BaseUnaryOp,
               cst.Tuple, cst.List, cst.Element)  # fmt: skip
# DeepSpeed takes both names for AdamW, and compiles its own optimizer for them, unless a key prevents it.
TORCH_ADAM: Mapping[str, Mapping[str, object]] = {
    "Adam": {"torch_adam": True, "adam_w_mode": False},
    "AdamW": {"torch_adam": True},
}
_PURE = frozenset({"float", "int", "bool", "tuple"})


@dataclass(frozen=True, eq=False)
class ConfigOptimizer:
    """An optimizer of torch that DeepSpeed makes from its config.

    ``kind`` is the class's name below ``torch.optim``. ``known``: arguments as JSON holds them; ``computed``: those
    that are known only when the trial runs, as expressions. ``assignments``: what made it in the trial's source.
    """

    kind: str
    known: Mapping[str, object]
    computed: Mapping[str, str]
    assignments: tuple[cst.BaseSmallStatement, ...]

    def config(self) -> dict[str, object]:
        """Return the ``optimizer`` block of the config, as far as it is known."""
        return {"type": self.kind, "params": {**self.known, **TORCH_ADAM.get(self.kind, {})}}


def config_optimizer(trial: Trial, form: Form, location: EngineLocation, offloads: bool) -> ConfigOptimizer | str:
    """Return the optimizer as a config has it, or why it stays in the trial. ``offloads``: its state is on the host."""
    if form is not Form.SIMPLE:
        return "each of several engines has its own parameters, and a config names an optimizer for all of a model's"
    optimizer = trial.optimizers[0]
    if trial.schedulers:
        return "its learning rate schedule is made of it, before the engine is"
    if len(optimizer.wraps) != 1 or optimizer.wraps[0].use.function is not location.function:
        return "it is made in several places" if len(optimizer.wraps) > 1 else "it is made in another function"
    call = constructor(optimizer)
    kind = _kind(location.file, call) if call is not None else None
    if call is None or kind is None:
        return "it is not made by a call of a torch.optim class whose arguments can be seen here"
    if offloads and kind == "Adagrad":
        return "with offload DeepSpeed makes its own Adagrad, which has to be compiled"
    if not _has_all_parameters(call, trial):
        return "its parameters are not just parameters() of the model: groups and choices have no place in a config"
    arguments = constructor_arguments(call, kind)
    if arguments is None:
        return "* or ** hide what it is made with"
    known: dict[str, object] = {}
    computed: dict[str, str] = {}
    for name, value in arguments.items():
        try:
            known[name] = _json(ast.literal_eval(code(value)))
        except ValueError:
            if not _is_repeatable(value, trial, location):
                return f"{name}={expression_text(value)} cannot be computed again where the engine is made"
            computed[name] = expression_text(value)
    assignments = _assignments(optimizer, call, location)
    if isinstance(assignments, str):
        return assignments
    return ConfigOptimizer(kind, known, computed, assignments)


def is_stateless(optimizer: Optimizer) -> bool:
    """Return whether the optimizer is, provably, torch's SGD without momentum in any of its groups."""
    call = constructor(optimizer)
    if call is None or has_star(call) or _kind(optimizer.wraps[0].file, call) != "SGD":
        return False
    momentum = argument(call, 2, "momentum")
    groups = [s for s in optimizer.wraps[0].file.nodes(cst.SimpleString) if s.evaluated_value == "momentum"]
    return ".parameters()" in code(call) and not groups and (momentum is None or number(momentum.value) == 0)


def constructor(optimizer: Optimizer) -> cst.Call | None:
    """Return the call that makes the optimizer, when there is one and it can be seen."""
    wrap = optimizer.wraps[0]
    made: cst.BaseExpression = wrap.argument
    name = dotted(made)
    if name is not None and wrap.use.function is not None:
        values = [v for v in wrap.file.values_of({name}, wrap.use.function) if v is not wrap.call]
        if len(values) != 1:
            return None
        made = values[0]
    return made if isinstance(made, cst.Call) and len(optimizer.wraps) == 1 else None


def _kind(file: SourceFile, call: cst.Call) -> str | None:
    module, _, name = (file.names.qualified(call.func) or "").rpartition(".")
    return name if module == "torch.optim" and name in _POSITIONS else None


def _has_all_parameters(call: cst.Call, trial: Trial) -> bool:
    given = next((a.value for a in call.args if a.keyword is None or a.keyword.value == "params"), None)
    if not isinstance(given, cst.Call) or given.args or not isinstance(given.func, cst.Attribute):
        return False
    return given.func.attr.value == "parameters" and dotted(given.func.value) in trial.models[0].names


def constructor_arguments(call: cst.Call, kind: str) -> dict[str, cst.BaseExpression] | None:
    """Return all arguments of a ``torch.optim`` class but the parameters, by name; None where they cannot be seen."""
    if kind not in _POSITIONS:
        return None
    found: dict[str, cst.BaseExpression] = {}
    names = ("params", *_POSITIONS[kind])
    for position, arg in enumerate(call.args):
        if arg.star or (arg.keyword is None and position >= len(names)):
            return None
        found[names[position] if arg.keyword is None else arg.keyword.value] = arg.value
    found.pop("params", None)
    return found


def _json(value: object) -> object:
    """Return a literal as JSON holds it. Raises ValueError for one that it cannot hold."""
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(value)


def _is_repeatable(value: cst.BaseExpression, trial: Trial, location: EngineLocation) -> bool:
    hparam_calls = {use.call for use in trial.uses if use.attr == "get_hparam"}
    calls = {n for n in walk(value) if isinstance(n, cst.Call)}
    if any(call not in hparam_calls and dotted(call.func) not in _PURE for call in calls):
        return False
    if not all(isinstance(node, (*_REPEATABLE, cst.Call)) for node in walk(value)):
        return False
    names = {dotted(node) or "" for node in walk(value) if isinstance(node, (cst.Name, cst.Attribute))}
    return all(len(location.file.values_of({name}, location.function)) <= 1 for name in names)


def _assignments(
    optimizer: Optimizer, call: cst.Call, location: EngineLocation
) -> tuple[cst.BaseSmallStatement, ...] | str:
    """Return the statements that make and wrap the optimizer, to take out; or what else needs it before its engine."""
    wrap = optimizer.wraps[0]
    going: list[cst.BaseSmallStatement] = []
    for made in (call, wrap.call):
        statement = _statement(location.file, made)
        if statement is None:
            return "it is made inside of another expression"
        if statement not in going:
            going.append(statement)
    names = {optimizer.target, *optimizer.names, *([name] if (name := dotted(wrap.argument)) is not None else [])}
    inside = {node for statement in going for node in walk(statement)}
    passing = {name for name in names if not name.startswith("self.") and name != optimizer.target}
    above = location.statements_above
    for line in location.function.body.body:
        for node in walk(line):
            if node not in inside and dotted(node) in (names if line in above else passing):
                return f"line {location.file.position(node)[0]} uses it"
    return tuple(going)


def _statement(file: SourceFile, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """Return the assignment of one name, or the expression statement, whose value the node is (or is wrapped in)."""
    for ancestor in file.ancestors(node):
        if isinstance(ancestor, cst.Assign):
            return ancestor if len(ancestor.targets) == 1 and dotted(ancestor.targets[0].target) else None
        if isinstance(ancestor, cst.Expr):
            return ancestor
        if isinstance(ancestor, cst.BaseSmallStatement):
            return None
    return None
