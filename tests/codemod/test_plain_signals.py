"""Training that a signal or a thread ends: it comes to each rank at another moment."""

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
    MAKE_MODEL
    for x, y in loader:
        STEP
        if TEST:
            break
    """


@pytest.mark.parametrize("test", ["stop", "killer.stop", "ended.is_set()"])
def test_rank_0_decides_whether_a_signal_ends_training(test: str, tmp_path: Path) -> None:
    assert f"if rank_0_decides({test}):" in convert(tmp_path, body(TRAIN).replace("TEST", test))


THREADS = """
    import threading


    def wait():
        global pressed
        sys.stdin.readline()
        pressed = True
        ended.set()


    def train():
        global step
        for step, (x, y) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
            STEP
            if TEST:
                break


    pressed, step, ended = False, 0, threading.Event()
    threading.Thread(target=wait, daemon=True).start()
    MAKE_MODEL
    threading.Thread(target=train).start()
    """


@pytest.mark.parametrize("test", ["pressed", "ended.is_set()"])
def test_rank_0_decides_whether_a_thread_ends_training(test: str, tmp_path: Path) -> None:
    """A rank whose thread was earlier left the loop alone."""
    assert f"if rank_0_decides({test}):" in convert(tmp_path, "import sys\n" + body(THREADS).replace("TEST", test))


def test_what_a_thread_that_trains_sets_is_the_same_on_all_ranks(tmp_path: Path) -> None:
    after = convert(tmp_path, "import sys\n" + body(THREADS).replace("TEST", "step > 5"))
    assert "rank_0_decides" not in after


def test_what_no_handler_sets_stays(tmp_path: Path) -> None:
    text = body(TRAIN).replace("TEST", "args.once")
    assert "rank_0_decides" not in convert(tmp_path, text)
