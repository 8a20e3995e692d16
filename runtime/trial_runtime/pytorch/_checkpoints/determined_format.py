"""Checkpoints that Determined 0.38 wrote: no manifest, other names, the same content."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch._checkpoints import restricted_load

STATE_FILES = ("state_dict.pth", "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt")


def state_file(path: Path) -> Path | None:
    """Return the file with a PyTorchTrial's state; None when the checkpoint is of another kind."""
    return next((path / name for name in STATE_FILES if (path / name).is_file()), None)


def without_ddp(state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Rename a saved state to the model's own names: a DistributedDataParallel put ``module.`` before them.

    Args:
        state: the saved state; changed in place.
        own: the state of the model that takes it. It may have a child ``module`` itself.
    """
    if not state.keys() & own.keys():
        torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    return state


def progress(path: Path) -> dict[str, Any]:
    """Return the counts of :class:`Progress`; zeros when the checkpoint has none.

    Raises:
        InvalidCheckpointException: the file with the counts is damaged, or holds something else.
    """
    file = path / "trial_state.pkl"
    try:
        state = _Plain(io.BytesIO(file.read_bytes())).load() if file.is_file() else {}
        return {
            "batches": int(state.get("batches_trained", 0)),
            "last_validation": int(state.get("last_val", 0)),
            "last_checkpoint": int(state.get("last_ckpt", 0)),
        }
    except Exception as error:  # what a damaged pickle raises depends on where it is damaged
        raise InvalidCheckpointException(f"Checkpoint {path} is damaged: {file.name}: {error}.") from error


def rank_state(path: Path, rank: int) -> dict[str, Any]:
    """Return the state of a rank of a DeepSpeedTrial, or of a PyTorchTrial's chief."""
    file = path / f"det_state_dict_rank{rank}.pth"
    found = file if file.is_file() else state_file(path)
    if found is None:
        return {}
    state: dict[str, Any] = restricted_load.read(found)
    return {"callbacks": state.get("callbacks", {}), "rng_state": rng_state(state.get("rng_state"))}


def rng_state(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return random states by the names that :mod:`_rng` uses; they may have them already."""
    if state is None or "torch" in state:
        return state
    renamed = {"python": state["random_rng_state"], "numpy": state["np_rng_state"], "torch": state["cpu_rng_state"]}
    if "gpu_rng_state" in state:
        renamed["cuda"] = state["gpu_rng_state"]
    return renamed


class _Plain(pickle.Unpickler):
    """Unpickler of numbers, strings and containers only: a pickle may name any code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"trial_state.pkl names {module}.{name}; it should hold counts only.")
