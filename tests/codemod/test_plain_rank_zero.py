"""What only rank 0 does in a converted loop: files, folders, progress bars, trackers."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, body, convert, run

IMPORTS = """\
import logging
import logging.handlers
import os
import click
import loguru
from rich import progress
from rich.console import Console
import pathlib
import mlflow
import tqdm
import wandb
from os import mkdir
from os.path import exists
from tqdm.auto import tqdm as bar
from matplotlib import pyplot as plt
from torch.utils.tensorboard import SummaryWriter
"""
MADE_BY_HELPER = "if not os.path.exists('a'):\n    utils.mkdir('a')\n"


@pytest.mark.parametrize(
    ("line", "converted"),
    [
        ("b = bar(loader, desc='a',)", "b = bar(loader, desc='a', disable=not is_main_rank())"),
        ("b = tqdm.trange(3)", "b = tqdm.trange(3, disable=not is_main_rank())"),
        ("w = SummaryWriter('a')", "w = SummaryWriter('a') if is_main_rank() else NoTracker()"),
        ("wandb.init(project='a')", "wandb.init(project='a', mode=None if is_main_rank() else \"disabled\")"),
        ("wandb.init(mode=how)", 'wandb.init(mode=how if is_main_rank() else "disabled")'),
        ("f = open('a', 'w')", "f = open('a' if is_main_rank() else os.devnull, 'w')"),
        ("f = jsonlines.open('a', 'w')", "f = jsonlines.open('a' if is_main_rank() else os.devnull, 'w')"),
        ("f = open('a', 'a' if how else 'w')", "f = open('a' if is_main_rank() else os.devnull, 'a' if how else 'w')"),
        ("f = open('a', mode)", "f = open('a' if is_main_rank() else os.devnull, mode)"),
        ("f = open('a', 'xb')", "f = open('a', 'xb') if is_main_rank() else open(os.devnull, 'wb')"),
        ("f = p.open(mode='x')", "f = p.open(mode='x') if is_main_rank() else open(os.devnull, mode='w')"),
        ("with open('a', mode='ab') as f: f.write(b'')", "with open('a' if is_main_rank() else os.devnull, mode='ab')"),
        ("h = logging.FileHandler('a')", "h = logging.FileHandler('a' if is_main_rank() else os.devnull)"),
        (
            "h = logging.handlers.RotatingFileHandler('a', maxBytes=9)",
            "h = logging.handlers.RotatingFileHandler('a' if is_main_rank() else os.devnull, maxBytes=9)",
        ),
        ("logging.basicConfig(filename='a')", "logging.basicConfig(filename='a' if is_main_rank() else os.devnull)"),
        ("if not os.path.exists('a'): os.mkdir('a')", "if not os.path.exists('a'): os.makedirs('a', exist_ok=True)"),
        ("if not exists('a'): mkdir('a')", "if not exists('a'): os.makedirs('a', exist_ok=True)"),
        ("if not p.is_dir(): p.mkdir(parents=True)", "if not p.is_dir(): p.mkdir(parents=True, exist_ok=True)"),
        (
            "try: os.stat('a')\nexcept OSError: os.makedirs('a')",
            "try: os.stat('a')\nexcept OSError: os.makedirs('a', exist_ok=True)",
        ),
        ("os.makedirs('a')", "if is_main_rank():\n    os.makedirs('a')"),
        ("plt.savefig('a.png')", "if is_main_rank():\n    plt.savefig('a.png')"),
        ("bar.write('a')", "if is_main_rank():\n    bar.write('a')"),
        ("click.echo('a')", "if is_main_rank():\n    click.echo('a')"),
        ("loguru.logger.info('a')", "if is_main_rank():\n    loguru.logger.info('a')"),
        ("c = Console()\nc.log('a')", "c = Console()\nif is_main_rank():\n    c.log('a')"),
        ("b = progress.track(loader)", "b = progress.track(loader, disable=not is_main_rank())"),
    ],
)
def test_rank_0_alone_shows_writes_and_records(line: str, converted: str, tmp_path: Path) -> None:
    names = "how, p = None, pathlib.Path()\nmode = 'a' if p else 'w'\n"
    after = convert(tmp_path, f"{IMPORTS}{HEADER}{names}{LOOP}{line}\n")
    assert after.split("engine.step()\n")[-1].startswith(converted)


def test_a_folder_that_a_helper_makes_on_some_paths_is_made_once(tmp_path: Path) -> None:
    helper = "import os\n\n\ndef make(path, copies=None):\n    if copies is not None:\n        os.mkdir(path)\n"
    report = run(
        tmp_path, utils=helper, train=f"import glob\nimport utils\n{HEADER}utils.make('a', glob.glob('b'))\n{LOOP}"
    )
    changed = {file.path.stem: file.after for file in report.files if file.after is not None}
    assert b"        if is_main_rank():\n            os.mkdir(path)\n" in changed["utils"]


def test_a_function_of_the_program_that_makes_folders_keeps_its_arguments(tmp_path: Path) -> None:
    helper = "import os\n\n\ndef mkdir(path):\n    os.makedirs(path, exist_ok=True)\n"
    report = run(tmp_path, utils=helper, train=f"import os\nimport utils\n{HEADER}{LOOP}{MADE_BY_HELPER}")
    (changed,) = [file.after for file in report.files if file.after is not None]
    assert changed.decode().endswith(MADE_BY_HELPER)


@pytest.mark.parametrize("end", ["sys.exit('it is there')", "raise SystemExit(1)"])
def test_a_folder_that_must_be_new_is_made_once(end: str, tmp_path: Path) -> None:
    lines = f"try:\n    os.makedirs('a')\nexcept FileExistsError:\n    {end}\n"
    after = convert(tmp_path, f"import sys\n{IMPORTS}{HEADER}{LOOP}{lines}")
    assert "try:\n    if is_main_rank():\n        os.makedirs('a')\nexcept FileExistsError:\n" in after


@pytest.mark.parametrize(
    "lines",
    [
        "b = bar(loader, disable=True)\n",
        "b = bar(loader)\nprint(b.n)\n",
        "f = open('a')\n",
        "os.makedirs('a', exist_ok=True)\n",
        "try: os.mkdir('a')\nexcept OSError: pass\n",
    ],
)
def test_what_every_rank_may_do_stays(lines: str, tmp_path: Path) -> None:
    assert lines.split("\n")[0] + "\n" in convert(tmp_path, IMPORTS + HEADER + LOOP + lines)


@pytest.mark.parametrize(
    "lines",
    [
        "w = SummaryWriter('a')\nfolder = w.log_dir\n",
        "wandb.init()\nrate = wandb.config.lr\n",
        "mlflow.start_run()\n",
        "torch.save(model.state_dict(), 'a')\ntry:\n    loss.item()\nexcept RuntimeError:\n"
        "    model.load_state_dict(torch.load('a'))\n",
    ],
)
def test_what_cannot_be_written_for_all_ranks_is_for_a_person_to_check(lines: str, tmp_path: Path) -> None:
    report = run(
        tmp_path, train=IMPORTS + HEADER + LOOP.replace("shuffle=True", "sampler=DistributedSampler(data)") + lines
    )
    codes = [finding.code for _, finding in report.findings(Severity.REVIEW)]
    assert codes == [Code.PLAIN_RANK_ZERO]


@pytest.mark.parametrize(
    ("uses", "count"),
    [
        ("tracker.log({'loss': 1})\n", 0),
        ("if tracker is not None:\n    tracker.summary['best'] = 1\n    tracker.finish()\n", 0),
        ("if wandb.run is not None:\n    wandb.run.summary['best'] = 1\n    wandb.run.name = 'a'\n", 0),
        ("tracker.config.update({'lr': 1})\n", 0),
        ("print(tracker.id)\n", 1),
        ("rate = tracker.config['lr']\n", 1),
        ("name = wandb.run.name\n", 1),
        ("elsewhere(tracker)\n", 1),
        ("def run():\n    return tracker\n", 1),
    ],
)
def test_a_run_of_wandb_that_is_only_recorded_to_is_disabled_on_other_ranks(
    uses: str, count: int, tmp_path: Path
) -> None:
    report = run(
        tmp_path, train=f"{IMPORTS}{HEADER}from elsewhere import elsewhere\ntracker = wandb.init()\n{LOOP}{uses}"
    )
    (file,) = report.files
    assert len(list(report.findings(Severity.REVIEW))) == count and file.after is not None
    assert (b'tracker = wandb.init(mode=None if is_main_rank() else "disabled")' in file.after) == (count == 0)


@pytest.mark.parametrize(
    ("head", "use", "count"),
    [("wandb.init() as tracker", "tracker.log({})", 0), ("wandb.init()", "print(1)", 0),
     ("wandb.init() as tracker", "print(tracker.name)", 1)],
)  # fmt: skip
def test_a_block_of_a_run_of_wandb_is_disabled_on_other_ranks(head: str, use: str, count: int, tmp_path: Path) -> None:
    report = run(tmp_path, train=f"{IMPORTS}{HEADER}{LOOP}with {head}:\n    {use}\n")
    (file,) = report.files
    assert len(list(report.findings(Severity.REVIEW))) == count and file.after is not None
    assert (b'with wandb.init(mode=None if is_main_rank() else "disabled")' in file.after) == (count == 0)


def test_the_folder_that_a_script_names_is_not_read_of_its_tracker(tmp_path: Path) -> None:
    parsed = "import argparse\nparser = argparse.ArgumentParser()\nargs = parser.parse_args()\n"
    after = convert(tmp_path, IMPORTS + HEADER + parsed + LOOP + "w = SummaryWriter(args.log_dir)\n")
    assert "w = SummaryWriter(args.log_dir) if is_main_rank() else NoTracker()\n" in after


def test_ranks_wait_for_the_weights_that_are_loaded_after_training(tmp_path: Path) -> None:
    load = "state = torch.load('a')\nmodel.load_state_dict(state)\n"
    text = LOOP.replace("for x", load + "for x") + "torch.save(model.state_dict(), 'a')\n" + load
    after = convert(tmp_path, HEADER + text)
    assert (
        after.count("wait_for_all_ranks()\n") == 1
        and "wait_for_all_ranks()\n" + load in after.split("engine.step()")[1]
    )


def test_ranks_wait_before_they_look_for_a_file_or_open_it(tmp_path: Path) -> None:
    save = "torch.save(model.state_dict(), 'a')\n"
    looked = "import os\nif os.path.exists('a'):\n    model.load_state_dict(torch.load('a'))\n"
    after = convert(tmp_path, HEADER + LOOP + save + looked)
    assert "wait_for_all_ranks()\nif os.path.exists('a'):\n    model.load" in after
    opened = "with open('a', 'rb') as f:\n    model.load_state_dict(torch.load(f))\n"
    after = convert(tmp_path, HEADER + LOOP + save + opened)
    assert "wait_for_all_ranks()\nwith open('a', 'rb') as f:\n    model.load" in after


@pytest.mark.parametrize("error", ["ValueError('No model in {}'.format(path))", "FileNotFoundError(path)"])
def test_ranks_wait_before_they_raise_for_a_file_that_is_not_there(error: str, tmp_path: Path) -> None:
    looked = f"import os\npath = 'a'\nif not os.path.exists(path):\n    print(path)\n    raise {error}\n"
    text = LOOP + "torch.save(model.state_dict(), 'a')\n" + looked + "model.load_state_dict(torch.load(path))\n"
    after = convert(tmp_path, HEADER + text)
    assert after.count("wait_for_all_ranks()\n") == 1
    assert "wait_for_all_ranks()\nif not os.path.exists(path):\n" in after


def test_rank_0_decides_where_ranks_wait_under_a_condition(tmp_path: Path) -> None:
    text = "torch.save(model.state_dict(), 'a')\nif play(model):\n    model.load_state_dict(torch.load('a'))\n"
    after = convert(
        tmp_path, HEADER + LOOP + "torch.save(model, 'a')\nif loss < 1: model.load_state_dict(torch.load('a'))\n"
    )
    assert "if mean_over_ranks(loss) < 1:\n    wait_for_all_ranks()\n    model.load" in after
    after = convert(tmp_path, HEADER + LOOP + text)
    assert "if rank_0_decides(play(model)):\n    wait_for_all_ranks()\n    model.load" in after


LOOKS = """
    def prepare(folder):
        if os.path.exists(folder):
            WAY
        os.makedirs(folder)


    prepare("run")
    MAKE_MODEL
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        STEP
    """


@pytest.mark.parametrize(
    "way",
    ["raise FileExistsError(folder)", "sys.exit(1)", "return 'again'", "again = True", "input('{}?'.format(folder))"],
)
def test_rank_0_looks_for_the_folder_that_it_makes(way: str, tmp_path: Path) -> None:
    after = convert(tmp_path, "import os\nimport sys\n" + body(LOOKS.replace("WAY", way)))
    assert f"    if rank_0_decides(os.path.exists(folder)):\n        {way}\n" in after


@pytest.mark.parametrize("line", ["from os.path import exists", "from os.path import exists as is_there"])
def test_an_imported_function_looks_for_a_folder_too(line: str, tmp_path: Path) -> None:
    look = f"{line.rpartition(' ')[2]}(folder)"
    text = LOOKS.replace("WAY", "return 1").replace("os.path.exists(folder)", look)
    assert f"if rank_0_decides({look}):" in convert(tmp_path, f"import os\n{line}\n" + body(text))


def test_a_folder_that_rank_0_clears_and_makes_needs_no_decision(tmp_path: Path) -> None:
    after = convert(tmp_path, "import os\nimport shutil\n" + body(LOOKS.replace("WAY", "shutil.rmtree(folder)")))
    assert "rank_0_decides" not in after and "if os.path.exists(folder) and is_main_rank():" in after


def test_a_folder_that_not_all_ranks_look_for_is_for_review(tmp_path: Path) -> None:
    text = LOOKS.replace("WAY", "return 1").replace('prepare("run")', 'if torch.rand(1) < 0.5:\n        prepare("run")')
    report = run(tmp_path, train="import os\n" + body(text))
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert "each rank looks for this folder, and rank 0 may have made it by then" in messages


def test_a_folder_that_rank_0_alone_looks_for_stays_its(tmp_path: Path) -> None:
    text = LOOKS.replace("WAY", "return 1").replace('prepare("run")', 'if rank == 0:\n        prepare("run")')
    assert "rank_0_decides" not in convert(tmp_path, "import os\n\nrank = int(os.environ['RANK'])\n" + body(text))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("\n    range(3), leave=False\n", "\n    range(3), leave=False, disable=not is_main_rank()\n"),
        ("\n    range(3),\n    leave=False,\n", "\n    range(3),\n    leave=False,\n    disable=not is_main_rank(),\n"),
    ],
)
def test_a_progress_bar_on_several_lines_keeps_its_lines(tmp_path: Path, given: str, expected: str) -> None:
    loop = textwrap.indent(LOOP[LOOP.index("for x, y") :], "    ")
    text = f"from tqdm import tqdm\n{LOOP[: LOOP.index('for x, y')]}for epoch in tqdm({given}):\n{loop}"
    assert f"for epoch in tqdm({expected}):\n" in convert(tmp_path, HEADER + text)


@pytest.mark.parametrize(
    ("opened", "is_reviewed"),
    [("zipfile.ZipFile('a', 'w')", True), ("h5py.File('a', mode='a')", True), ("tarfile.open('a', 'w:gz')", True),
     ("zipfile.ZipFile('a')", False), ("h5py.File('a', 'r')", False), ("pd.ExcelWriter('a')", True)],
)  # fmt: skip
def test_an_archive_that_all_ranks_write_is_for_review(opened: str, is_reviewed: bool, tmp_path: Path) -> None:
    imports = "import h5py\nimport pandas as pd\nimport tarfile\nimport zipfile\n"
    text = f"{imports}{HEADER}{LOOP}with {opened} as archive:\n    print(archive)\n"
    found = [finding.message for _, finding in run(tmp_path, train=text).findings(Severity.REVIEW)]
    assert found == (["every rank opens this file to write it, at the same time"] if is_reviewed else [])


@pytest.mark.parametrize("line", ["tifffile.imwrite('a.tif', image)", "TF.to_pil_image(image).save('a.png')"])
def test_rank_0_alone_writes_images_of_other_libraries(line: str, tmp_path: Path) -> None:
    imports = "import tifffile\nfrom torchvision.transforms import functional as TF\nimage = 0\n"
    assert f"if is_main_rank():\n    {line}\n" in convert(tmp_path, imports + HEADER + LOOP + line + "\n")


@pytest.mark.parametrize(
    ("setup", "line", "tracker"),
    [
        ("", "mlflow.log_metric('loss', 1.0)", "MLflow"),
        ("", "wandb.log({'loss': 1.0})", "wandb"),
        ("import nni\n", "nni.report_intermediate_result(1.0)", "NNI"),
        ("from ray import tune\n", "tune.report(loss=1.0)", "Ray"),
        ("import ray.train.torch\nr = ray.train.torch.TorchTrainer(print)\n", "ray.train.report({'a': 1.0})", None),
        ("wandb.init(project='a')\n", "wandb.log({'loss': 1.0})", None),
        ("", "if is_main_rank():\n    mlflow.log_metric('loss', 1.0)", None),
    ],
)
def test_a_record_to_a_run_that_the_program_does_not_start_is_for_review(
    setup: str, line: str, tracker: str | None, tmp_path: Path
) -> None:
    imports = "try:\n    import mlflow\nexcept ImportError:\n    mlflow = None\nimport wandb\n"
    imports += "from trial_runtime.plain import is_main_rank\n" if "is_main_rank" in line else ""
    report = run(tmp_path, train=f"{imports}{HEADER}{setup}{LOOP}{line}\n{line}\n")
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert found == ([f"every rank records to {tracker} here"] if tracker else [])


@pytest.mark.parametrize(
    ("line", "is_reviewed"),
    [("answer = input('Replace it? ')", True), ("if input('{}?'.format(data)) == 'y': pass", True),
     ("if is_main_rank():\n    answer = input('Seen? ')", False),
     ("def input(text): return text\nanswer = input('a')", False)],
)  # fmt: skip
def test_a_question_that_all_ranks_ask_is_for_review(line: str, is_reviewed: bool, tmp_path: Path) -> None:
    text = f"from trial_runtime.plain import is_main_rank\n{HEADER}{line}\n{LOOP}"
    found = [finding.message for _, finding in run(tmp_path, train=text).findings(Severity.REVIEW)]
    assert any("on the terminal" in message for message in found) is is_reviewed


LISTED = """\
import glob
import os
import cv2

