"""Data that a plain script fetches or makes where it is not there: rank 0 does so before the others look for it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.options import Options
from plain_loops import HEADER, LOOP, convert, run

IMPORTS = "import os\nimport pathlib\nimport tarfile\nimport urllib.request\nfrom torchvision import datasets\n"
FIRST = "with rank_0_first():\n"
FETCH = "urllib.request.urlretrieve('file://a', 'a')\n"
EARLY = f"def fetch():\n    if os.path.exists('a'):\n        return\n    {FETCH}"
CACHE = "if os.path.exists('a'):\n    x = torch.load('a')\nelse:\n    x = torch.rand(4)\n    torch.save(x, 'a')\n"


def converted(folder: Path, text: str, options: Options = Options(plain=True)) -> str:  # noqa: B008
    return convert(folder, IMPORTS + HEADER + text + LOOP, options)


@pytest.mark.parametrize(
    "text",
    [
        FETCH,
        CACHE,
        f"if not pathlib.Path('a').is_file():\n    {FETCH}",
        f"if not os.path.exists('a'):\n    os.makedirs('b')\n    {FETCH}",
        f"if not os.path.exists('a'):\n    os.makedirs('a')\n    where = 'a/b'\n    {FETCH}",
        "with tarfile.open('a.tar') as tar:\n    tar.extractall()\n",
        "train = datasets.MNIST('a', download=True)\n",
    ],
)
def test_rank_0_makes_data_that_is_not_there_before_the_others(text: str, tmp_path: Path) -> None:
    after = converted(tmp_path, text)
    assert FIRST + textwrap.indent(text, "    ") in after and "wait_for_all_ranks" not in after


def test_a_folder_that_rank_0_makes_first_is_looked_for_without_a_review(tmp_path: Path) -> None:
    text = """
        import os
        import urllib.request

        def fetch():
            if not os.path.exists("a"):
                os.makedirs("a")
                url = "file://b"
                urllib.request.urlretrieve(url, "a/b")

        fetch()
        """
    report = run(tmp_path, train=textwrap.dedent(text) + HEADER + LOOP)
    (result,) = report.files
    assert result.after is not None and FIRST.encode() in result.after
    assert not list(report.findings(Severity.REVIEW))


def test_the_first_statement_of_a_script_may_be_what_rank_0_does_first(tmp_path: Path) -> None:
    text = f"import os\nimport urllib.request\nif not os.path.exists('a'):\n    os.makedirs('a')\n    {FETCH}"
    after = convert(tmp_path, text + HEADER + LOOP)
    assert f"init_distributed()\n{FIRST}    if not os.path.exists('a'):\n" in after


def test_what_rank_0_has_made_first_is_read_without_a_wait_or_review(tmp_path: Path) -> None:
    text = """
        import os
        import pickle

        class Data:
            def __init__(self, split):
                path = f"a/{split}.dat"
                if not os.path.exists(path):
                    with open(path, "wb") as file:
                        pickle.dump([1], file)
                else:
                    with open(path, "rb") as file:
                        self.items = pickle.load(file)

        train, test = Data("train"), Data("test")
        """
    report = run(tmp_path, train=textwrap.dedent(text) + HEADER + LOOP)
    (result,) = report.files
    assert result.after is not None and FIRST.encode() in result.after
    assert not [finding for _, finding in report.findings(Severity.REVIEW) if "rank 0 has written" in finding.message]


def test_a_function_that_finds_its_data_is_called_on_rank_0_first(tmp_path: Path) -> None:
    after = converted(tmp_path, f"{EARLY}fetch()\n")
    assert EARLY in after and f"{FIRST}    fetch()\n" in after


def test_a_function_may_find_its_data_through_another_one(tmp_path: Path) -> None:
    look = "def is_there(path):\n    return os.path.isdir(path) and os.path.exists(path + '/a')\n"
    after = converted(tmp_path, f"{look}{EARLY.replace('os.path.exists', 'is_there')}fetch()\n")
    assert f"{FIRST}    fetch()\n" in after
    after = converted(
        tmp_path, f"{look.replace('path.isdir', 'umask')}{EARLY.replace('os.path.exists', 'is_there')}fetch()\n"
    )
    assert FIRST not in after


def test_each_call_of_a_function_that_finds_its_data_is_rank_0s_first(tmp_path: Path) -> None:
    function = EARLY.replace("fetch()", "fetch(part)").replace("exists('a')", "exists(part)")
    after = converted(tmp_path, f"{function}fetch('a')\nfetch('b')\n")
    assert f"{FIRST}    fetch('a')\n{FIRST}    fetch('b')\n" in after


def test_a_parameter_may_ask_for_the_download(tmp_path: Path) -> None:
    made = "self.data = datasets.MNIST('a', download=download)"
    text = f"class Data:\n    def __init__(self, download=False):\n        {made}\n"
    assert f"        {FIRST}            {made}" in converted(tmp_path, f"{text}Data(True)\n")
    assert FIRST not in converted(tmp_path, f"{text}Data()\n")


@pytest.mark.parametrize(
    "text",
    [
        f"class Data(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n        {FETCH}",  # in other processes
        f"{EARLY}fetch()\nif os.environ['HOSTNAME'] == 'a':\n    fetch()\n",  # which rank 0 may not run first
        "if not os.path.exists('a'):\n    torch.save(data, 'a')\n",  # rank 0 alone saves it
        "if os.path.exists('a'):\n    x = torch.load('a')\n",
        "test = datasets.MNIST('a', download=False)\n",
        f"if os.environ['HOSTNAME'] == 'a':\n    {FETCH}",
    ],
)
def test_ranks_do_not_wait_where_some_may_not_come_or_nothing_is_made(text: str, tmp_path: Path) -> None:
    assert FIRST not in converted(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"if os.environ['HOSTNAME'] == 'a':\n    {FETCH}", 1),
        (f"def fetch():\n    {FETCH}\n\nif os.environ['HOSTNAME'] == 'a':\n    fetch()\n", 1),
        (f"def fetch():\n    {FETCH}\n\n", 0),
        (f"rank = int(os.environ['RANK'])\nif rank == 0:\n    {FETCH}", 0),
        (f"{EARLY}fetch()\nif os.environ['HOSTNAME'] == 'a':\n    fetch()\n", 1),
        (f"{EARLY}fetch()\n", 0),
        (f"{EARLY}fetch()\nfetch()\n", 0),
        (CACHE, 0),
        (FETCH, 0),
    ],
)
def test_data_that_some_ranks_may_fetch_at_once_is_for_review(text: str, count: int, tmp_path: Path) -> None:
    report = run(tmp_path, train=IMPORTS + HEADER + text + LOOP)
    found = [(f.code, f.message) for _, f in report.findings(Severity.REVIEW)]
    assert found == [("DSM614", "several ranks may fetch or make this data at the same time")] * count


def test_deepspeed_alone_has_no_helper_for_it(tmp_path: Path) -> None:
    loop = LOOP.replace("shuffle=True", "sampler=DistributedSampler(data)")
    text = f"from torch.utils.data.distributed import DistributedSampler\ntorch.manual_seed(0)\n{FETCH}{loop}"
    after = convert(tmp_path, IMPORTS + HEADER + text, Options(plain=True, runtime=False))
    assert FIRST not in after and "trial_runtime" not in after


WHOLE = """\
def load():
    whole = DataLoader(data, batch_size=len(data), shuffle=True)
    inputs, labels = next(iter(whole))
    return inputs, labels


