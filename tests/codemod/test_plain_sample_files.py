"""Files that plain loops write for each sample, and files that libraries write on all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, run

IMPORTS = "import os\nfrom pathlib import Path\nimport numpy as np\nfrom torchvision.utils import save_image\n"
NAMED = "these files are named by the samples of a batch: rank 0 alone writes those of its share"


@pytest.mark.parametrize(
    ("write", "is_reviewed"),
    [
        ("for name, out in zip(y, model(x)):\n    np.save(os.path.join('a', f'{name}.npy'), out)", True),
        ("for i in range(len(y)):\n    save_image(x[i], 'a/' + y[i] + '.png')", True),
        ("for name in y:\n    path = Path('a') / (name + '.txt')\n    path.write_text(name)", True),
        ("for name in y:\n    with open('a/%s.txt' % name, 'w') as f:\n        f.write(name)", True),
        ("for name in y:\n    write(f'a/{name}', x)", True),
        ("torch.save(x, f'{y[0]}.pt')", True),
        ("torch.save(x, f'{loss.item():.2f}.pt')", False),
        ("for i, one in enumerate(x):\n    torch.save(one, f'{i}.pt')", False),
        ("for name, number in {'loss': loss}.items():\n    np.save(f'{name}.npy', number)", False),
        ("write('a', x)", False),
    ],
)
def test_files_that_are_named_by_samples_are_for_review(write: str, is_reviewed: bool, tmp_path: Path) -> None:
    made = "def write(path, image):\n    np.save(path + '.npy', image)\n\n\n"
    train = f"{IMPORTS}{HEADER}{made}{LOOP}" + "".join(f"    {line}\n" for line in write.splitlines())
    found = [f.message for _, f in run(tmp_path, train=train).findings(Severity.REVIEW)]
    assert found == [NAMED] * is_reviewed


def test_files_of_samples_of_data_that_ranks_do_not_share_are_rank_0s(tmp_path: Path) -> None:
    later = "for x, y in DataLoader(data):\n    for name in y:\n        np.save(f'{name}.npy', model(x))\n"
    report = run(tmp_path, train=IMPORTS + HEADER + LOOP + later)
    assert b"if is_main_rank():" in (report.files[0].after or b"") and not list(report.findings(Severity.REVIEW))


OF_DATASET = """\
class Images(torch.utils.data.Dataset):
    def __init__(self, files):
        self.files = [[file, Path(file).with_suffix('.npy')] for file in files]

    def __getitem__(self, i):
        file, kept = self.files[i]
        if not kept.exists():
            WRITE
        return np.load(kept)


"""
DRAWN = "each rank writes the files of samples that it draws: one that draws the same may read a part"


@pytest.mark.parametrize(
    "write",
    [
        "np.save(kept.as_posix(), np.loadtxt(file))",
        "with open(kept, 'wb') as f: f.write(file)",
        "torch.save(file, kept)",
    ],
)
def test_each_rank_writes_the_file_that_a_dataset_keeps_of_a_sample(write: str, tmp_path: Path) -> None:
    dataset = OF_DATASET.replace("WRITE", write)
    report = run(tmp_path, train=IMPORTS + dataset + HEADER + LOOP.replace("(data,", "(Images(os.listdir('.')),"))
    assert write in (report.files[0].after or b"").decode()
    assert [f.message for _, f in report.findings(Severity.REVIEW)] == [DRAWN]


def test_a_file_that_no_sample_names_is_rank_0s_in_a_dataset_too(tmp_path: Path) -> None:
    write = "np.save('last.npy', self.files[i])"
    report = run(tmp_path, train=IMPORTS + OF_DATASET.replace("WRITE", write) + HEADER + LOOP)
    assert b"if not kept.exists() and is_main_rank():" in (report.files[0].after or b"")


WRITERS = "import h5py\nimport cv2\nimport zarr\nimport pandas as pd\n"
WRITERS += "import gym\nimport gymnasium\nimport nibabel as nib\nimport pysenal\nfrom pysenal import write_json\n"
OPENED = "every rank opens this file to write it, at the same time"
WRITTEN = "every rank writes this file, at the same time"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("f = zarr.open('a.zarr', mode='w')", [OPENED]),
        ("f = cv2.VideoWriter('a.mp4', 1, 2)", [OPENED]),
        ("env = gymnasium.wrappers.RecordVideo(None, 'videos')", [OPENED]),
        ("env = gym.wrappers.RecordVideo(None, f'videos/{rank}')", [OPENED]),
        ("write_json('a/b.json', {'a': 1})", [WRITTEN]),
        ("path = os.path.join('a', 'b')\nwrite_json(path, {'a': 1})", [WRITTEN]),
        ("folder = Path('a')\nwrite_json(str(folder / 'b.json'), {'a': 1})", [WRITTEN]),
        ("def dump(path):\n    write_json(path, {'a': 1})\n\n\ndump('a/b.json')", [WRITTEN]),
        ("def dump(name):\n    write_json(name, {'a': 1})\n\n\ndump('a')", []),
        ("nib.load('a').to_filename(os.path.join('a', 'b'))", [WRITTEN]),
        ("pysenal.write('a/b.txt', 'a')", [WRITTEN]),
        ("f = np.memmap('a.bin', 'uint8', 'w+')", [OPENED]),
        ("f = np.memmap('a.bin', 'uint8', 'r')", []),
        ("f = h5py.File('a.h5', 'a' if rank else 'w')", [OPENED]),
        ("f = h5py.File('a.h5', 'r+')", [OPENED]),
        ("f = open('a.json', 'r+')", [OPENED]),
        ("f = open('a.json', os.environ['MODE'])", [OPENED]),
        ("f = open('a.json', 'r' if rank else 'w')", [OPENED]),
        ("if rank == 0:\n    write_json('a/b.json', {'a': 1})", []),
        ("pd.DataFrame([1]).to_csv('a.csv')", []),
        ("Path('a').unlink()", []),
        ("Path('a').rename('b')", []),
    ],
)
def test_files_that_all_ranks_write_by_a_library_are_for_review(line: str, found: list[str], tmp_path: Path) -> None:
    report = run(tmp_path, train=f"{IMPORTS}{WRITERS}{HEADER}rank = 0\n{LOOP}{line}\n")
    assert [f.message for _, f in report.findings(Severity.REVIEW)] == found
    after = (report.files[0].after or b"").decode()
    assert ("if is_main_rank():\n    " + line in after) is (line.startswith(("pd.", "Path")))


OWN_SAVE = """\
class Report:
    def save(self, path):
        Path(path).write_text("done")


