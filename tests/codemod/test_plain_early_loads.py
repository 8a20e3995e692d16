"""Reviews of files that ranks may load before rank 0 has saved them: where one run may do both."""

from __future__ import annotations

from pathlib import Path

from ds_migrate.findings import Severity
from plain_loops import HEADER, reviews, run

KEEPER = """\
class Keeper:
    def __init__(self, model):
        self.model = model

    def fit(self, loader):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(self.model(x), y).backward()
            optimizer.step()

    def keep(self):
        torch.save(self.model.state_dict(), "best.pt")

    def load(self, path):
        self.model.load_state_dict(torch.load(path))

    def restore(self, path):
        self.model.load_state_dict(torch.load(path))
"""
FITS = "keeper = Keeper(Net())\nkeeper.fit(DataLoader(data, batch_size=4))\nkeeper.keep()\n"
EARLY = "a rank may load this file before rank 0 has saved it"


def _early(folder: Path, end: str, **files: str) -> list[str]:
    keeper = f"{HEADER}\n\n{KEEPER}"
    report = run(
        folder, keeper=keeper, train=f"from keeper import DataLoader, Keeper, Net, data\n\n{FITS}{end}", **files
    )
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    return [message for message in found if message.startswith(EARLY)]


def test_a_load_that_no_run_has_follow_a_save_is_not_for_review(tmp_path: Path) -> None:
    """A method of this name was named by torch.load(); one that another script calls runs in another process."""
    assert _early(tmp_path, "") == []
    other = (
        "import sys\nfrom keeper import Keeper, Net\n\nif len(sys.argv) > 1:\n    Keeper(Net()).restore(sys.argv[1])\n"
    )
    assert _early(tmp_path, "", other=f"{other}    Keeper(Net()).load('a')\n") == []


def test_loads_that_may_follow_a_save_under_other_names_have_one_review(tmp_path: Path) -> None:
    end = "for name in ('load', 'restore'):\n    print(getattr(keeper, name))\n"
    assert _early(tmp_path, end) == [f"{EARLY}, where one run trains first; so in restore() of keeper.py"]


def test_a_load_behind_a_save_of_the_same_run_is_for_review(tmp_path: Path) -> None:
    end = "for path in sorted(set(open('names').read().split())):\n    (lambda: keeper.load(path))()\n"
    assert _early(tmp_path, end) == [EARLY]


def test_a_load_before_the_save_of_another_round_is_for_review(tmp_path: Path) -> None:
    fold = "def fold(keeper):\n    (lambda: keeper.load('best.pt'))()\n    keeper.fit(DataLoader(data, batch_size=4))\n"
    end = f"\n\n{fold}    keeper.keep()\n\n\nfor _ in range(2):\n    fold(keeper)\n"
    assert _early(tmp_path, end) == [EARLY]


def test_loads_of_a_library_whose_callers_train_have_one_review(tmp_path: Path) -> None:
    found = [message for message in reviews(tmp_path, f"{HEADER}\n\n{KEEPER}") if message.startswith(EARLY)]
    assert found == [f"{EARLY}, where one run trains first; so in restore() of train.py"]
