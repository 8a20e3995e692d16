"""Functions that never run: what a program does not do says nothing about its ranks."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, SUM, body, run

LOOP_IN_MAIN = (
    SUM.replace("AVERAGE", "total / len(loader.dataset)")
    + """

def main():
    GROUP
    loader = DataLoader(data, batch_size=4)
    model = Net()
    print(train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1)))
"""
)
HELPERS = """\
import torch.distributed as dist


def note(text):
    print(text)


def start_pytorch():
    dist.init_process_group("gloo")


def start(launcher):
    if launcher == "pytorch":
        start_pytorch()
"""


def _converted(folder: Path, text: str, **files: str) -> str:
    report = run(folder, train="import torch.distributed as dist\n" + text, **files)
    (result,) = [file for file in report.files if file.path.name == "train.py"]
    assert result.after is not None
    return result.after.decode()


def test_a_function_that_an_entry_point_runs_forms_the_ranks(tmp_path: Path) -> None:
    text = body(LOOP_IN_MAIN).replace("GROUP", "dist.init_process_group('gloo')")
    assert "count_samples" not in _converted(tmp_path, text)


@pytest.mark.parametrize("main", ["main()", "if __name__ == '__main__':\n    main()"])
def test_helpers_that_only_idle_functions_call_form_no_ranks(tmp_path: Path, main: str) -> None:
    text = "from helpers import note\n" + body(LOOP_IN_MAIN).replace("GROUP", "note('begun')") + f"\n\n{main}\n"
    assert "count_samples" in _converted(tmp_path, text, helpers=HELPERS)


def test_an_idle_loop_beside_one_that_runs_forms_no_ranks(tmp_path: Path) -> None:
    text = body(LOOP_IN_MAIN).replace("GROUP", "pass")
    other = body(LOOP_IN_MAIN).replace("GROUP", "dist.init_process_group('gloo')").replace("main", "main_of_ranks")
    text += "\n\nmain()\n" + other.removeprefix(HEADER).replace("train(", "train_on_ranks(")
    assert "count_samples" in _converted(tmp_path, text)


WRAPPER = """
class Optim(object):
    def __init__(self, params, lr, clip):
        self.params, self.clip = params, clip
        self.optimizer = torch.optim.SGD(self.params, lr=lr)

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.params, self.clip)
        self.optimizer.step()


"""


@pytest.mark.parametrize(
    ("use", "is_refused"),
    [
        ("", False),
        ("model.eval()\n", False),
        ("made = Optim\n", True),
        ("import sys\nname = 'Opt' + 'im'\nmade = getattr(sys.modules[__name__], name)\n", True),
    ],
)
def test_a_class_that_nothing_names_leaves_the_loop_beside_it(use: str, is_refused: bool, tmp_path: Path) -> None:
    """As the Optim of MTGNN's trainer.py: its parameters, which no call gives, refused the loop."""
    report = run(tmp_path, train=HEADER + WRAPPER + LOOP + use)
    assert bool(list(report.findings(Severity.BLOCKED))) is is_refused
    if not is_refused:
        (result,) = report.files
        assert result.after is not None and textwrap.dedent(WRAPPER).encode() in result.after
        assert b'"gradient_clipping": 0.0' in result.after


def test_what_a_method_calls_that_a_base_class_calls_runs(tmp_path: Path) -> None:
    text = body(LOOP_IN_MAIN).replace("GROUP", "pass")
    group = "\n    def hook(self):\n        dist.init_process_group('gloo')\n"
    text = text.replace("class Net(nn.Module):\n", f"class Net(nn.Module):{group}")
    assert "count_samples" not in _converted(tmp_path, text + "\n\nmain()\n")


def test_what_only_another_script_calls_stays_as_it_is(tmp_path: Path) -> None:
    prepare = "def prepare(path):\n    os.makedirs(path)\n    print(path)\n"
    tools = f"import os\n\n\n{prepare}\n\ndef note(text):\n    print(text)\n"
    text = "from tools import note\n" + body(LOOP_IN_MAIN).replace("GROUP", "note('begun')") + "\n\nmain()\n"
    report = run(tmp_path, train=text, tools=tools, prepare="from tools import prepare\n\nprepare('data')\n")
    (changed,) = [file.after for file in report.files if file.path.name == "tools.py"]
    assert changed is not None
    assert prepare in changed.decode()
    assert "if is_main_rank():\n        print(text)\n" in changed.decode()


def test_a_loop_in_a_test_stays_as_it_is_unless_the_program_runs_it(tmp_path: Path) -> None:
    loop = "import train\n\n\ndef test_it_learns():\n" + textwrap.indent(HEADER + LOOP, "    ")
    report = run(tmp_path, train=HEADER + LOOP, test_train=loop)
    assert {file.path.name for file in report.files if file.after is not None or file.findings} == {"train.py"}
    report = run(tmp_path, train=HEADER + LOOP, test_train=f"{loop}\n\ntest_it_learns()\n")
    assert {file.path.name for file in report.files if file.after is not None} == {"train.py", "test_train.py"}


@pytest.mark.parametrize("use", ["print(Net())", "show(Net())"])
def test_a_script_that_uses_the_model_of_a_training_script_stays_as_it_is(use: str, tmp_path: Path) -> None:
    loop = "if __name__ == '__main__':\n" + textwrap.indent(LOOP, "    ")
    other = f"from train import Net\n\n\ndef show(net):\n    print(net)\n\n\n{use}\n"
    report = run(tmp_path, train=HEADER + loop, show=other)
    assert {file.path.name for file in report.files if file.after is not None} == {"train.py"}