"""
FIT = """\
MAKE_MODEL
loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)
for x, y in loader:
    STEP
"""


@pytest.mark.parametrize("is_called", [True, False])
def test_a_batch_that_is_the_data_of_the_training_loader_is_that_of_all_ranks(is_called: bool, tmp_path: Path) -> None:
    function = "def fit(inputs, labels):\n" + textwrap.indent(FIT, "    ") + "\n\n" if is_called else ""
    call = "fit(inputs, labels)\n" if is_called else FIT
    after = convert(tmp_path, HEADER + WHOLE + function + "inputs, labels = load()\n" + call)
    assert "    whole = DataLoader(data, batch_size=len(data), shuffle=True)\n" in after  # divided once, not twice
    assert "loader = shard(DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True))\n" in after


AGENT = """
import os
import urllib.request
import torch
from torch import nn
from torch.nn import functional as F


class Agent:
    def __init__(self):
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def learn(self, x, y):
        self.optimizer.zero_grad()
        F.mse_loss(self.net(x), y).backward()
        self.optimizer.step()


def compare():
    if not os.path.exists("a"):
        return
    agent = Agent()
    urllib.request.urlretrieve("file://a", "b")


for x, y in torch.utils.data.DataLoader(data):
    Agent().learn(x, y)
compare()
"""


def test_ranks_do_not_wait_for_a_function_that_makes_an_engine_in_a_class(tmp_path: Path) -> None:
    after = convert(tmp_path, AGENT)
    assert "self.engine.step()" in after and FIRST not in after


@pytest.mark.parametrize("made", ["torch.optim.Adam(net.parameters())", "torch.distributed.barrier()"])
def test_ranks_do_not_wait_for_what_another_loop_has_them_do_together(made: str, tmp_path: Path) -> None:
    after = converted(tmp_path, f"net = nn.Linear(4, 1)\n{EARLY}    {made}\nfetch()\n")
    assert FIRST not in after


def test_weights_that_are_trained_where_they_are_not_there_are_no_data_to_make_on_rank_0(tmp_path: Path) -> None:
    """All ranks train them: rank 0 alone would wait for the others forever."""
    train = "def produce():\n" + textwrap.indent(f'{LOOP}torch.save(model.state_dict(), "gan.pt")\n', "    ")
    look = 'if not os.path.isfile("gan.pt"):\n    produce()\n'
    report = run(tmp_path, train=f"import os\n{HEADER}\n{train}\n\n{look}")
    assert not list(report.findings(Severity.REVIEW))


def test_two_data_sets_of_one_statement_that_rank_0_makes_first_have_no_review(tmp_path: Path) -> None:
    """The second one was for review, as rank 0 makes the first one before."""
    text = "train, test = datasets.MNIST('a', download=True), datasets.MNIST('a', train=False, download=True)\n"
    assert FIRST + textwrap.indent(text, "    ") in converted(tmp_path, text)
    assert not list(run(tmp_path, train=IMPORTS + HEADER + text + LOOP).findings(Severity.REVIEW))


@pytest.mark.parametrize(
    ("setup", "line"),
    [
        ("def __len__(self):\n        return 4", "pairs = Pairs('a', download=True)\n"),
        ("def __init__(self, **given):\n        super().__init__(**given)", "pairs = Pairs(root='a', download=True)\n"),
        ("def __init__(self):\n        super().__init__('a', download=True)", "super().__init__('a', download=True)\n"),
    ],
)
def test_a_class_of_the_program_downloads_as_its_base_does(setup: str, line: str, tmp_path: Path) -> None:
    """All ranks downloaded and unpacked the same files at once."""
    made = f"class Pairs(datasets.MNIST):\n    {setup}\n\n\n"
    after = converted(tmp_path, made + ("pairs = Pairs()\n" if "super" in line else line))
    indent = "        " if "super" in line else ""
    assert textwrap.indent(f"{FIRST}    {line}", indent) in after and after.count(FIRST) == 1


def test_a_class_with_a_download_that_is_its_own_is_not_run_on_rank_0_first(tmp_path: Path) -> None:
    made = "class Pairs:\n    def __init__(self, download):\n        self.download = download\n\n\n"
    assert FIRST not in converted(tmp_path, made + "pairs = Pairs(download=True)\n")


def test_a_function_that_fetches_without_a_look_runs_on_rank_0_first(tmp_path: Path) -> None:
    fetch = """
