"""Whole weights out of sharded checkpoints."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch

from trial_runtime.errors import InvalidCheckpointException


def consolidated_state_dict(checkpoint: str | Path, index: int = 0) -> dict[str, torch.Tensor]:
    """Parameters (fp32) and buffers of an engine's module, from a checkpoint of any ZeRO stage and number of ranks.

    Args:
        checkpoint: the checkpoint's folder.
        index: number of the engine, in the order of ``wrap_model_engine``.

    Raises:
        InvalidCheckpointException: when the checkpoint has no such engine, or is one of a pipeline.
    """
    folder = Path(checkpoint) / f"model{index}"
    whole = folder / "mp_rank_00_model_states.pt"
    sharded = sorted(folder.glob("*zero_pp_rank_*_optim_states.pt"))
    if not whole.is_file() and not sharded:
        there = ", ".join(sorted(path.name for path in Path(checkpoint).glob("model*"))) or "none"
        raise InvalidCheckpointException(f"{checkpoint} has no weights of engine {index} (engines there: {there}).")
    state: dict[str, torch.Tensor] = {}
    if whole.is_file():
        module: Any = torch.load(whole, map_location="cpu", weights_only=False)["module"]
        if module is None:
            raise InvalidCheckpointException(f"{folder} is of a pipeline engine; its layers are in files of their own.")
        state.update({name: _full_precision(value) for name, value in module.items()})
    if sharded:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            state.update(get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), folder.name))
    return state


def export(checkpoint: str | Path, file: str | Path, index: int = 0) -> Path:
    """Write an engine's consolidated weights to a ``safetensors`` file.

    Args:
        checkpoint: the checkpoint's folder.
        file: the file to write.
        index: number of the engine.

    Returns:
        the file.
    """
    from safetensors.torch import save_file

    state = consolidated_state_dict(checkpoint, index)
    # Tied weights share memory, which the format does not have: each name gets its own.
    separate = {name: value.clone().contiguous() for name, value in state.items()}
    save_file(separate, str(file), metadata={"format": "pt"})
    return Path(file)


def _full_precision(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
