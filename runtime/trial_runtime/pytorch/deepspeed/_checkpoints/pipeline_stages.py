"""The stages of a pipeline in a checkpoint, one by one: DeepSpeed's tools know whole models."""

from __future__ import annotations

from pathlib import Path

import torch


def show_alone(folder: Path, stage: int, alone: Path) -> None:
    """Make a folder that looks like the checkpoint of an engine which has nothing but one stage of a pipeline.

    Args:
        folder: the pipeline's checkpoint.
        stage: the stage's number.
        alone: the folder to make.
    """
    alone.mkdir()
    facts = torch.load(folder / f"mp_rank_{stage:02d}_model_states.pt", map_location="cpu", weights_only=False)
    facts.update(module={}, mp_world_size=1)
    facts.pop("checkpoint_parallel_dimensions", None)  # of all stages
    torch.save(facts, alone / "mp_rank_00_model_states.pt")
    for shard in folder.glob(f"*zero_pp_rank_*_mp_rank_{stage:02d}_optim_states.pt"):
        (alone / shard.name.replace(f"_mp_rank_{stage:02d}_", "_mp_rank_00_")).symlink_to(shard.absolute())