import requests

def fetch(folder):
    for name in ("weights", "vocabulary"):
        page = requests.get(f"https://example.org/{name}", stream=True)
        with open(f"{folder}/{name}", "wb") as f:
            for part in page.iter_content(1000):
                f.write(part)

fetch("models")
words = open("models/vocabulary").read()
"""
    after = convert(tmp_path, HEADER + fetch + LOOP)
    assert 'with rank_0_first():\n    fetch("models")\n' in after


@pytest.mark.parametrize("is_looked_for", [False, True])
def test_a_function_that_fetches_and_returns_the_path_runs_on_rank_0_first_or_is_reviewed(
    is_looked_for: bool, tmp_path: Path
) -> None:
    """Ranks other than 0 wrote nothing, and read the file at once, without a review."""
    fetch = """
import requests
from pathlib import Path

def fetch(name):
    Path(name).write_bytes(requests.get(f"https://example.org/{name}").content)
    return Path(name)

LOOK
words = open(path).read()
"""
    look = (
        "path = next((p for p in (Path('a'), Path('b')) if p.is_file()), None)\nif path is None:\n    path = fetch('b')"
    )
    text = HEADER + fetch.replace("LOOK", look if is_looked_for else "path = fetch('b')") + LOOP
    after = convert(tmp_path, text)
    reviewed = [f.message for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)]
    assert ("with rank_0_first():\n    path = fetch('b')\n" in after) != is_looked_for
    assert ("several ranks may fetch or make this data at the same time" in reviewed) == is_looked_for
