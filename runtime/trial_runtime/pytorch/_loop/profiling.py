"""Profile of some batches with torch's profiler, as ``profiling`` of the experiment config asks for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction

logger = logging.getLogger("trial_runtime.pytorch")


def make_profiler(window: Sequence[int], first_step: int, directory: Path, rank: int) -> torch.profiler.profile:
    """Return a profiler, to be stepped after each batch, that writes a trace for Perfetto and TensorBoard.

    Args:
        window: indices of the first and the last batch to record, counted from 0 since the start of training.
        first_step: index of the batch that is trained first.
        directory: where the trace goes.
        rank: of this process; names the file.
    """
    begin, end = window

    def action_at(step: int) -> ProfilerAction:
        batch = first_step + step
        if begin <= batch < end:
            return ProfilerAction.RECORD
        if batch == end:
            return ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.WARMUP if batch == begin - 1 else ProfilerAction.NONE

    def write(profiler: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"rank_{rank}_batches_{max(begin, first_step)}.pt.trace.json"
        profiler.export_chrome_trace(str(path))
        if rank == 0:
            logger.info(f"Profiled up to batch {end}: open {path} at https://ui.perfetto.dev")

    return torch.profiler.profile(schedule=action_at, on_trace_ready=write)
