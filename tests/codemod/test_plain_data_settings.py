"""Settings of datasets and samplers that follow what a loop measures of its share of the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, body, convert, reviews, run

CURRICULUM = """\
from torch.utils.data import Dataset


class Sequences(Dataset):
    def __init__(self):
        self.length, self.shown = 1, 0

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return data[i][0] * self.length, data[i][1]

    def grow(self, loss):
        if loss < 0.5:
            self.length += 1

    def set_length(self, length):
        self.length = length


sequences = Sequences()
loader = DataLoader(sequences, batch_size=4)
MAKE_MODEL
for epoch in range(3):
    for x, y in loader:
        LOSS_STEP
    CHANGE
"""
CHANGED = "each rank has its own length of the data, by what its share gives, and draws other samples"


def _converted(change: str, tmp_path: Path) -> tuple[str, list[str]]:
    report = run(tmp_path, train=HEADER + CURRICULUM.replace("CHANGE", change))
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    return (report.files[0].after or b"").decode(), found


@pytest.mark.parametrize(
    ("change", "decided"),
    [
        ("if loss < 0.5:\n        sequences.length += 1", "if mean_over_ranks(loss) < 0.5:"),
        ("sequences.grow(loss.item())", "if rank_0_decides(loss < 0.5):"),
    ],
)
def test_rank_0_decides_whether_the_data_changes(change: str, decided: str, tmp_path: Path) -> None:
    """Each rank changed its own dataset when its share was easy, and trained on other samples."""
    after, found = _converted(change, tmp_path)
    assert decided in after and not found


@pytest.mark.parametrize(
    "change", ["sequences.length = 1 + loss.item()", "sequences.set_length(int(1 / (1 + loss.item())))"]
)
def test_a_setting_of_the_data_that_differs_by_rank_is_for_review(change: str, tmp_path: Path) -> None:
    assert _converted(change, tmp_path)[1] == [CHANGED]


@pytest.mark.parametrize(
    "change",
    ["sequences.length = epoch", "if loss < 0.5:\n        sequences.shown += 1", "sequences.set_length(epoch)"],
)
def test_a_setting_that_is_the_same_on_each_rank_or_that_no_sample_is_made_of_stays(
    change: str, tmp_path: Path
) -> None:
    after, found = _converted(change, tmp_path)
    assert not found and change in after and "rank_0_decides" not in after


FRAMES = """\
class Frames(DataLoader):
    def __iter__(self):
        GIVE


loader = Frames(data, batch_size=4)
MAKE_MODEL
for x, y in loader:
    STEP
"""
OWN_BATCHES = "the class of this loader draws its batches itself: several ranks train on the same data"


@pytest.mark.parametrize(
    ("give", "is_divided"),
    [
        ("yield from (self.dataset[i : i + 4] for i in range(0, len(self.dataset), 4))", False),
        ("yield from tqdm(super().__iter__(), total=len(self.dataset))", True),
        ("return iter([self.dataset[rows] for rows in self.batch_sampler])", True),
    ],
)
def test_a_loader_whose_class_draws_batches_without_a_sampler_is_for_review(
    give: str, is_divided: bool, tmp_path: Path
) -> None:
    text = body(FRAMES.replace("GIVE", give))
    assert (OWN_BATCHES in reviews(tmp_path, text)) is not is_divided
    assert ("shard(Frames(" in convert(tmp_path, text)) is is_divided
