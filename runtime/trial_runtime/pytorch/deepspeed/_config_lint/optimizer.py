"""Optimizers and schedulers: named in the config, or given by the trial; and what ZeRO and offload do with them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from trial_runtime.pytorch.deepspeed._config_lint.problems import (
    UNKNOWN,
    Problem,
    Problems,
    Setup,
    meant,
    shown,
    stage_of,
    value_at,
)
from trial_runtime.pytorch.deepspeed._config_lint.zero import offload_device

_GONE = ("OneBitAdam", "OneBitLamb", "ZeroOneAdam")
_OF_DEEPSPEED = {  # what DeepSpeed reads out of the parameters itself
    "adam": ("torch_adam", "adam_w_mode", "fp32_optimizer_states"),
    "adamw": ("torch_adam", "adam_w_mode", "fp32_optimizer_states"),
}


def check_optimizer(config: dict[str, Any], setup: Setup) -> Problems:
    """Check the optimizer and the scheduler."""
    yield from _named(config, setup)
    yield from _scheduler(config, setup)
    if setup.optimizer is UNKNOWN or not setup.complete:
        return
    name = value_at(config, "optimizer.type") if isinstance(config.get("optimizer"), dict) else None
    stage = stage_of(config)
    if setup.optimizer is None:
        if name is None and stage in (1, 2):
            yield Problem(
                "optimizer",
                f"ZeRO stage {stage} needs one: give deepspeed.initialize(optimizer=...), or write "
                '{"type": "AdamW", "params": {"lr": ...}}',
            )
        return
    if name is not None:
        yield Problem(
            "optimizer",
            f"the config names {name}, but deepspeed.initialize() was given {_kind(setup.optimizer)}, which is "
            "used: remove one of them",
            fatal=False,
        )
    if isinstance(setup.optimizer, torch.optim.Optimizer):
        yield from _given(config, setup.optimizer, stage)


def _given(config: dict[str, Any], optimizer: torch.optim.Optimizer, stage: int) -> Problems:
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    own = type(optimizer).__module__.startswith("deepspeed.")
    tested = own or type(optimizer) in ZERO_SUPPORTED_OPTIMIZERS
    if stage > 0 and not tested and not value_at(config, "zero_allow_untested_optimizer", False):
        yield Problem(
            "zero_allow_untested_optimizer",
            f"ZeRO stage {stage} refuses {_kind(optimizer)} unless this is true. It is exact for optimizers that "
            "treat each element by itself (SGD, RMSprop...): write true for one of those, else "
            '"zero_optimization": {"stage": 0}',
        )
    offload = offload_device(config, "offload_optimizer")
    for_cpu = type(optimizer).__name__ in ("DeepSpeedCPUAdam", "DeepSpeedCPULion")
    if offload and not for_cpu and value_at(config, "zero_force_ds_cpu_optimizer", True):
        yield Problem(
            "zero_force_ds_cpu_optimizer",
            f"{_kind(optimizer)} is not made for offload: write false to use it all the same, or use "
            "deepspeed.ops.adam.DeepSpeedCPUAdam (needs a C++ compiler)",
        )


def _named(config: dict[str, Any], setup: Setup) -> Problems:
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

    block = config.get("optimizer")
    if not isinstance(block, dict):
        return
    name = block.get("type")
    torch_names = _classes(torch.optim, torch.optim.Optimizer)
    if name is None:
        yield Problem("optimizer.type", 'missing: write a name such as "AdamW", or remove the block')
    elif name in _GONE:
        yield Problem("optimizer.type", f'DeepSpeed does not have {name} any more: write "AdamW" or "Lamb"')
    elif not isinstance(name, str) or (name.lower() not in DEEPSPEED_OPTIMIZERS and name not in torch_names):
        guess = meant(str(name), [*torch_names, *DEEPSPEED_OPTIMIZERS])
        instead = f"did you mean {guess}?" if guess else f"write one of {', '.join(DEEPSPEED_OPTIMIZERS)}"
        yield Problem("optimizer.type", f"{shown(name)} is no optimizer of DeepSpeed or torch.optim: {instead}")
    else:
        yield from _parameters("optimizer", block.get("params"), _arguments_of_optimizer(name))
        yield from _where_it_works(config, name.lower(), setup)
        if name.lower() == "adam" and not {"torch_adam", "adam_w_mode"} & (block.get("params") or {}).keys():
            yield Problem(
                "optimizer.params.adam_w_mode",
                'DeepSpeed takes "Adam" for AdamW: write false for Adam, true (or "type": "AdamW") to state that you '
                "mean it",
                fatal=False,
            )


def _where_it_works(config: dict[str, Any], name: str, setup: Setup) -> Problems:
    from deepspeed.accelerator import get_accelerator

    op = {"lamb": "FusedLambBuilder", "lion": "FusedLionBuilder"}.get(name)
    if name == "lion" and offload_device(config, "offload_optimizer"):
        op = "CPULionBuilder"
    if op and get_accelerator().get_op_builder(op).__name__ == "NotImplementedBuilder":
        yield Problem(
            "optimizer.type",
            f"DeepSpeed's {name.capitalize()} needs a GPU, and this machine's accelerator is the "
            f'{get_accelerator().device_name().upper()}: write "AdamW", or give deepspeed.initialize(optimizer=...)',
            fatal=setup.here,
        )
    if name == "muon" and stage_of(config) == 3 and value_at(config, "zero_optimization.reduce_scatter", True):
        yield Problem("zero_optimization.reduce_scatter", "does not go with Muon at stage 3: write false")


def _scheduler(config: dict[str, Any], setup: Setup) -> Problems:
    from deepspeed.runtime import lr_schedules

    if isinstance(setup.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        yield Problem(
            "scheduler",
            "deepspeed.initialize() was given a ReduceLROnPlateau, which DeepSpeed would step after every batch with "
            "the batch size as its metric: leave it out there, and step it in a callback after validations "
            "(context.wrap_lr_scheduler with MANUAL_STEP saves it)",
        )
    block = config.get("scheduler")
    if not isinstance(block, dict):
        return
    name = block.get("type")
    own = list(lr_schedules.VALID_LR_SCHEDULES)
    of_torch = _classes(torch.optim.lr_scheduler, object)
    if name is None:
        yield Problem("scheduler.type", f"missing: write one of {', '.join(own)}, or remove the block")
    elif name not in own and name not in of_torch:
        guess = meant(str(name), [*own, *of_torch])
        instead = f"did you mean {guess}?" if guess else f"write one of {', '.join(own)}, or a class of torch's"
        yield Problem("scheduler.type", f"{shown(name)} is no scheduler of DeepSpeed or torch: {instead}")
    elif name == "ReduceLROnPlateau":
        yield Problem(
            "scheduler.type",
            "DeepSpeed would step it after every batch with the batch size as its metric: remove the block, and use "
            "context.wrap_lr_scheduler",
        )
    else:
        made_by = getattr(lr_schedules, name, None) or getattr(torch.optim.lr_scheduler, name)
        yield from _parameters("scheduler", block.get("params"), _arguments(made_by))


def _parameters(block: str, params: Any, names: set[str]) -> Problems:
    """Check for arguments that do not exist; none when ``names`` is empty, which means not known."""
    if params is None:
        return
    if not isinstance(params, dict):
        yield Problem(f"{block}.params", f"{shown(params)} is not an object: write {{...}} with the arguments by name")
        return
    for name, value in params.items():
        path = f"{block}.params.{name}"
        if name == "max_grad_norm":
            yield Problem(path, f'DeepSpeed clips by itself: remove it, and write "gradient_clipping": {shown(value)}')
        elif names and name not in names:
            guess = meant(name, names) or {"learning_rate": "lr"}.get(name, "")
            instead = f"did you mean {guess}?" if guess else f"it takes {', '.join(sorted(names))}"
            yield Problem(path, f"there is no such argument: {instead}")
        elif value == "auto":
            yield Problem(path, '"auto" is for launchers that fill it in: write the value')


def _arguments_of_optimizer(name: str) -> set[str]:
    """Return the arguments that an optimizer of this name takes; empty when not known."""
    if name.lower() in _OF_DEEPSPEED:
        from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

        taken = [_arguments(kind) for kind in (torch.optim.AdamW, DeepSpeedCPUAdam, FusedAdam)]
        return {*_OF_DEEPSPEED[name.lower()], *(argument for each in taken for argument in each)}
    kind = getattr(torch.optim, name, None)
    return _arguments(kind) if kind is not None else set()


def _arguments(made_by: Any) -> set[str]:
    parameters = list(inspect.signature(made_by).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return set()
    return {parameter.name for parameter in parameters[1:]}  # after the parameters, or the optimizer


def _classes(module: Any, base: type) -> list[str]:
    found: Iterable[tuple[str, Any]] = vars(module).items()
    return [name for name, kind in found if isinstance(kind, type) and issubclass(kind, base) and name[0].isupper()]


def _kind(optimizer: Any) -> str:
    name = type(optimizer).__name__ if isinstance(optimizer, torch.optim.Optimizer) else repr(optimizer)
    module = type(optimizer).__module__.split(".")[0]
    return f"torch.optim.{name}" if module == "torch" and hasattr(torch.optim, name) else name
