"""Where training stands, by the epochs that the batches belong to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from trial_runtime.pytorch._loop.progress import Progress


@given(epoch_length=st.integers(1, 9), micro_batches=st.integers(1, 4), batches=st.integers(0, 30))
def test_an_epoch_ends_where_the_next_one_begins(epoch_length: int, micro_batches: int, batches: int) -> None:
    progress = Progress(batches=batches, micro_batches=micro_batches, epoch_length=epoch_length)
    end = progress.batches_of_epochs(progress.epochs + 1)
    assert end is not None
    assert progress.epoch_of(end) > progress.epoch_of(batches) >= progress.epoch_of(end - 1)
