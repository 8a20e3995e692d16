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
