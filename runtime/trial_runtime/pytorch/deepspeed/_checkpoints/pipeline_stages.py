"""Extract single stages of a pipeline from a checkpoint, because DeepSpeed's tools know whole models only."""

from __future__ import annotations

from pathlib import Path

import torch

from trial_runtime.pytorch._checkpoints import restricted_load


def extract_stage(folder: Path, stage: int, target: Path) -> None:
    """Make a folder that looks like the checkpoint of an engine with one stage of a pipeline only.

    Args:
        folder: the pipeline's checkpoint.
        stage: the stage's number.
        target: the folder to make.
    """
    target.mkdir()
    facts = restricted_load.read(folder / f"mp_rank_{stage:02d}_model_states.pt")
    facts.update(module={}, mp_world_size=1)
    facts.pop("checkpoint_parallel_dimensions", None)  # of all stages
    torch.save(facts, target / "mp_rank_00_model_states.pt")
    for shard in folder.glob(f"*zero_pp_rank_*_mp_rank_{stage:02d}_optim_states.pt"):
        (target / shard.name.replace(f"_mp_rank_{stage:02d}_", "_mp_rank_00_")).symlink_to(shard.absolute())
