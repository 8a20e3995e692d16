"""Training that a signal ends: it comes to each rank at another moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import body, convert

TRAIN = """
    import signal
    import threading


    class Killer:
        stop = False

        def __init__(self):
            signal.signal(signal.SIGTERM, self.end)

        def end(self, number, frame):
            self.stop = True


    stop, ended, killer = False, threading.Event(), Killer()


    def end(number, frame):
        global stop
        stop = True
        ended.set()
        print("ends")


    signal.signal(signal.SIGINT, end)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if TEST:
            break
    """


@pytest.mark.parametrize("test", ["stop", "killer.stop", "ended.is_set()"])
def test_rank_0_decides_whether_a_signal_ends_training(test: str, tmp_path: Path) -> None:
    assert f"if rank_0_decides({test}):" in convert(tmp_path, body(TRAIN).replace("TEST", test))


def test_what_no_handler_sets_stays(tmp_path: Path) -> None:
    text = body(TRAIN).replace("TEST", "args.once")
    assert "rank_0_decides" not in convert(tmp_path, text)
