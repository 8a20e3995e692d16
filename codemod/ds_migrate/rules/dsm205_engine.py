"""Make the engine with ``deepspeed.initialize`` and register it with ``wrap_model_engine``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.decisions.micro_batch import micro_batch_size
from ds_migrate.rules.codes import Code
from ds_migrate.rules.dsm204_gradient_clipping import config_entries, engine_config
from ds_migrate.rules.dsm330_launch import aggregations_of
from ds_migrate.rules.generated_helpers import engine_module
from ds_migrate.rules.wrap_edits import children_of
from ds_migrate.syntax.nodes import dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.hyperparameters import unpacked_hyperparameters
from ds_migrate.trial.model import Optimizer, Trial

CODE = Code.ENGINE
_WIDTH = 100


def apply(ctx: RuleContext) -> None:
    plan = ctx.plan
    location, file = plan.location, plan.location.file
    if not ctx.target.ships_helpers and (
        plan.form is Form.COLLECTED or (plan.accumulation.is_used and not plan.managed)
    ):
        what = "engines made in loops or branches" if plan.form is Form.COLLECTED else "accumulation over such engines"
        ctx.blocked(
            CODE, file, location.statement, f"Determined's DeepSpeedTrial cannot express {what}",
            "convert for the bundled runtime (--target runtime)",
        )  # fmt: skip
        return
    if plan.zero.refused:
        ctx.blocked(
            CODE, file, location.statement,
            f"ZeRO stage {plan.zero.stage} would change the numbers: {plan.zero.refused}",
            "leave out --zero, or remove that from the trial",
        )  # fmt: skip
        return
    if not file.edits.once(location.statement, CODE):
        return
    names = _Names(ctx, file)
    lines = names.config_lines()
    if plan.form is Form.SIMPLE:
        lines += _simple_engine(names)
    elif plan.form is Form.COLLECTED:
        lines.append(f"{names.context}.engines.initialize({names.config})")
    else:
        for optimizer in plan.trial.optimizers:
            lines += _engine_of(names, optimizer)
    file.after(location.statement, "\n".join(lines))
    what = "the engine is made" if plan.form is Form.SIMPLE else "one engine per optimizer is made"
    stage = f"ZeRO stage {plan.zero.stage}" + (f" ({plan.zero.reason})" if plan.zero.reason else "")
    ctx.converted(CODE, file, location.statement, f"{what} here; {stage}")
    for unpacking, arg in names.unpacks if plan.accumulation.is_used else ():
        if unpacking.edits.once(arg, CODE):
            unpacking.change(arg.value, _without_accumulation)
            ctx.converted(CODE, unpacking, arg, "the hyperparameters are unpacked as they were, without the added one")


def _without_accumulation(updated: cst.CSTNode) -> cst.CSTNode:
    """Return hyperparameters without the one that holds the accumulation steps."""
    assert isinstance(updated, cst.BaseExpression)
    condition = 'name != "overwrite_deepspeed_args"'
    made = cst.parse_expression(f"{{name: value for name, value in hparams.items() if {condition}}}")
    assert isinstance(made, cst.DictComp)
    whole = updated if isinstance(updated, (cst.Name, cst.Attribute, cst.Call)) or updated.lpar else _grouped(updated)
    items = cst.Call(cst.Attribute(whole, cst.Name("items")))
    return made.with_changes(for_in=made.for_in.with_changes(iter=items))


def _grouped(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class _Names:
    """The names that the generated lines use, each free in its file."""

    def __init__(self, ctx: RuleContext, file: SourceFile) -> None:
        self.ctx, self.file = ctx, file
        self.context = context_at(ctx.trial, ctx.plan.location)
        self.hparams = file.names.free("hparams", "ds_hparams")
        self.config = file.names.free("ds_config")
        self.engine = file.names.free("engine", "ds_engine")
        self.width = min(_WIDTH, file.width)
        self.unpacks = unpacked_hyperparameters(ctx.trial)

    def config_lines(self) -> list[str]:
        ctx, file = self.ctx, self.file
        asked = {use.attr for context_names in ctx.context_names.values() for use in context_names.uses}
        known = bool(asked & {"get_hparam", "get_hparams", "get_per_slot_batch_size", "get_global_batch_size"})
        configured = ctx.configured is not None and bool(ctx.configured.configs)
        overwrite = ctx.deepspeed_name(file, "overwrite_deepspeed_config")
        beside = f'"{ctx.ds_config_name}"'  # a notebook has no __file__, it runs in its folder
        if file.path.suffix != ".ipynb":
            beside = f"str({file.imports.name('pathlib', 'Path')}(__file__).with_name({beside}))"
        always = ctx.configured.always if ctx.configured is not None else ()
        # Where a script accumulates, init() is given hyperparameters; another context may have none, and get_hparams()
        # would raise.
        by_script = any(aggregations_of(each) - {1} for each in ctx.context_names)
        given = None if known or by_script else _given_hparams(ctx.plan.location)
        by_name = given is not None and given.default is None
        if given is not None and by_name:
            self.hparams = given.name.value
        size = micro_batch_size(ctx.trial, ctx.plan.location, self.context, asked, always if given is None else ())
        if given is not None and "global_batch_size" in always:
            size = f'{self.hparams}["global_batch_size"] // {self.context}.distributed.get_size()'
        values = [f'"train_micro_batch_size_per_gpu": {size},', *config_entries(ctx.plan)]
        condition = ctx.plan.autocast_condition
        if condition is not None:
            on = f'{self.context}.device.type == "cuda"'
            enabled = f"{on} and {condition}" if condition else on
            values.append(f'"torch_autocast": {{"enabled": {enabled}, "dtype": "{ctx.plan.autocast.dtype}"}},')
        made = ctx.plan.options.optimizer
        if made is not None and made.computed:
            computed = ", ".join(f'"{name}": {value}' for name, value in made.computed.items())
            values.append(f'"optimizer": {{"params": {{{computed}}}}},')
        values.append(f'**{self.hparams}.get("overwrite_deepspeed_args", {{}}),')
        if not (known or configured or by_script):
            return [
                f"{self.config} = {overwrite}(",
                f"    {beside},",
                f"    {{{' '.join(values[:-1]).rstrip(',')}}},",
                ")",
            ]
        path = f'{self.hparams}.get("deepspeed_config", {beside})'
        return [
            *([] if by_name else [f"{self.hparams} = {self._hparams(given)}"]),
            f"{self.config} = {overwrite}(",
            f"    {beside if self.unpacks else path},",
            "    {",
            *(f"        {value}" for value in values),
            "    },",
            ")",
        ]

    def _hparams(self, given: cst.Param | None) -> str:
        """Return the hyperparameters: those that ``__init__`` is given, where the context may have none."""
        asked = f"{self.context}.get_hparams()"
        if given is None:
            return asked
        return f"{given.name.value} or {asked}"

    def initialize(self, model: str, optimizer: str, config: str, target: str = "") -> list[str]:
        deepspeed = self.file.imports.module("deepspeed")
        head = f"{self.engine}, {target or optimizer}, _, _ = {deepspeed}.initialize("
        scheduler = self.ctx.engine_scheduler
        given = [f"optimizer={optimizer}"] if self.ctx.plan.options.optimizer is None else []
        parts = [f"model={model}", *given, *([f"lr_scheduler={scheduler}"] if scheduler else [])]
        arguments = ", ".join([*parts, f"config={config}"])
        depth = 8
        if depth + len(head) + len(arguments) + 1 <= self.width:
            return [f"{head}{arguments})"]
        if depth + 4 + len(arguments) <= self.file.width:
            return [head, f"    {arguments}", ")"]
        return [head, *(f"    {part}," for part in (*parts, f"config={config}")), ")"]


def context_at(trial: Trial, location: EngineLocation) -> str:
    """Return the expression of the context where the engine is made: as in the wraps there."""
    for wrap in trial.wraps:
        name = dotted(wrap.use.receiver)
        if name is not None and (wrap.use.function is location.function or name.startswith("self.")):
            return name
    return "self.context"


def _given_hparams(location: EngineLocation) -> cst.Param | None:
    """Return the parameter ``hparams`` of the function that makes the engine, where that uses it as a mapping."""
    found = next((p for p in parameters(location.function) if p.name.value == "hparams"), None)
    read = {
        n.attr.value for n in walk(location.function) if isinstance(n, cst.Attribute) and dotted(n.value) == "hparams"
    }
    return found if read <= {"get", "items", "keys", "values"} else None


def _simple_engine(names: _Names) -> list[str]:
    plan = names.ctx.plan
    model, optimizer = plan.trial.models[0], plan.trial.optimizers[0]
    engine = names.engine
    if plan.options.casts or (plan.autocast_condition is not None and names.ctx.target.ships_helpers):
        engine = f"{names.ctx.deepspeed_name(names.file, 'float32_outside')}({engine})"
    raw_model, raw_optimizer = (plan.raw_names.get(owner, owner.target) for owner in (model, optimizer))
    return [
        *names.initialize(raw_model, raw_optimizer, names.config, optimizer.target),
        f"{model.target} = {names.context}.wrap_model_engine({engine})",
    ]


def _engine_of(names: _Names, optimizer: Optimizer) -> list[str]:
    ctx, plan = names.ctx, names.ctx.plan
    if ctx.target.ships_helpers:
        module = ctx.deepspeed_name(names.file, "EngineModule")
    else:
        module = engine_module(ctx, names.file)
    children = ", ".join(f"{name}={target}" for name, target in children_of(plan.trial, optimizer).items())
    config = engine_config(plan, optimizer, names.config)
    return [
        *names.initialize(f"{module}({optimizer.target}, {children})", optimizer.target, config),
        f"{plan.engine_names[optimizer]} = {names.context}.wrap_model_engine({names.engine})",
    ]
