"""The batch size in an engine's config, where branches may not have run."""

from __future__ import annotations

from pathlib import Path

from plain_loops import HEADER, convert

FIT = """
def fit(train, val=None):
    model = Net()
    if val is None:
        size = train.batch_size or 4
        loader = DataLoader(train.dataset, batch_size=size, shuffle=True)
    else:
        loader = train
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        STEP

fit(DataLoader(data, batch_size=4))
"""


def test_a_batch_size_of_a_branch_that_may_not_run_is_not_read_behind_it(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + FIT)
    assert "size," not in after.split("micro_batch_size_per_gpu")[1].splitlines()[0]
