"""Export whole weights from checkpoints of any ZeRO stage, precision and number of ranks, and of pipelines."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch._checkpoints import restricted_load
from trial_runtime.pytorch.deepspeed._checkpoints.pipeline_stages import extract_stage
from trial_runtime.pytorch.deepspeed._patches import fp32_master_names

_HALF = (torch.float16, torch.bfloat16)
_LAYER = re.compile(r"layer_(\d+)-model_states\.pt")


def consolidated_state_dict(checkpoint: str | Path, index: int = 0) -> dict[str, torch.Tensor]:
    """Return the parameters (fp32) and buffers of an engine's module.

    A pipeline's are named by layer: ``3.weight`` is the ``weight`` of its layer 3, as in a PipelineModule of one stage;
    a tied layer is there each time.

    Args:
        checkpoint: the checkpoint's folder.
        index: number of the engine, in the order of ``wrap_model_engine``.

    Raises:
        InvalidCheckpointException: when the checkpoint has no such engine, or it is split by tensor parallelism.
        UntrustedCheckpointError: when it holds objects that can run code, and this user's runs did not write it.
    """
    return restricted_load.read_checkpoint(Path(checkpoint), lambda: _consolidated(Path(checkpoint), index))


def _consolidated(checkpoint: Path, index: int) -> dict[str, torch.Tensor]:
    folder = checkpoint / f"model{index}"
    layers = sorted(folder.glob("layer_*-model_states.pt"))
    parts = sorted(folder.glob("mp_rank_*_model_states.pt"))
    sharded = any(folder.glob("*zero_pp_rank_*_optim_states.pt"))
    if not (layers or parts or sharded):
        there = ", ".join(engines(checkpoint)) or "none"
        raise InvalidCheckpointException(f"{checkpoint} has no weights of engine {index} (engines there: {there}).")
    if any(not _LAYER.fullmatch(file.name) for file in layers) or (len(parts) > 1 and not layers):
        raise InvalidCheckpointException(
            f"{folder} is split by tensor parallelism; only the model knows how its slices fit together."
        )
    state = _layers(layers) if layers else _module(parts)
    if sharded and layers:
        for stage in range(len(parts)):
            _take(state, _from_stage(folder, stage))
    elif sharded:
        state.update(_from_shards(folder))
    else:
        masters = [found for file in parts for found in fp32_master_names.saved_masters(_read(file).get("optimizer"))]
        for name, master in masters:
            if name in state:
                _put(state, name, master)
        for master in (master for name, master in masters if name not in state):
            same = _rounded_from(master, state)
            for name in same if layers else same[:1]:  # a pipeline's tied layers; else one after the other
                _put(state, name, master)
    return {name: value.float() if value.dtype in _HALF else value for name, value in state.items()}


def engines(checkpoint: str | Path) -> list[str]:
    """Return the folders of a checkpoint's engines: ``model0``, ``model1``, ..."""
    found = [path.name for path in Path(checkpoint).glob("model*") if path.name[len("model") :].isdigit()]
    return sorted(found, key=lambda name: int(name[len("model") :]))


def export(checkpoint: str | Path, file: str | Path, index: int = 0) -> Path:
    """Write an engine's consolidated weights to a ``safetensors`` file.

    Args:
        checkpoint: the checkpoint's folder.
        file: the file to write.
        index: number of the engine.

    Returns:
        the file.
    """
    return write_safetensors(consolidated_state_dict(checkpoint, index), Path(file))


def write_safetensors(state: dict[str, torch.Tensor], file: Path) -> Path:
    """Write tensors to a ``safetensors`` file; returns the file."""
    from safetensors.torch import save_file

    # Tied weights share memory, which the format does not have: each name gets a copy.
    separate = {name: value.detach().clone().contiguous() for name, value in state.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(separate, str(file), metadata={"format": "pt"})
    return file


def _read(file: Path) -> dict[str, Any]:
    content = restricted_load.read(file)
    if not isinstance(content, dict):
        raise InvalidCheckpointException(f"{file} holds a {type(content).__name__}, no state of an engine.")
    return content


def _module(parts: list[Path]) -> dict[str, torch.Tensor]:
    return dict(_read(parts[0])["module"]) if parts else {}


def _layers(files: list[Path]) -> dict[str, torch.Tensor]:
    state = {}
    for file in files:
        found = _LAYER.fullmatch(file.name)
        assert found is not None
        state.update({f"{int(found[1])}.{name}": value for name, value in _read(file).items()})
    return state


def _from_shards(folder: Path) -> dict[str, torch.Tensor]:
    """Return ZeRO's fp32 parameters, put together from their shards."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        state = get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), folder.name)
    return dict(state)


def _from_stage(folder: Path, stage: int) -> dict[str, torch.Tensor]:
    """Return the fp32 parameters of a pipeline's stage, which DeepSpeed reads as a separate checkpoint."""
    with tempfile.TemporaryDirectory() as scratch:
        alone = Path(scratch) / "stage"
        extract_stage(folder, stage, alone)
        return _from_shards(alone)


def _put(state: dict[str, torch.Tensor], name: str, master: torch.Tensor) -> None:
    """Set a parameter, under all names that it is tied to."""
    storage = state[name].data_ptr()
    for other, value in state.items():
        if other == name or (value.numel() and value.data_ptr() == storage and value.shape == master.shape):
            state[other] = master


def _take(state: dict[str, torch.Tensor], masters: dict[str, torch.Tensor]) -> None:
    state.update({name: value for name, value in masters.items() if name in state})
    for master in (value for name, value in masters.items() if name not in state):  # tied layers
        state.update(dict.fromkeys(_rounded_from(master, state), master))


def _rounded_from(master: torch.Tensor, state: dict[str, torch.Tensor]) -> list[str]:
    """Return the half-precision parameters that have an fp32 parameter's values, rounded."""
    return [
        name
        for name, value in state.items()
        if value.dtype in _HALF and value.shape == master.shape and torch.equal(master.to(value.dtype), value)
    ]
