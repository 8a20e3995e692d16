"""The norm of all gradients at each optimizer step of an engine."""

from __future__ import annotations

from typing import Any

import torch


class GradientNorms:
    """Reads the gradient norms of engines, before they clip.

    ZeRO and the optimizers of half precision compute the norm at each step anyway. At stage 0 in float32 nothing does:
    there it is computed here, one pass over the gradients a step, on the device, which is not waited for.

    Args:
        engines: the wrapped engines; a method of those at stage 0 in float32 is wrapped.
    """

    def __init__(self, engines: list[Any]) -> None:
        self._engines = engines
        self._own: dict[int, torch.Tensor] = {}
        for index, engine in enumerate(engines):
            if not (engine.zero_optimization() or engine.bfloat16_enabled() or engine.fp16_enabled()):
                self._compute_at_steps(index, engine)

    def metrics(self) -> dict[str, Any]:
        """Return the norm of each engine's last step, as ``grad_norm``, or ``grad_norm_0``... of several."""
        found = {}
        for index, engine in enumerate(self._engines):
            norm = self._own.get(index)
            if norm is None:
                norm = engine.get_global_grad_norm()
            if norm is not None:
                name = "grad_norm" if len(self._engines) == 1 else f"grad_norm_{index}"
                found[name] = norm.detach().clone() if isinstance(norm, torch.Tensor) else norm
        return found

    def _compute_at_steps(self, index: int, engine: Any) -> None:
        take_step = engine._take_model_step

        def measured(*args: Any, **kwargs: Any) -> Any:
            gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
            if gradients:
                norm = torch.nn.utils.get_total_norm(gradients)
                if engine.torch_autocast_z0_gradscaler:  # gradients are scaled until the engine steps
                    norm = norm / engine.torch_autocast_z0_gradscaler.get_scale()
                self._own[index] = norm
            return take_step(*args, **kwargs)

        engine._take_model_step = measured
