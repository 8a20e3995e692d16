"""Load a DeepSpeedTrial into one plain process, with the weights of a checkpoint in its modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from deepspeed.pipe import PipelineModule

from trial_runtime import core
from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch.deepspeed._checkpoints.export import consolidated_state_dict
from trial_runtime.pytorch.deepspeed._context import DeepSpeedTrialContext
from trial_runtime.pytorch.deepspeed._engine import engine_setup
from trial_runtime.pytorch.deepspeed._patches import applied_to_load


def load(
    folder: Path, kind: Any, hparams: dict[str, Any] | None, exp_conf: dict[str, Any] | None, more: dict[str, Any]
) -> Any:
    """Make the trial and give its engines the weights, in evaluation mode.

    Args:
        folder: the checkpoint.
        kind: the trial's class.
        hparams, exp_conf: what its context gives it.
        more: further arguments of the class.
    """
    run = core._dummy_init()
    context = DeepSpeedTrialContext._make(run, hparams, exp_conf)
    with engine_setup.started(run.distributed), applied_to_load():
        trial = kind(context, **more)
    for index, engine in enumerate(context.models):
        state = consolidated_state_dict(folder, index)
        if isinstance(engine.module, PipelineModule):
            _load_layers(engine.module, state)
        else:
            engine.module.load_state_dict(state)
        engine.eval()
    return trial


def _load_layers(pipeline: Any, state: dict[str, Any]) -> None:
    given: dict[int, dict[str, Any]] = {}
    for number, layer in enumerate(pipeline.forward_funcs):
        if not hasattr(layer, "load_state_dict"):
            continue
        prefix = f"{number}."
        own = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
        former = given.setdefault(id(layer), own)  # a tied layer comes again
        differing = [name for name, value in own.items() if not torch.equal(value, former[name])]
        if differing:
            raise InvalidCheckpointException(
                f"Layer {number} ({type(layer).__name__}) is tied to an earlier one, but training left them different "
                f"in {', '.join(differing)}: DeepSpeed ties only what tied_weight_attr names. One process has "
                "one layer for both. Use consolidated_state_dict(), which has each."
            )
        layer.load_state_dict(own)
