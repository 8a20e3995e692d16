"""``deepspeed.initialize`` makes the engine, ``wrap_model_engine`` registers it."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.decisions.micro_batch import micro_batch_size
from ds_migrate.rules.codes import Code
from ds_migrate.rules.generated_helpers import engine_module
from ds_migrate.rules.wrap_edits import children_of, expression_text
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile
from ds_migrate.targets import Target
from ds_migrate.trial.model import Form, Optimizer, Trial

CODE = Code.ENGINE
_WIDTH = 100


def apply(ctx: RuleContext) -> None:
    trial = ctx.trial
    if trial.place is None:
        return
    place = trial.place
    file = place.file
    if not ctx.target.ships_helpers and (trial.form is Form.COLLECTED or (ctx.accumulates and not trial.managed)):
        what = "engines made in loops or branches" if trial.form is Form.COLLECTED else "accumulation over such engines"
        ctx.blocked(
            CODE, file, place.statement, f"Determined's DeepSpeedTrial has no way to say {what}",
            "convert for the bundled runtime (--target runtime)",
        )  # fmt: skip
        return
    if trial.stage_refused:
        ctx.blocked(
            CODE, file, place.statement, f"ZeRO stage {trial.stage} would change the numbers: {trial.stage_refused}",
            "leave --zero out, or take that out of the trial",
        )  # fmt: skip
        return
    if not file.edits.once(place.statement, CODE):
        return
    names = _Names(ctx, file, place)
    lines = names.config_lines()
    if trial.form is Form.SIMPLE:
        lines += _simple_engine(names)
    elif trial.form is Form.COLLECTED:
        lines.append(f"{names.context}.engines.initialize({names.config})")
    else:
        for optimizer in trial.optimizers:
            lines += _engine_of(names, optimizer)
    file.after(place.statement, "\n".join(lines))
    what = "the engine is made" if trial.form is Form.SIMPLE else "one engine per optimizer is made"
    stage = f"ZeRO stage {trial.stage}" + (f" ({trial.stage_reason})" if trial.stage_reason else "")
    ctx.converted(CODE, file, place.statement, f"{what} here; {stage}")


class _Names:
    """The names that the generated lines use, each free in its file."""

    def __init__(self, ctx: RuleContext, file: SourceFile, place: EngineLocation) -> None:
        self.ctx, self.file, self.place = ctx, file, place
        self.context = context_at(ctx.trial, place)
        self.hparams = file.names.free("hparams", "ds_hparams")
        self.config = file.names.free("ds_config")
        self.engine = file.names.free("engine", "ds_engine")
        self.width = _WIDTH

    def config_lines(self) -> list[str]:
        ctx, file = self.ctx, self.file
        asked = {use.attr for context_names in ctx.context_names.values() for use in context_names.uses}
        known = bool(asked & {"get_hparam", "get_hparams", "get_per_slot_batch_size", "get_global_batch_size"})
        configured = ctx.configured is not None and bool(ctx.configured.configs)
        overwrite = ctx.deepspeed_name(file, "overwrite_deepspeed_config")
        beside = f'"{ctx.ds_config_name}"'  # a notebook has no __file__, it runs in its folder
        if file.path.suffix != ".ipynb":
            beside = f"str({file.imports.name('pathlib', 'Path')}(__file__).with_name({beside}))"
        values = [f'"train_micro_batch_size_per_gpu": {micro_batch_size(ctx, self.context)},']
        shared = shared_clipping(ctx.trial)
        if shared is not None:
            values.append(f'"gradient_clipping": {shared},')
        precision = ctx.trial.precision
        if precision.condition is not None:
            on = f'{self.context}.device.type == "cuda"'
            enabled = f"{on} and {precision.condition}" if precision.condition else on
            values.append(f'"torch_autocast": {{"enabled": {enabled}, "dtype": "{precision.dtype}"}},')
        made = ctx.trial.asked.optimizer
        if made is not None and made.computed:
            computed = ", ".join(f'"{name}": {value}' for name, value in made.computed.items())
            values.append(f'"optimizer": {{"params": {{{computed}}}}},')
        values.append(f'**{self.hparams}.get("overwrite_deepspeed_args", {{}}),')
        if not known and not configured:  # such a context may have no hyperparameters: get_hparams() would raise
            return [
                f"{self.config} = {overwrite}(",
                f"    {beside},",
                f"    {{{' '.join(values[:-1]).rstrip(',')}}},",
                ")",
            ]
        return [
            f"{self.hparams} = {self.context}.get_hparams()",
            f"{self.config} = {overwrite}(",
            f'    {self.hparams}.get("deepspeed_config", {beside}),',
            "    {",
            *(f"        {value}" for value in values),
            "    },",
            ")",
        ]

    def initialize(self, model: str, optimizer: str, config: str, target: str = "") -> list[str]:
        deepspeed = self.file.imports.module("deepspeed")
        head = f"{self.engine}, {target or optimizer}, _, _ = {deepspeed}.initialize("
        scheduler = self.ctx.trial.engine_scheduler
        given = [f"optimizer={optimizer}"] if self.ctx.trial.asked.optimizer is None else []
        parts = [f"model={model}", *given, *([f"lr_scheduler={scheduler}"] if scheduler else [])]
        arguments = ", ".join([*parts, f"config={config}"])
        depth = 8
        if depth + len(head) + len(arguments) + 1 <= self.width:
            return [f"{head}{arguments})"]
        if depth + 4 + len(arguments) <= 120:
            return [head, f"    {arguments}", ")"]
        return [head, *(f"    {part}," for part in (*parts, f"config={config}")), ")"]


def context_at(trial: Trial, place: EngineLocation) -> str:
    """How the engine's place can call the context: as the wraps there do."""
    wraps = [w for o in trial.optimizers for w in o.wraps] + [w for m in trial.models for w in m.wraps]
    for wrap in wraps:
        name = dotted(wrap.use.receiver)
        if name is not None and (wrap.use.function is place.function or name.startswith("self.")):
            return name
    return "self.context"


