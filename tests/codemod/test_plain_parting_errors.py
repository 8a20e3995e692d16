"""Errors and properties by which ranks parted: the one ends training, the other decides about a schedule."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, run

MONITOR = """\
class Plateau(Exception):
    pass


class Monitor:
    def __init__(self):
        self.history = []

    def push(self, loss):
        self.history.append(loss)
        if min(self.history[-2:]) > min(self.history):
            RAISE

    @property
    def improves(self):
        return self.history[-1] == min(self.history)
"""


def _train(lines: str) -> str:
    setup, loop = LOOP.split("for x, y in loader:\n")
    loop = f"for epoch in range(3):\n    for x, y in loader:\n{textwrap.indent(loop, '    ')}"
    return f"{HEADER}from monitor import *\n{setup}monitor = Monitor()\n{loop}{textwrap.indent(lines, '    ')}"


def _after(tmp_path: Path, raised: str, train: str) -> dict[str, str]:
    report = run(tmp_path, monitor=MONITOR.replace("RAISE", raised), train=train)
    return {file.path.name: (file.after or b"").decode() for file in report.files}


@pytest.mark.parametrize(
    ("raised", "handler", "is_decided"),
    [
        ("raise Plateau", "Plateau", True),
        ('raise Plateau("no progress")', "(Plateau, KeyboardInterrupt)", True),
        ('raise ValueError("loss")', "Plateau", False),
        ("raise SystemExit(1)", "Plateau", True),
    ],
)
def test_rank_0_decides_whether_an_error_that_the_program_handles_ends_training(
    raised: str, handler: str, is_decided: bool, tmp_path: Path
) -> None:
    """A rank that raised it alone left training, and the others waited for it."""
    lines = f"try:\n    monitor.push(loss.item())\nexcept {handler}:\n    break\n"
    after = _after(tmp_path, raised, _train(lines)).get("monitor.py", "")
    assert ("if rank_0_decides(min(self.history[-2:]) > min(self.history)):" in after) is is_decided


def test_rank_0_decides_by_a_property_that_follows_losses(tmp_path: Path) -> None:
    """The schedules of ranks stepped at other times, and their weights drifted apart."""
    schedule = "scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)\n"
    lines = "monitor.push(loss.item())\nif not monitor.improves:\n    scheduler.step()\n"
    train = _train(lines).replace("monitor = Monitor()\n", f"monitor = Monitor()\n{schedule}")
    assert "if rank_0_decides(not monitor.improves):" in _after(tmp_path, "pass", train)["train.py"]


ITEMS = """\
class Hard(Exception):
    pass


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.losses = {}

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return self.read(i)

    def read(self, i):
        if self.losses.get(i, 0.0) > 9:
            raise Hard
        return torch.zeros(4), torch.zeros(1)


def collate(samples):
    if len(data.losses) > 4 and max(data.losses.values()) > 9:
        raise Hard
    return [torch.stack(part) for part in zip(*samples)]


data = Data()
"""


@pytest.mark.parametrize("is_stream", [False, True])
def test_ranks_do_not_agree_in_the_functions_that_make_the_items_of_a_dataset(is_stream: bool, tmp_path: Path) -> None:
    """Processes of loaders waited there for those of other ranks, which draw other items."""
    setup, loop = LOOP.replace("shuffle=True", "num_workers=2, collate_fn=collate").split("for x, y in loader:\n")
    lines = f"try:\n    for x, y in loader:\n{textwrap.indent(loop, '    ')}        data.losses[0] = loss.item()\n"
    items = ITEMS
    if is_stream:
        items = ITEMS.replace("Dataset", "IterableDataset").replace("__getitem__(self, i)", "__iter__(self)")
        items = items.replace("return self.read(i)", "yield from map(self.read, range(8))\n        yield self.read(0)")
    after = run(tmp_path, train=f"{HEADER}{items}{setup}{lines}except Hard:\n    pass\n").files[0].after or b""
    assert b"shard(DataLoader(" in after and b"rank_0_decides" not in after


COLLATE = """\
class Collate:
    def __init__(self, losses):
        self.losses = losses

    def __call__(self, samples):
        return collate(samples)


"""


@pytest.mark.parametrize(
    "given", ["Collate(data.losses)", "lambda samples: collate(samples)", "functools.partial(collate)"]
)
def test_ranks_do_not_agree_in_what_an_object_a_lambda_or_a_partial_collates(given: str, tmp_path: Path) -> None:
    """A rank whose batch had other items waited there for those of other ranks, or called it in another process."""
    setup, loop = LOOP.replace("shuffle=True", f"num_workers=2, collate_fn={given}").split("for x, y in loader:\n")
    lines = f"try:\n    for x, y in loader:\n{textwrap.indent(loop, '    ')}        data.losses[0] = loss.item()\n"
    train = f"import functools\n{HEADER}{ITEMS}{COLLATE}{setup}{lines}except Hard:\n    pass\n"
    after = run(tmp_path, train=train).files[0].after or b""
    assert b"shard(DataLoader(" in after and b"rank_0_decides" not in after


SENDER = """\
import threading


