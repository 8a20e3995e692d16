"""Whether a trial can have the precision, the offload and the optimizer that the command line asks for."""

from __future__ import annotations

from ds_migrate.decisions.config_optimizer import config_optimizer
from ds_migrate.decisions.engine_options import EngineOptions
from ds_migrate.decisions.zero_hazards import forward_past_engine
from ds_migrate.options import Options
from ds_migrate.targets import Target
from ds_migrate.trial.model import Form, Trial

_HALF = ("bf16", "fp16")


def ask(trial: Trial, options: Options, target: Target) -> EngineOptions:
    """What the trial gets of it. Needs the form, the stage and the place of the engines."""
    asked = EngineOptions(options.precision, offload=options.offload)
    if options.precision is not None:
        asked.precision_refused = _without_precision(trial, options.precision, target)
        trial.precision.condition = None  # what the trial asked for itself is replaced
    if options.offload != "none":
        asked.offload_refused = _without_offload(trial, options.offload)
    if options.optimizer_in_config:
        found = config_optimizer(trial, offloads=options.offload != "none")
        if isinstance(found, str):
            asked.optimizer_stays = found
        else:
            asked.optimizer = found
    return asked


def _without_precision(trial: Trial, precision: str, target: Target) -> str:
    if precision == "fp32":
        if trial.precision.blocks and trial.form is not Form.SIMPLE:
            file, block = trial.precision.blocks[0]
            return f"its own autocast stays around forwards ({file.path.name}, line {file.position(block)[0]})"
        return ""
    if trial.form is not Form.SIMPLE:
        return "its forwards go past the engines, which alone know of it"
    if past := forward_past_engine(trial):
        return past
    if precision in _HALF and trial.stage == 0 and trial.stage_reason:
        return f"the optimizer steps float32 copies of the weights then, and {trial.stage_reason}"
    if not target.ships_helpers:
        return "determined has nothing that casts between the model and the code around it"
    return ""


def _without_offload(trial: Trial, offload: str) -> str:
    if trial.form is not Form.SIMPLE:
        return "its forwards go past the engines, where stages 0 and 1 without offload alone are known to be exact"
    if offload == "parameters" and trial.stage != 3:
        return f"only stage 3 can, and this is {trial.stage}"
    if trial.stage == 0:
        return f"stages 1 to 3 can, and this is 0{_because(trial)}"
    return ""


def _because(trial: Trial) -> str:
    return f" ({trial.stage_reason})" if trial.stage_reason else ""
