"""Functions that TorchScript compiles: no helper of the runtime is called in them, as it cannot be compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, convert, run

FORWARD = "    def forward(self, x):\n"
SHOW = '        print("forward")\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "scripted = torch.jit.script(model)\n"),
        ("    @torch.jit.export\n", ""),
        ("", "class Outer(nn.Module):\n    net: Net\n"),
    ],
    ids=["a module that is compiled", "an exported method", "a module that is not compiled"],
)
def test_a_compiled_function_prints_as_before(before: str, after: str, tmp_path: Path) -> None:
    text = convert(tmp_path, HEADER.replace(FORWARD, before + FORWARD + SHOW) + LOOP + after)
    assert ("is_main_rank" in text) == (not before and "jit" not in after)


def test_a_function_that_a_compiled_one_calls_prints_as_before(tmp_path: Path) -> None:
    inner = "def show(x: int) -> int:\n    print(x)\n    return x\n\n\n"
    outer = "@torch.jit.script\ndef count(x: int) -> int:\n    return show(x)\n\n\n"
    assert "is_main_rank" not in convert(tmp_path, f"{HEADER}\n\n{inner}{outer}{LOOP}    count(4)\n")


def test_ranks_that_may_part_in_a_compiled_function_are_for_review(tmp_path: Path) -> None:
    step = "def step(loss):\n    if loss > 4 and not torch.jit.is_scripting():\n        return\n"
    loop = LOOP.replace("loss.backward()", "step(loss)").replace("    optimizer.step()\n", "")
    step += "    loss.backward()\n    optimizer.step()\n\n\n"
    start, _, rest = loop.partition("for x, y")
    report = run(tmp_path, train=f"{HEADER}\n\n{start}{step}for x, y{rest}")
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert "ranks may part here, and cannot agree: TorchScript compiles this function" in found
    (result,) = report.files
    assert result.after is not None and b"rank_0_decides" not in result.after
