"""Where training stands, and when the loop has to look up from training."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from trial_runtime.pytorch import Batch, Epoch
from trial_runtime.pytorch._loop.progress import Progress

units = st.none() | st.builds(
    lambda kind, value: kind(value), st.sampled_from([Batch, Epoch]), st.integers(0, 6) | st.sets(st.integers(1, 9))
)


@given(
    epoch_length=st.none() | st.integers(1, 9),
    micro_batches=st.integers(1, 4),
    periods=st.lists(units, max_size=3),
    start=st.integers(0, 5),
)
def test_nothing_comes_due_between_two_looks(
    epoch_length: int | None, micro_batches: int, periods: list[Batch | Epoch | None], start: int
) -> None:
    progress = Progress(batches=start, micro_batches=micro_batches, epoch_length=epoch_length)
    look = progress.next_look(*periods)
    assert look > start
    for batches in range(start + 1, min(look, 40)):
        progress.batches = batches
        assert not progress.at_epoch_end
        assert not any(progress.due(period) for period in periods)


@given(epoch_length=st.integers(1, 9), micro_batches=st.integers(1, 4), batches=st.integers(0, 30))
def test_an_epoch_ends_where_the_next_one_begins(epoch_length: int, micro_batches: int, batches: int) -> None:
    progress = Progress(batches=batches, micro_batches=micro_batches, epoch_length=epoch_length)
    end = progress.epoch_end
    assert end is not None
    assert progress.epoch_of(end) > progress.epoch_of(batches) >= progress.epoch_of(end - 1)
