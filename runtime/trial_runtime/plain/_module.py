"""The module of an engine as its script knows it: the script may pickle it, and write to its parameters."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

# What ZeRO stages 1 and 2 add to a parameter.
_OF_ZERO = frozenset(
    (
        *("grad_accum", "param_idx_in_group", "_hp_mapping", "_dp_group", "_index_in_param_group", "__reduce_ex__"),
        *("get_full_hp_param", "get_full_hp_grad", "set_full_hp_param", "set_full_hp_grad", "load_hp_checkpoint_state"),
    )
)


def keep_portable(engine: Any) -> None:
    """Keep DeepSpeed out of the module, so that ``torch.save(model)`` and ``torch.jit.script(model)`` work.

    DeepSpeed hooks local functions to the module, which cannot be pickled, and attaches its optimizer to each
    parameter. What the hooks do (timers, a profile) is done around the engine's forward pass instead.
    """
    engine.module_forward_pre_hook.remove()
    engine.module_forward_post_hook.remove()
    original = engine.forward

    def forward(*inputs: Any, **kwargs: Any) -> Any:
        inputs, kwargs = engine._forward_prologue(inputs, kwargs) or (inputs, kwargs)
        output = original(*inputs, **kwargs)
        engine._forward_epilogue()
        return output

    engine.forward = forward
    for parameter in engine.module.parameters():
        if _OF_ZERO & vars(parameter).keys():
            parameter.__reduce_ex__ = MethodType(_reduce, parameter)


def _reduce(parameter: torch.nn.Parameter, protocol: int) -> Any:
    plain = torch.nn.Parameter(parameter.data, parameter.requires_grad)
    vars(plain).update((name, value) for name, value in vars(parameter).items() if name not in _OF_ZERO)
    return plain.__reduce_ex__(protocol)


def step_written_weights(engine: Any) -> None:
    """Have an engine step the weights that its parameters have, whoever wrote them.

    At ZeRO stages 1 and 2 DeepSpeed steps separate copies, and so undoes what a script wrote since the last step:
    weights that were loaded, initialized anew, or changed in place. In float32 the copies equal the parameters but for
    that, and are taken from them before each step; else only where PyTorch counted a write.
    """
    optimizer = engine.optimizer
    if not hasattr(optimizer, "refresh_fp32_params"):
        return
    # Each parameter is a view of DeepSpeed's buffer, until something replaces its tensor (model.cpu() and back).
    views = [(parameter, parameter.data) for group in optimizer.bit16_groups for parameter in group]
    is_exact = all(view.dtype == torch.float32 for _, view in views)
    original = optimizer.step

    def versions() -> list[int]:
        return [] if is_exact else [parameter._version for parameter, _ in views]

    seen = versions()

    def step(*args: Any, **kwargs: Any) -> Any:
        for parameter, view in views:
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.data)
                parameter.data = view
        if is_exact or seen != versions():
            optimizer.refresh_fp32_params()
        result = original(*args, **kwargs)
        seen[:] = versions()
        return result

    optimizer.step = step