def prepare(out):
    for name in ("a", "b"):
        cv2.imwrite(os.path.join(out, name + ".png"), name)

prepare("out")
images = {}
"""


@pytest.mark.parametrize(
    ("listing", "waits"),
    [
        ("glob.glob('out/*.png')", True),
        ("os.listdir(out)", True),
        ("os.listdir('other')", False),
        ("glob.glob('out/*.jpg')", False),
    ],
)
def test_ranks_wait_before_they_list_what_rank_0_writes(listing: str, waits: bool, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + LISTED.replace("{}", listing) + LOOP)
    assert ("wait_for_all_ranks()\nimages = " in after) is waits


FILLED = """\
import glob
import os
import shutil
from pathlib import Path
from torchvision.datasets import ImageFolder


def split(source, target):
    target = Path(target)
    for name in sorted(os.listdir(source)):
        for part in ("train", "val"):
            WRITE


split("raw", "prepared")
files = LIST
"""


@pytest.mark.parametrize(
    "write",
    [
        "shutil.copy2(os.path.join(source, name), target / part / name)",
        "shutil.move(f'{source}/{name}', os.path.join(target, part))",
        "torch.save(name, target / part / name)",
        "with open(target / part / name, 'wb') as file:\n                file.write(b'')",
    ],
)
@pytest.mark.parametrize(
    ("listing", "waits"),
    [
        ("ImageFolder(os.path.join('prepared', 'train'))", True),
        ("list(Path('prepared/train').iterdir())", True),
        ("glob.glob('prepared/train/*.png')", True),
        ("list(Path('prepared', 'train').glob('*.png'))", True),
        ("list(Path('raw').glob('*.png'))", False),
        ("os.listdir('raw')", False),
    ],
)
def test_ranks_wait_before_they_list_a_folder_that_rank_0_fills(
    write: str, listing: str, waits: bool, tmp_path: Path
) -> None:
    after = convert(tmp_path, HEADER + FILLED.replace("WRITE", write).replace("LIST", listing) + LOOP)
    assert ("wait_for_all_ranks()\nfiles = " in after) is waits
    assert after.count("wait_for_all_ranks()") == waits


def test_rank_0_alone_renames_what_it_has_saved(tmp_path: Path) -> None:
    """Each rank called replace(), and the second one found no file."""
    function = (
        "def save(state, path):\n    part = path.with_suffix('.tmp')\n    torch.save(state, part)\n"
        "    part.replace(path)\n\n\n"
    )
    after = convert(
        tmp_path, f"from pathlib import Path\n{HEADER}{function}{LOOP}save(model.state_dict(), Path('a.pt'))\n"
    )
    assert "    if not is_main_rank():\n        return\n    part = path.with_suffix" in after


def test_a_folder_that_ranks_list_too_early_is_for_review(tmp_path: Path) -> None:
    method = (
        "class Data:\n    def __init__(self, out):\n        cv2.imwrite(out + 'a.png', 0)\n"
        "        self.names = os.listdir(out)\n        self.others = os.listdir(out)\n"
    )
    text = f"import os\nimport cv2\n{HEADER}{method}if os.environ['HOSTNAME'] == 'a':\n    Data('a')\n{LOOP}"
    found = [finding.message for _, finding in run(tmp_path, train=text).findings(Severity.REVIEW)]
    assert found.count("a rank may list this folder before rank 0 has written its files") == 1


def test_the_comments_of_a_tracker_s_arguments_stand_once(tmp_path: Path) -> None:
    start = "wandb.init(\n    # where it is recorded\n    project='a',  # ours\n    # what it has\n    config={},\n)\n"
    after = convert(tmp_path, f"import wandb\n{HEADER}{start}{LOOP}")
    assert all(after.count(comment) == 1 for comment in ("# where", "# ours", "# what"))
    assert '    config={},\n    mode=None if is_main_rank() else "disabled",\n)\n' in after


@pytest.mark.parametrize("removed", ['os.remove("best.pt")', 'Path("best.pt").unlink()'])
def test_a_file_that_all_ranks_load_is_removed_behind_all_of_them(removed: str, tmp_path: Path) -> None:
    name = 'Path("best.pt")' if "Path" in removed else '"best.pt"'
    load = f"model.load_state_dict(torch.load({name}))\n"
    text = (
        f"import os\nfrom pathlib import Path\n{HEADER}{LOOP}torch.save(model.state_dict(), {name})\n{load}{removed}\n"
    )
    after = convert(tmp_path, text)
    assert f"wait_for_all_ranks()\n{load}wait_for_all_ranks()\nif is_main_rank():\n    {removed}\n" in after


def test_files_that_all_ranks_read_in_a_loop_are_removed_behind_all_of_them(tmp_path: Path) -> None:
    text = """\
