"""Plain training loops with a class that takes the place of a GradScaler where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import blocked, body, convert, reviews

SCALER = """
    class NoScaler:
        \"\"\"Scaler for float32.\"\"\"

        def scale(self, loss):
            return loss

        def unscale_(self, optimizer):
            pass

        def step(self, optimizer):
            optimizer.step()

        def update(self):
            \"\"\"Do nothing.\"\"\"


    def main(amp=False):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if amp:
            scaler = torch.cuda.amp.GradScaler()
        else:
            scaler = NoScaler()
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
            scaler.step(optimizer)
            scaler.update()


    main()
    """


def test_the_step_inside_a_class_in_place_of_a_scaler_stays(tmp_path: Path) -> None:
    after = convert(tmp_path, body(SCALER))
    assert "        optimizer.step()\n" in after
    assert "        use_scaler(engine, scaler)\n    else:\n        scaler = NoScaler()\n" in after
    assert after.count("engine.step()") == 1
    assert not any("unknown what it steps" in message for message in reviews(tmp_path, body(SCALER)))


@pytest.mark.parametrize(
    ("line", "other"),
    [("return loss", "return 2 * loss"), ("pass", "clear(optimizer)"), ("optimizer.step()", "self.count += 1")],
)
def test_a_class_that_does_more_is_refused(tmp_path: Path, line: str, other: str) -> None:
    if line == "optimizer.step()":
        other = f"{line}\n        {other}"
    text = body(SCALER).replace(line, other, 1)
    found = blocked(tmp_path, text)
    assert ("DSM607", "NoScaler takes the place of a GradScaler") in [(code, text[:40]) for code, text in found]


def test_a_scaler_by_the_module_that_defines_it_is_one_of_torch(tmp_path: Path) -> None:
    text = body(SCALER).replace("amp.GradScaler", "amp.grad_scaler.GradScaler")
    assert "use_scaler(engine, scaler)" in convert(tmp_path, text)
