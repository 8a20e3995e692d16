"""Initial weights."""

from __future__ import annotations

import torch


def reset_parameters(model: torch.nn.Module) -> None:
    """Draw the weights of a model again: call ``reset_parameters()`` of every submodule that has it.

    The submodules come in the order of ``named_modules()`` and draw from torch's generator.
    """
    for _, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