def shared_clipping(trial: Trial) -> str | None:
    """The norm expression when one is known at run time only and is the same for every engine."""
    norms = {
        expression_text(c.max_norm) for c in trial.clipping.values() if c.max_norm is not None and c.literal is None
    }
    plain = [o for o in trial.optimizers if o not in trial.clipping or trial.clipping[o].max_norm is None]
    literal = any(c.literal is not None for c in trial.clipping.values())
    return norms.pop() if len(norms) == 1 and not plain and not literal else None


def _simple_engine(names: _Names) -> list[str]:
    trial = names.ctx.trial
    model, optimizer = trial.models[0], trial.optimizers[0]
    engine = names.engine
    if trial.asked.casts or (trial.precision.condition is not None and names.ctx.target.ships_helpers):
        engine = f"{names.ctx.deepspeed_name(names.file, 'float32_outside')}({engine})"
    return [
        *names.initialize(model.raw or model.target, optimizer.raw or optimizer.target, names.config, optimizer.target),
        f"{model.target} = {names.context}.wrap_model_engine({engine})",
    ]


def _engine_of(names: _Names, optimizer: Optimizer) -> list[str]:
    ctx = names.ctx
    trial = ctx.trial
    if ctx.target.ships_helpers:
        module = ctx.deepspeed_name(names.file, "EngineModule")
    else:
        module = engine_module(ctx, names.file)
    children = ", ".join(f"{name}={target}" for name, target in children_of(trial, optimizer).items())
    clipping = trial.clipping.get(optimizer)
    config = names.config
    if (
        shared_clipping(trial) is None
        and clipping is not None
        and clipping.max_norm is not None
        and not _all_same_literal(trial)
    ):
        config = f'{{**{names.config}, "gradient_clipping": {expression_text(clipping.max_norm)}}}'
    return [
        *names.initialize(f"{module}({optimizer.target}, {children})", optimizer.target, config),
        f"{optimizer.engine} = {names.context}.wrap_model_engine({names.engine})",
    ]


def _all_same_literal(trial: Trial) -> bool:
    values = {trial.clipping[o].literal if o in trial.clipping else None for o in trial.optimizers}
    return len(values) == 1 and values != {None}


def static_config(trial: Trial, target: Target) -> dict[str, object]:
    """What of the DeepSpeed config is known now: the content of ds_config.json."""
    literal = next((c.literal for c in trial.clipping.values()), None) if _all_same_literal(trial) else None
    config: dict[str, object] = {
        "gradient_clipping": float(literal) if literal is not None else 0.0,
        "zero_optimization": {"stage": trial.stage, **trial.asked.zero()},
        **trial.asked.config(),
    }
    if trial.stage > 0 and not trial.tested_optimizer:
        config["zero_allow_untested_optimizer"] = True
    if not trial.managed and target.ships_helpers:
        config["managed_gradient_accumulation"] = False
    return config
