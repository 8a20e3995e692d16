"""Convert ``pytorch.init`` and ``Trainer`` in scripts to those of the DeepSpeed API."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.rules.wrap_edits import remove_statement, trim_comma
from ds_migrate.syntax.dict_literal import add_pairs
from ds_migrate.syntax.nodes import argument, dotted, has_star, number, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

CODE = Code.LAUNCH

_STEPS = "gradient_accumulation_steps of the hyperparameters"
_OTHER_UNITS = ("determined.pytorch.Epoch", "determined.pytorch.Record")
# The first parameters of fit(), in their order.
_BATCHED = ("checkpoint_period", "validation_period", "max_length", "reporting_period")


def apply_file(file: SourceFile, context_names: Sequence[RuleContext]) -> None:
    ctx = context_names[0]
    accumulation: cst.BaseExpression | None = None
    calls = file.nodes(cst.Call)
    for call in calls:
        if file.names.qualified(call.func) == "determined.pytorch.init":
            accumulation = _init(ctx, file, call) or accumulation
    for call in calls:
        if not isinstance(call.func, cst.Attribute):
            continue
        if call.func.attr.value == "configure_profiler":
            if remove_statement(file, call):
                ctx.converted(CODE, file, call, "configure_profiler did nothing; fit(profiling_enabled=True) profiles")
            else:
                ctx.blocked(CODE, file, call, "the value of configure_profiler() is used", "remove the call")
        elif call.func.attr.value == "fit" and accumulation is not None:
            _shorten(ctx, file, call, accumulation)


def aggregations_of(file: SourceFile) -> set[int | float | None]:
    """Return the ``aggregation_frequency`` of each call of ``init``: 1 where it gives none, None for no number."""
    found: set[int | float | None] = set()
    for call in file.nodes(cst.Call):
        if file.names.qualified(call.func) == "determined.pytorch.init":
            given = argument(call, None, "aggregation_frequency")
            found.add(1 if given is None else number(given.value))
    return found


def _init(ctx: RuleContext, file: SourceFile, call: cst.Call) -> cst.BaseExpression | None:
    """Let literal hyperparameters name the DeepSpeed config, and move ``aggregation_frequency`` there; returns it where
    it may be more than 1."""
    hparams = argument(call, None, "hparams")
    literal = None if hparams is None else _literal(file, call, hparams.value)
    pairs: dict[str, str] = {}
    if literal is not None and (path := _beside(ctx, file)) and not _has(literal, "deepspeed_config"):
        pairs["deepspeed_config"] = path
        ctx.converted(CODE, file, literal, "these hyperparameters name the DeepSpeed config, as experiment configs do")
    given = argument(call, None, "aggregation_frequency")
    value = None if given is None else number(given.value)
    steps = given.value if given is not None and value != 1 else None
    if steps is not None and not (
        (hparams is not None or _needs_none(ctx)) and (value is not None or _is_plain(steps))
    ):
        ctx.blocked(
            CODE, file, steps, f"aggregation_frequency={expression_text(steps)} must move to the hyperparameters",
            'pass init(hparams={..., "overwrite_deepspeed_args": {"gradient_accumulation_steps": K}}), '
            "and divide batch periods by K",
        )  # fmt: skip
        return None
    if given is not None and steps is not None and hparams is None:
        made = f'{{"overwrite_deepspeed_args": {{"gradient_accumulation_steps": {expression_text(steps)}}}'
        path = _beside(ctx, file)
        file.replace(given.keyword or given, "hparams")
        file.replace(given.value, f'{made}, "deepspeed_config": {path}}}' if path else f"{made}}}")
        ctx.converted(CODE, file, steps, f"accumulation over {expression_text(steps)} micro-batches: {_STEPS}")
    elif given is not None:
        _remove(file, call, given)
    if steps is not None and hparams is not None:
        accumulation = f'{{"gradient_accumulation_steps": {expression_text(steps)}}}'
        if literal is None or (value is None and literal is not hparams.value):  # its names may not be known there yet
            merged = f'{{**{expression_text(hparams.value)}, "overwrite_deepspeed_args": {accumulation}}}'
            file.replace(hparams.value, merged)
        else:
            pairs["overwrite_deepspeed_args"] = accumulation
        ctx.converted(CODE, file, steps, f"accumulation over {expression_text(steps)} micro-batches: {_STEPS}")
        if value is None and ctx.configured is not None and ctx.configured.configs:
            ctx.review(
                CODE, file, steps,
                f"lengths in batches of experiment configs stay: what {expression_text(steps)} is, is not known",
                f"divide them by {expression_text(steps)}",
            )  # fmt: skip
    if literal is not None and pairs and file.edits.once(literal, CODE):
        file.change(literal, partial(add_pairs, pairs=pairs, room=file.width - _line_length(file, literal)))
    return steps


def _needs_none(ctx: RuleContext) -> bool:
    """Return whether the trial reads no hyperparameters of its context: it had none."""
    used = {use.attr for names in ctx.context_names.values() for use in names.uses}
    return not used & {"get_hparam", "get_hparams", "get_per_slot_batch_size", "get_global_batch_size"}


def _is_plain(value: cst.BaseExpression) -> bool:
    """Return whether an expression may be written down a second time: it reads, and calls nothing."""
    return isinstance(value, (cst.Name, cst.Attribute, cst.Subscript)) and not any(
        isinstance(node, cst.Call) for node in walk(value)
    )


def _literal(file: SourceFile, call: cst.Call, value: cst.BaseExpression) -> cst.Dict | None:
    """Return the dict literal that ``value`` is or names, when nothing else than hyperparameters is read from it."""
    if isinstance(value, cst.Dict):
        return value
    if not isinstance(value, cst.Name):
        return None
    scope: cst.CSTNode = file.function(call) or file.module
    assigned = file.values_of({value.value}, scope) or file.values_of({value.value}, file.module)
    if len(assigned) != 1 or not isinstance(assigned[0], cst.Dict):
        return None
    for name in file.nodes(cst.Name):
        parent = file.parent(name)
        if name.value != value.value or parent is None or isinstance(parent, cst.AssignTarget):
            continue
        given = isinstance(parent, cst.Arg) and parent.keyword is not None and parent.keyword.value == "hparams"
        read = isinstance(parent, (cst.Subscript, cst.Attribute)) and parent.value is name
        if not (given or read):
            return None
    return assigned[0]


def _line_length(file: SourceFile, node: cst.CSTNode) -> int:
    return len(file.text.splitlines()[file.position(node)[0] - 1])


def _has(literal: cst.Dict, key: str) -> bool:
    return any(
        isinstance(element, cst.DictElement)
        and isinstance(element.key, cst.SimpleString)
        and element.key.evaluated_value == key
        for element in literal.elements
    )


def _beside(ctx: RuleContext, file: SourceFile) -> str:
    """Return the path of the trial's DeepSpeed config as an expression; "" where it is in another folder, which the
    trial's own code knows."""
    if ctx.trial.facts.path.parent != file.path.parent:
        return ""
    if file.path.suffix == ".ipynb":  # it has no __file__, it runs in its folder
        return f'"{ctx.ds_config_name}"'
    return f'str({file.imports.name("pathlib", "Path")}(__file__).with_name("{ctx.ds_config_name}"))'


