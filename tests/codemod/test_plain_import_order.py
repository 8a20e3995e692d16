"""The place of imports that load torch, beside what a program imports before torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import body, convert

LOOP = """\
    MAKE_MODEL
    for x, y in DataLoader(data, batch_size=4):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    "first",
    [
        "import simulator\nimport copy\n",
        "# must be imported before torch\nimport simulator\n\nimport copy\nimport numpy as np\n",
        "from tqdm import tqdm\nfrom zsim import World\n",
        "import isaacgym  # a sim that is sorted among the others\n",
    ],
)
def test_what_a_program_imports_before_torch_is_imported_before_deepspeed(first: str, tmp_path: Path) -> None:
    after = convert(tmp_path, first + body(LOOP))
    before = [line for line in first.splitlines() if "sim" in line]
    assert after.index(before[0]) < min(after.index("import deepspeed"), after.index("from trial_runtime.plain"))


def test_deepspeed_is_sorted_among_packages_that_any_order_suits(tmp_path: Path) -> None:
    assert "import deepspeed\nimport numpy as np\n" in convert(tmp_path, "import numpy as np\n" + body(LOOP))
