"""The AdamW that ``transformers`` had up to version 4: its numbers are not those of ``torch.optim.AdamW``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch


class AdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay, as Hugging Face wrote it.

    The epsilon is added to the root of the second moment before its bias is corrected, and weights decay after the
    step; torch's AdamW does both the other way round.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: decay of the first and second moment.
        eps: added to the denominator.
        weight_decay: part of a weight that a step with a learning rate of 1 takes away.
        correct_bias: correct the moments' bias towards zero.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return the loss of the closure, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        if gradient is None or gradient.is_sparse:
            raise RuntimeError("this AdamW does not take sparse gradients; torch.optim.SparseAdam does")
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        (beta1, beta2), size = group["betas"], group["lr"]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        if group["correct_bias"]:
            size = size * math.sqrt(1.0 - beta2 ** state["step"]) / (1.0 - beta1 ** state["step"])
        parameter.addcdiv_(first, second.sqrt().add_(group["eps"]), value=-size)
        if group["weight_decay"] > 0.0:
            parameter.add_(parameter, alpha=-group["lr"] * group["weight_decay"])