def _remove(file: SourceFile, call: cst.Call, given: cst.Arg) -> None:
    file.change(given, lambda _: cst.RemoveFromParent())
    file.change(call, trim_comma)


def _shorten(ctx: RuleContext, file: SourceFile, call: cst.Call, steps: cst.BaseExpression) -> None:
    """Divide every length in batches that ``fit`` is given."""
    if has_star(call):
        ctx.review(
            CODE, file, call, "lengths that fit() is given behind * or ** stay: those in batches count micro-batches",
            f"divide those by {expression_text(steps)}",
        )  # fmt: skip
    for position, name in enumerate(_BATCHED):
        arg = argument(call, position, name)
        for value in _values(file, call, arg.value) if arg is not None else ():
            unit = file.names.qualified(value.func) if isinstance(value, cst.Call) else None
            if isinstance(value, cst.Call) and unit == "determined.pytorch.Batch" and value.args:
                _divide(ctx, file, value, name, steps, call)
            elif unit not in _OTHER_UNITS and dotted(value) != "None":
                ctx.review(
                    CODE, file, value, f"{name} is {expression_text(value)}: whether that is in batches is not known",
                    f"divide it by {expression_text(steps)} where it is in batches",
                )  # fmt: skip


def _values(file: SourceFile, call: cst.Call, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the values that an argument of ``fit`` may have, through branches and names of the same function."""
    if isinstance(value, cst.IfExp):
        return [v for branch in (value.body, value.orelse) for v in _values(file, call, branch)]
    if isinstance(value, cst.Name) and value.value != "None":
        given = file.values_of({value.value}, file.function(call) or file.module)
        return [v for one in given if dotted(one) != value.value for v in _values(file, call, one)] or [value]
    return [value]


def _divide(
    ctx: RuleContext, file: SourceFile, batches: cst.Call, name: str, steps: cst.BaseExpression, call: cst.Call
) -> None:
    if not file.edits.once(batches, CODE):
        return
    length = batches.args[0].value
    value, divisor = number(length), number(steps)
    text = expression_text(steps)
    if isinstance(value, int) and isinstance(divisor, int):
        file.replace(length, str(max(value // divisor, 1)))
        if value % divisor:
            ctx.review(CODE, file, batches, f"{value} micro-batches are not whole batches of {divisor}")
    elif isinstance(divisor, int) or file.function(batches) is file.function(call):
        plain = isinstance(length, (cst.Integer, cst.Name, cst.Attribute, cst.Subscript, cst.Call))
        whole = expression_text(length) if plain else f"({expression_text(length)})"
        file.replace(length, f"max({whole} // {text}, 1)")
    else:
        ctx.blocked(CODE, file, batches, f"{name} counts micro-batches", f"divide it by {text}")
        return
    ctx.converted(CODE, file, batches, f"{name} counts batches of {text} micro-batches")
