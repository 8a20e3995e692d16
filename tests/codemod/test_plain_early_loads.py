"""Reviews of files that ranks may load before rank 0 has saved them: where one run may do both."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, convert, run

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


def test_a_load_that_nothing_shows_to_follow_a_save_is_not_for_review(tmp_path: Path) -> None:
    """It was, and none of five such loads came behind a save: a model that is made loads what another run has saved."""
    assert _early(tmp_path, "for name in ('load', 'restore'):\n    print(getattr(keeper, name))\n") == []


def test_a_load_behind_a_save_of_the_same_run_is_for_review(tmp_path: Path) -> None:
    """The name of one file was enough for each load of another: it had a review, too."""
    end = "(lambda: keeper.load('NAME'))()\n"
    assert _early(tmp_path, end.replace("NAME", "best.pt")) == [EARLY]
    assert _early(tmp_path, end.replace("NAME", "other.pt")) == []


def test_ranks_wait_for_the_save_of_the_round_before(tmp_path: Path) -> None:
    """They wait where all of them call the function, as they cannot in the lambda that loads."""
    fold = "def fold(keeper):\n    (lambda: keeper.load('best.pt'))()\n    keeper.fit(DataLoader(data, batch_size=4))\n"
    end = f"\n\n{fold}    keeper.keep()\n\n\nfor _ in range(2):\n    fold(keeper)\n"
    after = convert(tmp_path, f"{HEADER}\n\n{KEEPER}\n\n{FITS}{end}")
    assert "for _ in range(2):\n    wait_for_all_ranks()\n    fold(keeper)\n" in after


@pytest.mark.parametrize(("name", "is_reviewed"), [("setUp", False), ("tearDownClass", False), ("__enter__", True)])
def test_what_unittest_runs_around_tests_is_in_one_process(name: str, is_reviewed: bool, tmp_path: Path) -> None:
    """pytest starts no ranks: each setUp() that makes a folder had a review."""
    case = f"class TestNet(unittest.TestCase):\n    def {name}(self):\n        self.folder = tempfile.mkdtemp()\n"
    case += "        np.save(f'{self.folder}/a.npy', Net())\n        np.load(f'{self.folder}/a.npy')\n"
    test = f"import tempfile\nimport unittest\nimport numpy as np\nfrom train import Net\n\n\n{case}"
    report = run(tmp_path, train=HEADER + LOOP, test_net=test)
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert any("temporary folder" in message for message in found) is is_reviewed


def test_all_ranks_wait_before_they_load_a_folder_that_goes_through_several_functions(tmp_path: Path) -> None:
    text = """
from pathlib import Path

from transformers import AutoModel


def load(base):
    path = Path(base)
    name = str(path) if path.is_dir() else base
    return AutoModel.from_pretrained(name)


def export(base):
    return load(base)


def train(base, root):
    model = load(base)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    folder = Path(root) / "trained"
    model.save_pretrained(folder)
    export(str(folder))


train("base", "out")
"""
    after = (run(tmp_path, train=HEADER + text).files[0].after or b"").decode()
    assert "    wait_for_all_ranks()\n    return AutoModel.from_pretrained(name)\n" in after


OPTIONS = """\
def restore(model, path):
    model.load_state_dict(torch.load(path))


MAKE_MODEL
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    STEP
torch.save(model.state_dict(), "last.pt")
if options.path:
    restore(model, options.path)
"""


@pytest.mark.parametrize(
    ("parse", "is_alike"),
    [
        ("options, _ = argparse.ArgumentParser().parse_known_args()", True),
        ("(options, rest) = optparse.OptionParser().parse_args(sys.argv)", True),
        ("options, _ = read_options()", True),
        ('options = argparse.ArgumentParser().parse_args()\noptions.path = f"{options.root}/last.pt"', True),
        ("options = argparse.ArgumentParser().parse_args()\noptions.path = time.time() > 9", False),
        ("options = argparse.ArgumentParser().parse_args()\noptions.path = options.a if options.b else None", True),
    ],
)
def test_options_are_alike_on_all_ranks_however_they_are_taken(parse: str, is_alike: bool, tmp_path: Path) -> None:
    text = "import argparse\nimport optparse\nimport sys\nimport time\n\n" + HEADER + parse + "\n\n\n" + OPTIONS
    after = convert(tmp_path, text)
    assert "wait_for_all_ranks()" in after
    assert ("rank_0_decides(options.path)" in after) is not is_alike
