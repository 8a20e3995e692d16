"""Plain training loops whose statements share lines, or stand behind a colon."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from plain_loops import HEADER, LOOP, body, convert

MAIN = "if __name__ == '__main__': main()\n"
TRAIN = """
    def train(model, optimizer):
        for x, y in loader: optimizer.zero_grad(); F.mse_loss(model(x), y).backward(); optimizer.step()

    loader = DataLoader(data, batch_size=4)
"""


def test_ranks_start_in_the_one_line_block_of_main(tmp_path: Path) -> None:
    loop = "".join(f"    {line}\n" for line in LOOP.splitlines())
    after = convert(tmp_path, f"{HEADER}\ndef main():\n{loop}\n{MAIN}")
    assert after.endswith("\nif __name__ == '__main__':\n    init_distributed()\n    main()\n")


def test_an_engine_is_made_before_the_rest_of_its_line_uses_it(tmp_path: Path) -> None:
    made = "model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1); train(model, optimizer)"
    after = convert(tmp_path, body(TRAIN) + made + "\n")
    assert "match_torch(engine)\ntrain(model, engine)\n" in after
    assert "lr=0.1)\nengine, *_ = deepspeed.initialize(" in after


def test_an_engine_is_made_in_the_one_line_body_of_a_loop(tmp_path: Path) -> None:
    made = "model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=lr); train(model, optimizer)"
    after = convert(tmp_path, f"{body(TRAIN)}for lr in (0.1, 0.2): {made}\n")
    assert "\nfor lr in (0.1, 0.2):\n    model = Net()\n" in after
    assert after.endswith("    match_torch(engine)\n    train(model, engine)\n")


def test_a_line_whose_statements_change_in_place_stays_one(tmp_path: Path) -> None:
    line = "    optimizer.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); optimizer.step()  # train\n"
    text = HEADER + LOOP.partition("    optimizer")[0] + line
    after = convert(tmp_path, text)
    assert "\n    loss = F.mse_loss(engine(x), y); engine.backward(loss); engine.step()  # train\n" in after


@pytest.mark.parametrize(
    "lines",
    [
        "class Meter: value = 0; count = 0\n",
        "def twice(x): y = x; return 2 * y  # a comment\n",
        "if len(data) > 3: a = 1; b = 2;\nelif len(data): a = 3\nelse: a = 4; b = 5\n",
        "try: import tqdm; bar = tqdm.tqdm\nexcept ImportError: bar = None\nfinally: done = True\n",
        "while False: pass\nelse: done = True\n",
        "match len(data):\n    case 0: a = 1; b = 2\n    case _: a = 3\n",
    ],
)
def test_lines_that_nothing_changes_stay_as_they_are(lines: str, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + lines + LOOP)
    assert lines in after


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if cuda: print(1); a = 2\n", "if cuda:\n    if is_main_rank():\n        print(1)\n    a = 2\n"),
        ("a = 1; print(a)  # seen\n", "a = 1\nif is_main_rank():\n    print(a)  # seen\n"),
        ("if cuda: model.cuda()\nelse: a = 1\n", "if cuda: model.cuda()\nelse: a = 1\n"),
        ("print(1); print(2)\n", "if is_main_rank():\n    print(1)\n    print(2)\n"),
    ],
)
def test_what_a_rank_does_alone_leaves_its_line(line: str, expected: str, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + "cuda = torch.cuda.is_available()\n" + LOOP + line)
    ast.parse(after)
    assert after.endswith("    engine.step()\n" + expected)


def test_a_call_that_goes_from_a_tuple_of_calls_leaves_none(tmp_path: Path) -> None:
    calls = "    optimizer.zero_grad(), F.mse_loss(model(x), y).backward(), optimizer.step()\n"
    after = convert(tmp_path, HEADER + LOOP.partition("    optimizer")[0] + calls)
    assert after.endswith("    None, engine.backward(F.mse_loss(engine(x), y)), engine.step()\n")
