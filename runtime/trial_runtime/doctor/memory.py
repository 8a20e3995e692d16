"""Memory of a model's states, by ZeRO stage: parameters, gradients, and what the optimizer keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

# What an optimizer keeps for each parameter, in fp32 numbers.
_MOMENTS = {
    "adam": 2,
    "adamw": 2,
    "lamb": 2,
    "muadam": 2,
    "muadamw": 2,
    "lion": 1,
    "adagrad": 1,
    "sgd": 1,
    "rmsprop": 1,
}
_ADAM = 2  # for what is not in the table: the most that is common


@dataclasses.dataclass(frozen=True)
class States:
    """Bytes of a whole model's states.

    Attributes:
        parameters: as forward and backward use them.
        gradients: as backward makes them.
        optimizer: moments, and the fp32 copy of half-precision parameters.
        offloaded_gradients: as an optimizer on the host reads them, in fp32.
    """

    parameters: int
    gradients: int
    optimizer: int
    offloaded_gradients: int


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes that a rank needs on its device and on its host."""

    device: int
    host: int


def states_of(parameters: int, config: dict[str, Any], optimizer: str = "") -> States:
    """The states of a model.

    Args:
        parameters: how many numbers the model has, all trained.
        config: fp16 and bf16 are read.
        optimizer: its name; without one Adam's share is taken.
    """
    half = any((config.get(name) or {}).get("enabled") for name in ("fp16", "bf16", "bfloat16"))
    moments = _MOMENTS.get(optimizer.lower(), _ADAM)
    number = 2 if half else 4
    return States(
        number * parameters, number * parameters, (4 * moments + (4 if half else 0)) * parameters, 4 * parameters
    )


def need_of(
    states: States, stage: int, ranks: int, offload_optimizer: bool = False, offload_param: bool = False
) -> Need:
    """What one of ``ranks`` data-parallel ranks needs at a ZeRO stage. Activations, buffers of collectives and
    fragmentation come on top."""
    optimizer = states.optimizer / (ranks if stage >= 1 else 1)
    gradients = states.gradients / (ranks if stage >= 2 else 1)
    parameters = states.parameters / (ranks if stage >= 3 else 1)
    host = 0.0
    if offload_optimizer and stage >= 1:
        host, optimizer = host + optimizer + states.offloaded_gradients / ranks, 0.0
        gradients = gradients if stage == 1 else 0.0
    if offload_param and stage == 3:
        host, parameters = host + parameters, 0.0
    return Need(round(parameters + gradients + optimizer), round(host))
