"""Files that a script makes where they are not there yet, and reads: ranks find them alike, and whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, convert, run

IMPORTS = "import os\nimport pickle\nimport numpy as np\n"


@pytest.mark.parametrize(
    ("path", "read", "write"),
    [
        ('"mean.npy"', 'np.load("mean.npy")', 'np.save("mean.npy", mean)'),
        ('"mean" + ".npy"', 'np.load("mean.npy")', 'np.save("mean", mean)'),
        ('f"{name}.npy"', 'np.load(f"{name}.npy")', "np.save(name, mean)"),
        ('"mean.pt"', 'torch.load("mean.pt")', 'torch.save(mean, "mean.pt")'),
        ('"mean.pkl"', 'pickle.load(open("mean.pkl", "rb"))', 'pickle.dump(mean, open("mean.pkl", "wb"))'),
    ],
)
def test_what_rank_0_makes_before_the_others_look_is_not_for_review(
    path: str, read: str, write: str, tmp_path: Path
) -> None:
    cache = (
        f'name = "mean"\nif os.path.exists({path}):\n    mean = {read}\nelse:\n    mean = torch.ones(1)\n    {write}\n'
    )
    report = run(tmp_path, train=IMPORTS + HEADER + cache + LOOP)
    assert b"with rank_0_first():\n" in (report.files[0].after or b"") and not list(report.findings(Severity.REVIEW))


@pytest.mark.parametrize(
    ("look", "cache"),
    [
        (
            "os.path.isfile(path)",
            """
def statistics(path):
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return pickle.load(file)
    mean = np.ones(1)
    with open(path, "wb") as file:
        pickle.dump(mean, file)
    return mean


mean = statistics("mean.pkl")
""",
        ),
        (
            'os.path.exists("mean" + ".npy")',
            """
found = os.path.exists("mean" + ".npy")
if found:
    mean = np.load("mean.npy")
else:
    mean = np.ones(1)
    np.save("mean", mean)
""",
        ),
    ],
)
def test_rank_0_looks_for_all_ranks_whether_a_file_is_there(look: str, cache: str, tmp_path: Path) -> None:
    assert f" rank_0_decides({look})" in convert(tmp_path, IMPORTS + HEADER + cache + LOOP)


@pytest.mark.parametrize(
    ("look", "decided"),
    [
        ("if os.path.exists(path) and not force:\n        raise FileExistsError(path)", "if rank_0_decides("),
        ('if os.path.isfile(path):\n        sys.exit(f"{path} is there")', "if rank_0_decides(os.path.isfile(path)):"),
    ],
)
def test_ranks_do_not_end_by_what_rank_0_has_just_saved(look: str, decided: str, tmp_path: Path) -> None:
    save = f"import sys\n\n\ndef save(path, force=False):\n    {look}\n    torch.save(model.state_dict(), path)\n\n\n"
    assert decided in convert(tmp_path, IMPORTS + HEADER + save + LOOP + 'save("model.pt")\n')


def test_a_look_by_which_some_ranks_may_end_is_for_review(tmp_path: Path) -> None:
    save = (
        "def save(path):\n    if os.path.exists(path):\n        raise FileExistsError(path)\n"
        "    torch.save(model.state_dict(), path)\n\n\n"
    )
    report = run(tmp_path, train=IMPORTS + HEADER + save + LOOP + 'if loss < 1:\n    save("model.pt")\n')
    assert any("take the other branch" in note.message for _, note in report.findings(Severity.REVIEW))


def test_ranks_wait_behind_what_makes_a_file_that_is_not_there(tmp_path: Path) -> None:
    made = 'if not os.path.exists("mean.npy"):\n    np.save("mean.npy", np.ones(1))\n'
    after = convert(tmp_path, IMPORTS + HEADER + made + 'mean = np.load("mean.npy")\n' + LOOP)
    assert '    np.save("mean.npy", np.ones(1))\nwait_for_all_ranks()\nmean = np.load("mean.npy")\n' in after


def test_a_file_that_is_saved_behind_training_is_looked_for_as_before(tmp_path: Path) -> None:
    resume = 'if os.path.exists("a.pt"):\n    start = torch.load("a.pt")["epoch"]\n'
    after = convert(tmp_path, IMPORTS + HEADER + resume + LOOP + 'torch.save({"epoch": 1}, "a.pt")\n')
    assert 'if os.path.exists("a.pt"):\n' in after and "rank_0_decides" not in after


def test_a_file_that_nothing_reads_is_looked_for_as_before(tmp_path: Path) -> None:
    lines = 'if os.path.exists("a.pt"):\n    done = True\nelse:\n    torch.save({"epoch": 1}, "a.pt")\n'
    assert "rank_0_decides" not in convert(tmp_path, IMPORTS + HEADER + lines + LOOP)


def test_where_rank_0_cannot_look_for_all_that_is_for_review(tmp_path: Path) -> None:
    cache = 'try:\n    mean = np.load("a.npy")\nexcept OSError:\n    mean = np.ones(1)\n    np.save("a.npy", mean)\n'
    report = run(tmp_path, train=IMPORTS + HEADER + cache + LOOP)
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert found == ["a rank may find this file once rank 0 has written it, and take the other branch"]


def test_ranks_wait_before_they_print_what_all_of_them_read(tmp_path: Path) -> None:
    lines = 'np.save("a", np.ones(1))\nprint(np.load("a.npy"))\n'
    after = convert(tmp_path, IMPORTS + HEADER + lines + LOOP)
    assert 'wait_for_all_ranks()\ntext = np.load("a.npy")\nif is_main_rank():\n    print(text)\n' in after


@pytest.mark.parametrize(("folds", "waits"), [("[0, 1]", True), ("os.environ['FOLDS']", False)])
def test_settings_in_the_body_of_a_class_are_the_same_on_all_ranks(folds: str, waits: bool, tmp_path: Path) -> None:
    """As in scripts for competitions: a rank read what rank 0 had not written yet."""
    loop = LOOP.replace(
        "loader = ", "if 0 in CFG.folds:\n    np.save('a.npy', np.ones(1))\n    best = np.load('a.npy')\nloader = "
    )
    text = f"{IMPORTS}{HEADER}class CFG:\n    folds = {folds}\n{loop}"
    assert ("    wait_for_all_ranks()\n    best = " in convert(tmp_path, text)) is waits