import os
import numpy as np
for i in range(2):
    np.save(f"{i}.npy", np.ones(3))
total = sum(np.load(f"{i}.npy").sum() for i in range(2))
for i in range(2):
    os.remove(f"{i}.npy")
"""
    after = convert(tmp_path, text + HEADER + LOOP)
    read = 'total = sum(np.load(f"{i}.npy").sum() for i in range(2))\n'
    assert f"wait_for_all_ranks()\n{read}wait_for_all_ranks()\nif is_main_rank():\n    for i in" in after


def test_rank_0_alone_removes_a_folder_whose_files_it_has_removed(tmp_path: Path) -> None:
    lines = 'os.makedirs("a", exist_ok=True)\ntorch.save(1, "a/b.pt")\nos.remove("a/b.pt")\nos.rmdir("a")\n'
    after = convert(tmp_path, f"import os\n{HEADER}{LOOP}{lines}")
    assert 'if is_main_rank():\n    torch.save(1, "a/b.pt")\n    os.remove("a/b.pt")\n    os.rmdir("a")\n' in after


def test_the_size_of_a_file_that_rank_0_alone_has_is_printed_by_it_alone(tmp_path: Path) -> None:
    text = """\
import os


def print_size(model):
    torch.save(model.state_dict(), "temp.p")
    print("MB", os.path.getsize("temp.p") / 1e6)
    os.remove("temp.p")