@pytest.mark.parametrize("start", ["Trainer().fit()", "Fire(Trainer)", "getattr(train, name)()"])
def test_a_script_that_starts_the_training_of_another_file_prints_on_rank_0(start: str, tmp_path: Path) -> None:
    loop = "class Trainer:\n    def fit(self):\n" + textwrap.indent(LOOP, "        ")
    other = f"import train\nfrom train import Trainer\nfrom fire import Fire\n\nprint('begun')\n{start}\n"
    report = run(tmp_path, train=HEADER + loop, main=other)
    (changed,) = [file.after for file in report.files if file.path.name == "main.py"]
    assert changed is not None
    assert "if is_main_rank():\n    print('begun')" in changed.decode()


def test_a_test_that_calls_a_training_function_gives_it_an_engine(tmp_path: Path) -> None:
    train = body(LOOP_IN_MAIN).replace("GROUP", "pass") + "\n\nif __name__ == '__main__':\n    main()\n"
    made = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    test = f"from train import *\n\n\ndef test_it_learns():\n    model = Net()\n    {made}\n"
    test += "    assert train(model, DataLoader(data, batch_size=4), optimizer) < 1\n"
    report = run(tmp_path, train=train, test_train=test)
    (changed,) = [file.after for file in report.files if file.path.name == "test_train.py"]
    assert changed is not None
    assert ", engine) < 1" in changed.decode()


LIBRARY = """
    class Trainer:
        def __init__(self, model):
            self.model = model

        def fit(self):
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            for x, y in DataLoader(data, batch_size=4):
                optimizer.zero_grad()
                F.mse_loss(self.model(x), y).backward()
                optimizer.step()

        def predict(self, x):
            return self.model(x)
    """
STARTED_BY_THE_METHOD = "    def fit(self):\n        init_distributed()\n"


@pytest.mark.parametrize(
    "test",
    [
        "def test_it_learns():\n    Trainer(Net()).fit()\n",
        "@pytest.fixture\ndef trained():\n    Trainer(Net()).fit()\n",
        "class TestTrainer(unittest.TestCase):\n    def setUp(self):\n        Trainer(Net()).fit()\n",
    ],
)
def test_ranks_start_in_the_method_that_only_tests_call(test: str, tmp_path: Path) -> None:
    text = f"import pytest, unittest\nfrom library import Net, Trainer\n\n\n{test}"
    after = {file.path.name: file.after for file in run(tmp_path, library=body(LIBRARY), test_it=text).files}
    assert STARTED_BY_THE_METHOD in (after["library.py"] or b"").decode()
    assert after.get("test_it.py") is None


def test_ranks_start_in_the_method_for_tests_and_where_a_script_begins(tmp_path: Path) -> None:
    test = "from library import Net, Trainer\n\n\ndef test_it():\n    Trainer(Net()).fit()\n"
    script = "from library import Net, Trainer\n\nprint(1)\nTrainer(Net()).fit()\n"
    report = run(tmp_path, library=body(LIBRARY), test_it=test, script=script)
    after = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert STARTED_BY_THE_METHOD in after["library.py"] and "\ninit_distributed()\n" in after["script.py"]
    assert not after.get("test_it.py")


def test_ranks_start_in_a_test_that_its_file_runs_as_a_script_too(tmp_path: Path) -> None:
    """They started in the block of __main__ alone, which pytest does not run: the engine found no process group."""
    test = textwrap.indent(LOOP, "    ") + "\n\nif __name__ == '__main__':\n    test_loop()\n"
    (changed,) = run(tmp_path, test_loop=HEADER + "\n\ndef test_loop():\n" + test).files
    after = (changed.after or b"").decode()
    assert "def test_loop():\n    init_distributed()\n" in after
    assert "if __name__ == '__main__':\n    init_distributed()\n" in after


@pytest.mark.parametrize("use", ["model.model.eval()", "name = getattr(model, 'name', '')"])
def test_a_script_that_only_infers_with_the_object_of_a_training_class_stays_as_it_is(use: str, tmp_path: Path) -> None:
    text = (
        f"from library import Net, Trainer, data\n\nmodel = Trainer(Net())\n{use}\nprint(model.predict(data[0][0]))\n"
    )
    after = {file.path.name: file.after for file in run(tmp_path, library=body(LIBRARY), infer=text).files}
    assert STARTED_BY_THE_METHOD in (after["library.py"] or b"").decode()
    assert after.get("infer.py") is None


TRAINING = """

def train(folder, epochs):
    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    for epoch in range(epochs):
        for x, y in loader:
            LOSS_STEP
    (folder / "log.json").write_text("[]")


if __name__ == "__main__":
    train(Path("run"), 3)
"""
TESTED = """\
import json

import pytest
{imports}
from train import train


@pytest.fixture
def images(tmp_path):
    torch.save([1], tmp_path / "images.pt")
    return tmp_path


def read(folder):
    return json.loads((folder / "log.json").read_text())


def test_it_writes_a_log(images):
    train(images, 1)
    assert read(images) == []
{rest}"""


@pytest.mark.parametrize(
    ("imports", "rest", "is_reviewed"),
    [
        ("import torch", "", False),
        ("import torch\nimport torch.multiprocessing", "", True),  # it may start ranks
    ],
)
def test_files_that_a_test_writes_and_reads_are_those_of_one_process(
    imports: str, rest: str, is_reviewed: bool, tmp_path: Path
) -> None:
    train = "from pathlib import Path\n\n" + HEADER + TRAINING
    report = run(tmp_path, train=train, test_train=TESTED.format(imports=imports, rest=rest))
    found = {file.path.name: file for file in report.files}
    assert b"if is_main_rank():" in (found["train.py"].after or b"")
    reviews = [f for name, file in found.items() if name == "test_train.py" for f in file.findings]
    assert bool(reviews) is is_reviewed
