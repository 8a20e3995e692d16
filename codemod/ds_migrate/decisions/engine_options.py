"""The precision, the offload and the optimizer that the command line requests, and whether a trial can have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ds_migrate.decisions.autocast import Autocast
from ds_migrate.decisions.config_optimizer import ConfigOptimizer, config_optimizer
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.decisions.zero_hazards import forward_past_engine
from ds_migrate.decisions.zero_stage import ZeroStage
from ds_migrate.options import Options
from ds_migrate.targets import Target
from ds_migrate.trial.model import Trial

_HALF = ("bf16", "fp16")
_PRECISION: Mapping[str, Mapping[str, object]] = {
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True}},
    "autocast": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
}


@dataclass(frozen=True)
class EngineOptions:
    """``precision`` is None where the trial's own stays. What is refused has a sentence with the reason."""

    precision: str | None = None
    precision_refused: str = ""
    offload: str = "none"
    offload_refused: str = ""
    optimizer: ConfigOptimizer | None = None
    optimizer_refused: str = ""

    @property
    def casts(self) -> bool:
        """Return whether the model computes in another type than the code around it."""
        return self.precision in _PRECISION

    def zero_config(self) -> dict[str, object]:
        """Return keys of the config's block ``zero_optimization``."""
        device = {"device": "cpu"}
        found: dict[str, object] = {}
        if self.offload != "none":
            found["offload_optimizer"] = dict(device)
        if self.offload == "parameters":
            found["offload_param"] = dict(device)
        return found

    def config(self) -> dict[str, object]:
        """Return top-level keys of the DeepSpeed config."""
        found: dict[str, object] = dict(_PRECISION.get(self.precision or "", {}))
        if self.optimizer is not None:
            found["optimizer"] = self.optimizer.config()
        elif self.offload != "none":
            found["zero_force_ds_cpu_optimizer"] = False
        return found


def choose_options(
    trial: Trial,
    form: Form,
    location: EngineLocation,
    zero: ZeroStage,
    autocast: Autocast,
    options: Options,
    target: Target,
) -> EngineOptions:
    """Return what the trial gets of ``options``."""
    precision_refused = offload_refused = optimizer_refused = ""
    optimizer: ConfigOptimizer | None = None
    if options.precision is not None:
        precision_refused = _refuse_precision(trial, form, zero, autocast, options.precision, target)
    if options.offload != "none":
        offload_refused = _refuse_offload(form, zero, options.offload)
    if options.optimizer_in_config:
        found = config_optimizer(trial, form, location, offloads=options.offload != "none")
        optimizer, optimizer_refused = (None, found) if isinstance(found, str) else (found, "")
    return EngineOptions(
        options.precision, precision_refused, options.offload, offload_refused, optimizer, optimizer_refused
    )


def _refuse_precision(
    trial: Trial, form: Form, zero: ZeroStage, autocast: Autocast, precision: str, target: Target
) -> str:
    """Return why the trial cannot have a precision, "" where it can."""
    if precision == "fp32":
        if autocast.blocks and form is not Form.SIMPLE:
            file, block = autocast.blocks[0]
            return f"its own autocast stays around forwards ({file.path.name}, line {file.position(block)[0]})"
        return ""
    if form is not Form.SIMPLE:
        return "the trial calls its models directly, not through an engine, which is what would change the precision"
    if past := forward_past_engine(trial):
        return past
    if precision in _HALF and zero.stage == 0 and zero.reason:
        return f"the optimizer steps float32 copies of the weights then, and {zero.reason}"
    if not target.ships_helpers:
        return "determined has nothing that casts between the model and the code around it"
    return ""


def _refuse_offload(form: Form, zero: ZeroStage, offload: str) -> str:
    """Return why the trial cannot have an offload, "" where it can."""
    if form is not Form.SIMPLE:
        return "the trial calls its models directly, not through an engine, which is exact without offload only"
    if offload == "parameters" and zero.stage != 3:
        return f"only stage 3 can, and this is {zero.stage}"
    if zero.stage == 0:
        return "stages 1 to 3 can, and this is 0" + (f" ({zero.reason})" if zero.reason else "")
    return ""