"""


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("SentenceTransformer('a')", [WRITTEN]),
        ("SentenceTransformer.from_pretrained('a')", [WRITTEN]),
        ("Report()", []),
        ("elsewhere.Report()", []),
        ("load('a')", []),
    ],
)
def test_a_method_of_a_library_writes_though_the_program_has_one_of_that_name(
    made: str, found: list[str], tmp_path: Path
) -> None:
    imports = f"{IMPORTS}import elsewhere\nfrom sentence_transformers import SentenceTransformer, load\n"
    report = run(
        tmp_path, train=f"{imports}{HEADER}{OWN_SAVE}kept = {made}\n{LOOP}    kept.save(os.path.join('a', 'b'))\n"
    )
    assert [f.message for _, f in report.findings(Severity.REVIEW)] == found


GUARDED = """\
import shutil
import torchvision.transforms as T
from PIL import Image
from plyfile import PlyData
to_image = T.ToPILImage()
ply = PlyData([])
folder = Path("a")
"""


@pytest.mark.parametrize(
    "line",
    [
        "T.ToPILImage()(y).save('a.png')",
        "to_image(y.cpu()).save(folder / 'a.png')",
        "Image.fromarray(y.numpy()).resize((2, 2)).save('a.png')",
        "ply.write('a.ply')",
        "(folder / 'a').rename(folder / 'b')",
        "shutil.copytree('a', 'b')",
    ],
)
def test_rank_0_alone_saves_what_calls_in_a_row_make(line: str, tmp_path: Path) -> None:
    report = run(tmp_path, train=f"{IMPORTS}{GUARDED}{HEADER}{LOOP}{line}\n")
    after = (report.files[0].after or b"").decode()
    assert f"if is_main_rank():\n    {line}" in after and not list(report.findings(Severity.REVIEW))


def test_a_library_that_writes_where_rank_0_alone_comes_stays(tmp_path: Path) -> None:
    saved = "def save(path):\n    write_json(path + '/a.json', {})\n\n\n"
    later = "if rank == 0:\n    save('b')\n"
    report = run(tmp_path, train=f"{IMPORTS}{WRITERS}{HEADER}{saved}rank = 0\n{LOOP}{later}")
    assert not list(report.findings(Severity.REVIEW))


def test_a_save_in_which_all_ranks_take_part_is_not_for_review(tmp_path: Path) -> None:
    state = "{'model': model.state_dict(), 'optimizer': optimizer.state_dict()}"
    report = run(tmp_path, train=f"{IMPORTS}{HEADER}{LOOP}torch.save({state}, os.path.join('a', 'b.pt'))\n")
    assert b"save_on_main_rank(" in (report.files[0].after or b"") and not list(report.findings(Severity.REVIEW))


def test_an_archive_of_a_helper_that_another_loop_uses_is_for_review(tmp_path: Path) -> None:
    """The helper keeps its output, as the loop beside it stays: what it opens had no review."""
    helper = "import h5py\n\n\ndef save(path):\n    with h5py.File(path, 'a') as f:\n        f['a'] = 1\n"
    use = "from helper import save\nsave('a.h5')\n"
    left = f"def train(model, optimizer, loss):\n    loss.backward()\n    optimizer.step()\n\n\n{use}"
    report = run(tmp_path, helper=helper, train=f"{HEADER}{LOOP}{use}", left=left)
    found = [f.message for at, f in report.findings(Severity.REVIEW) if at.path.name == "helper.py"]
    assert found == [OPENED]
