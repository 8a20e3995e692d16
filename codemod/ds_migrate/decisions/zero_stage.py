"""The ZeRO stage of a trial, and why it is not higher."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ds_migrate.decisions.config_optimizer import is_stateless
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.decisions.zero_hazards import forward_past_engine, parameter_hazard, setting_hazard
from ds_migrate.deepspeed_facts import ELEMENTWISE_OPTIMIZERS, ZERO_TESTED_OPTIMIZERS
from ds_migrate.options import Options
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.gradient_access import handles_gradients, hooks_gradients
from ds_migrate.trial.model import Trial

NOTHING_TO_SHARD = "SGD without momentum keeps no state to shard"


@dataclass(frozen=True)
class ZeroStage:
    """``reason``: why the stage is not higher. ``refused``: why the requested stage is not exact here.

    ``has_tested_optimizer``: the optimizer is on DeepSpeed's own list for ZeRO.
    """

    stage: int
    reason: str = ""
    refused: str = ""
    has_tested_optimizer: bool = False


def choose_stage(
    trial: Trial, location: EngineLocation, form: Form, managed: bool, keeps_clip: bool, options: Options
) -> ZeroStage:
    """Return the highest stage that is exact for the trial, or the one that ``options`` name.

    ``managed``: DeepSpeed counts accumulation itself. ``keeps_clip``: some step clips as no config can express.
    """
    if form is Form.SIMPLE and not managed:
        highest = ZeroStage(0, "backward and step are not called exactly once per micro-batch")
    elif form is Form.SIMPLE:
        highest = _sharded(trial, location, keeps_clip, options)
    elif form is Form.COLLECTED:
        highest = ZeroStage(0, "its models and optimizers are known only when it runs")
    else:
        highest = ZeroStage(0, "the trial calls its models directly, not through an engine")
    if options.zero is None:
        return highest
    tested, refused = highest.has_tested_optimizer, ""
    if options.zero <= highest.stage:
        refused = ""
    elif form is Form.COLLECTED:
        refused = highest.reason
    elif form is Form.PER_OPTIMIZER and options.zero > 1:
        refused = "the trial calls its models directly, not through an engine, which works at stages 0 and 1 only"
    elif form is Form.PER_OPTIMIZER:
        sharded = _sharded(trial, location, keeps_clip, options)
        tested, refused = sharded.has_tested_optimizer, sharded.reason
    elif highest.reason:
        refused = highest.reason
    elif options.zero == 3:
        refused = forward_past_engine(trial)
    return ZeroStage(options.zero, "" if options.zero else highest.reason, refused, tested)


def _asks_for_shards(options: Options) -> bool:
    """Return whether the command line asks for what only a sharded optimizer has: float32 weights beside those in half
    precision are its state, too, and offload moves shards."""
    return bool(options.zero) or options.precision in ("bf16", "fp16") or options.offload != "none"


def _sharded(trial: Trial, location: EngineLocation, keeps_clip: bool, options: Options) -> ZeroStage:
    """Return stage 1, or stage 0 with why sharded optimizer state would not give the trial's numbers."""
    if keeps_clip:
        return ZeroStage(0, "gradients are clipped by the trial's own function")
    if location.has_late_schedule:
        return ZeroStage(0, "a learning rate schedule is made after the engine")
    tested = True
    for optimizer in trial.optimizers:
        kinds = {_class_of(w.file, w.argument, w.use.function) for w in optimizer.wraps}
        for kind in kinds - ELEMENTWISE_OPTIMIZERS:
            return ZeroStage(0, f"{kind or 'the optimizer'} is not known to be elementwise", "", tested)
        if "torch.optim.Adagrad" in kinds and options.target == "determined":  # the bundled runtime keeps the trial's
            reason = "DeepSpeed replaces an Adagrad by its own, without parameter groups and schedules"
            return ZeroStage(0, reason, "", tested)
        tested = tested and kinds <= ZERO_TESTED_OPTIMIZERS
    if handles_gradients(trial) or hooks_gradients(trial):
        return ZeroStage(0, "the trial reads or clips gradients itself", "", tested)
    reason = parameter_hazard(trial, location) or setting_hazard(trial)
    if not reason and not _asks_for_shards(options) and all(map(is_stateless, trial.optimizers)):
        reason = NOTHING_TO_SHARD
    return ZeroStage(0 if reason else 1, reason, "", tested)


def _class_of(file: SourceFile, node: cst.BaseExpression, function: cst.FunctionDef | None) -> str | None:
    """Return the full name of the class that makes an optimizer, None where it cannot be determined."""
    for _ in range(3):
        if isinstance(node, cst.Call):
            return file.names.qualified(node.func)
        name = dotted(node)
        if name is None or function is None:
            return None
        values = [v for v in file.values_of({name}, function) if not _is_wrap(v)]
        kinds = {file.names.qualified(v.func) for v in values if isinstance(v, cst.Call)}
        if len(values) > 1 and len(kinds) == 1:
            return kinds.pop()
        if len(values) != 1:
            return None
        node = values[0]
    return None


def _is_wrap(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and (dotted(node.func) or "").endswith(".wrap_optimizer")