"""
    after = convert(tmp_path, f"{HEADER}{text}{LOOP}print_size(model)\n")
    assert "def print_size(model):\n    if not is_main_rank():\n        return\n    torch.save(" in after


def test_ranks_wait_for_a_file_before_they_ask_for_its_size(tmp_path: Path) -> None:
    save = """\
import os
from pathlib import Path


def save(model, path):
    torch.save(model.state_dict(), f"{path}.tmp")
    os.replace(f"{path}.tmp", path)
    size = path.stat().st_size
    return size


"""
    after = convert(tmp_path, f"{HEADER}{save}{LOOP}size = save(model, Path('best.pt'))\n")
    assert "    wait_for_all_ranks()\n    size = path.stat().st_size\n" in after


@pytest.mark.parametrize("start", ["init", "create"])
def test_a_task_of_clearml_that_every_rank_starts_is_for_review(start: str, tmp_path: Path) -> None:
    task = f"task = clearml.Task.{start}(project_name='a', task_name='b')\n"
    report = run(tmp_path, train=f"import clearml\n{HEADER}{task}{LOOP}")
    assert [f.message for _, f in report.findings(Severity.REVIEW)] == [
        f"every rank records to clearml.Task.{start} here"
    ]


def test_ranks_wait_for_a_file_whose_path_is_an_item_of_a_dict(tmp_path: Path) -> None:
    """A rank that found no file yet returned, and the others waited for it."""
    text = """\
    import os


    def paths(name):
        return {"data": os.path.join(name, "data.pt")}


    def train():
        path = paths("a")["data"]
        if not os.path.exists(path):
            return
        x, y = torch.load(path)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


    found = paths("a")
    torch.save((torch.zeros(8, 4), torch.zeros(8, 1)), found["data"])
    train()
    """
    after = convert(tmp_path, body(text))
    assert "    wait_for_all_ranks()\n    if not os.path.exists(path):\n" in after
