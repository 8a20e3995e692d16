"""Samples that a loop keeps, and makes later losses of: each rank keeps those of its share."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import body, run

TRAIN = """
    import random
    from collections import deque


    class Buffer:
        def __init__(self, size):
            self.size, self.seen, self.outputs = size, 0, []
            self.examples, self.targets = torch.zeros(size, 4), torch.zeros(size, 1)

        def add(self, x, y):
            for i in range(len(x)):
                self.examples[self.seen % self.size] = x[i]
                self.targets[self.seen % self.size] = y[i]
                self.seen += 1

        def draw(self, n):
            chosen = torch.randint(min(self.seen, self.size), (n,))
            return self.examples[chosen], self.targets[chosen]

        def keep(self, x):
            self.outputs = []
            self.outputs.append(x)


    buffer, memory, shown = Buffer(16), deque(maxlen=16), []
    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        MORE
        loss.backward()
        optimizer.step()
    """
MESSAGE = "each rank collects samples of its share of the data in {}, for its own loss"
SAMPLES = {
    "a, b = buffer.draw(4)\nloss = loss + F.mse_loss(model(a), b)\nbuffer.add(x, y)": "self.examples",
    "for a, b in random.sample(memory, 4):\n    loss = loss + F.mse_loss(model(a), b)\n"
    "memory.extend(zip(x, y))": "memory",
    "each = []\neach.append(F.mse_loss(model(x), y))\nloss = loss + sum(each)": "",
    "shown.append(model(x))": "",
    "buffer.keep(model(x))\nloss = loss + F.mse_loss(buffer.outputs[0], y)": "",
}


@pytest.mark.parametrize(("more", "name"), SAMPLES.items())
def test_samples_that_a_loop_keeps_for_later_losses_are_for_review(more: str, name: str, tmp_path: Path) -> None:
    text = body(TRAIN).replace("MORE", more.replace("\n", "\n    "))
    found = [f.message for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)]
    assert [message for message in found if "collects samples" in message] == [MESSAGE.format(name)] * bool(name)
