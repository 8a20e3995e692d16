"""Calls of libraries that get the path of a file which rank 0 writes: they may read it, whatever their names are."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import HEADER, LOOP, convert

IMPORTS = "import os\nimport chem\nimport pandas\n"
WRITTEN = 'path = os.path.join("out", "molecules.csv")\npandas.DataFrame({"a": [1]}).to_csv(path)\n'


@pytest.mark.parametrize(
    "lines",
    [
        WRITTEN + "builder = chem.GraphBuilder(path)\n",
        WRITTEN + "found = chem.graphs.parse(source=path)\n",
        WRITTEN + "builder = chem.GraphBuilder()\nbuilder.run(path)\n",
        WRITTEN + "graph = chem.Graph()\nfor _ in data:\n    graph = graph.join(path)\n",
        WRITTEN
        + "def build(size, source):\n    return chem.GraphBuilder(source, size)\nbuilder = build(3, source=path)\n",
        'pandas.DataFrame({"a": [1]}).to_csv("molecules.csv")\nbuilder = chem.GraphBuilder("molecules.csv")\n',
    ],
)
def test_ranks_wait_before_a_library_gets_the_path_that_rank_0_has_written(lines: str, tmp_path: Path) -> None:
    """Other ranks read a file that was not there yet."""
    after = convert(tmp_path, IMPORTS + HEADER + lines + LOOP)
    assert "if is_main_rank():" in after and after.count("wait_for_all_ranks()\n") == 1


@pytest.mark.parametrize(
    "lines",
    ["builder = chem.GraphBuilder('other.csv')\n", "print(os.path.basename(path))\n", "chem.log_artifact(path)\n",
     "text = str()\ntext.strip(path)\n" ],
)  # fmt: skip
def test_ranks_do_not_wait_before_other_calls(lines: str, tmp_path: Path) -> None:
    assert "wait_for_all_ranks()" not in convert(tmp_path, IMPORTS + HEADER + WRITTEN + lines + LOOP)


SAVED = "import json\nimport torch\nout = 'out'\n"
SAVE = "torch.save({'a': 1}, os.path.join(out, 'best.pt'))\n"


@pytest.mark.parametrize(
    "lines",
    [
        SAVE + "found = chem.restore(out, 'best')\n",
        SAVE + "found = chem.Evaluator(folder=out, name='best.pt').run()\n",
        SAVE
        + "def restore(prefix):\n    return torch.load(prefix + '.pt')\nfound = restore(os.path.join(out, 'best'))\n",
        SAVE + "found = torch.load('%s/%s.pt' % (out, 'best'))\n",
        "with open(os.path.join(out, 'a.json'), 'w') as f:\n    json.dump({}, f)\nfound = chem.Config(out)\n",
        "with open(out + '/a.json', 'w') as f:\n    json.dump({}, f)\nfound = chem.Config.from_file(out + '/a.json')\n",
    ],
)
def test_ranks_wait_before_a_file_is_read_by_its_folder_or_a_part_of_its_name(lines: str, tmp_path: Path) -> None:
    after = convert(tmp_path, IMPORTS + SAVED + HEADER + LOOP + lines)
    assert after.count("wait_for_all_ranks()\n") == 1


@pytest.mark.parametrize(
    "lines",
    ["found = torch.load('%s/%s.bin' % (out, 'best'))\n", "found = chem.restore('other', 'best')\n",
     "for sample in range(4):\n    found = torch.load(f'{sample}.pt')\n"],
)  # fmt: skip
def test_ranks_do_not_wait_before_other_files_are_read(lines: str, tmp_path: Path) -> None:
    assert "wait_for_all_ranks()" not in convert(tmp_path, IMPORTS + SAVED + HEADER + LOOP + SAVE + lines)


def test_a_setting_of_a_plot_is_no_path(tmp_path: Path) -> None:
    """As ``plt.show(block=False)``: ranks waited before each call that got ``False``, too."""
    drawn = "import matplotlib.pyplot as plt\nimport numpy as np\nplt.show(block=False)\n"
    after = convert(tmp_path, HEADER + drawn + "chosen = np.random.choice(8, 2, replace=False)\n" + LOOP)
    assert "    plt.show(block=False)\n" in after and "wait_for_all_ranks" not in after