class Sender:
    def __init__(self):
        self.waiting = []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while self.waiting:
            self.check(self.waiting.pop())

    def check(self, loss):
        if loss > 9:
            raise ValueError("loss")


"""


def test_ranks_do_not_agree_in_a_function_that_a_thread_runs_too(tmp_path: Path) -> None:
    """The thread of one rank took part in what the loop of another one decided."""
    setup, loop = LOOP.split("for x, y in loader:\n")
    lines = f"try:\n    for x, y in loader:\n{textwrap.indent(loop, '    ')}        sender.check(loss.item())\n"
    report = run(tmp_path, train=f"{HEADER}{SENDER}{setup}sender = Sender()\n{lines}except ValueError:\n    pass\n")
    assert b"rank_0_decides" not in (report.files[0].after or b"")
    (found,) = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert found.endswith("and cannot agree: one may be here alone, as run() runs at another moment on each")


LOCKED = """\
import os


def train(model, optimizer):
    for x, y in DataLoader(data, batch_size=4):
        STEP


MAKE_MODEL
for fold in range(3):
    try:
        os.close(os.open(f"{fold}.lock", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        JUMP
    train(model, optimizer)
"""


@pytest.mark.parametrize(("jump", "count"), [("continue", 1), ("pass", 0)])
def test_a_lock_that_one_rank_alone_gets_is_for_review(jump: str, count: int, tmp_path: Path) -> None:
    """One rank trained a fold while the others passed over it, and trained the next one."""
    report = run(tmp_path, train=HEADER + LOCKED.replace("JUMP", jump))
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert found == ["one rank creates this file and trains, while the others pass over it"] * count


STOPPED = """\
class EarlyStop(Exception):
    pass


MAKE_MODEL
for epoch in range(3):
    try:
        for x, y in DataLoader(data, batch_size=4):
            LOSS_STEP
            RAISE
    except EarlyStop:
        break
"""
CONVERTED = """try:
                float("x")
            except ValueError:
                if loss:
                    raise EarlyStop"""


@pytest.mark.parametrize(
    ("lines", "count"), [("if loss.item() < 0.1:\n                raise EarlyStop", 0), (CONVERTED, 1)]
)
def test_an_error_that_all_ranks_raise_is_not_for_review(lines: str, count: int, tmp_path: Path) -> None:
    report = run(tmp_path, train=HEADER + STOPPED.replace("RAISE", lines))
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert sum(one.startswith("a rank that fails here alone") for one in found) == count


CALLBACK = """\
class StopTraining(Exception):
    pass


class Stopper:
    def __init__(self):
        self.best, self.bad = None, 0

    def on_epoch_end(self, value):
        if self.best is None or value < self.best:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad > 2:
            raise StopTraining()


stopper = Stopper()
try:
    for epoch in range(9):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        CALL
except StopTraining:
    print("stopped")
"""


@pytest.mark.parametrize(
    ("call", "is_followed"), [("stopper.on_epoch_end(loss.item())", True), ("getattr(stopper, hook)(loss)", False)]
)
def test_a_callback_that_ends_training_by_an_error_does_so_on_all_ranks(
    call: str, is_followed: bool, tmp_path: Path
) -> None:
    """Each rank counted its own epochs without progress, and one that raised left the others waiting."""
    setup = LOOP[: LOOP.index("for x, y in loader")].replace("\nmodel", "\nhook = str(input())\nmodel", 1)
    report = run(tmp_path, train=HEADER + setup + CALLBACK.replace("CALL", call))
    after = (report.files[0].after or b"").decode()
    assert ("if rank_0_decides(self.best is None or value < self.best):" in after) is is_followed
    messages = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any(m.startswith("a rank that raises this alone") for m in messages) is not is_followed


TRAINERS = """\
import os

RANK = int(os.environ.get("RANK", -1))


class Trainer:
    def __init__(self):
        self.model, self.lowest = Net(), 9.0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(data, batch_size=4)

    def train(self):
        self.total = 0
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.total += loss.item()
        if RANK in {-1, 0}:
            self.finish()

    def finish(self):
        print(self.total)

    def evaluate(self):
        for x, _ in self.loader:
            print(self.model(x).mean())


class Classifier(Trainer):
    def finish(self):
        if self.total < self.lowest:
            self.evaluate()


def main(trainer=None):
    (trainer or Trainer)().train()
"""


def test_ranks_do_not_agree_in_a_method_that_replaces_one_that_rank_0_calls(tmp_path: Path) -> None:
    """Rank 0 waited there for the others, which had ended."""
    report = run(tmp_path, train=f"{HEADER}{TRAINERS}")
    after = (report.files[0].after or b"").decode()
    assert "self.engine.step()" in after and "rank_0_decides" not in after
