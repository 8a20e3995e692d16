"""``trial_runtime.plain.NoTracker``: a tracker for ranks that record nothing."""

from __future__ import annotations

from trial_runtime.plain import NoTracker


def test_a_tracker_of_other_ranks_takes_every_call() -> None:
    with NoTracker() as tracker:
        tracker.add_scalar("loss", 0.1, 1)
        tracker["loss"].append(0.1)
        tracker["rate"] = 0.1
    tracker.close()
