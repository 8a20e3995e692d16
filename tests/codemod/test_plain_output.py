"""Guards of output in the files of a converted program, and what they never leave out on other ranks."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Report, Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, convert, run

IMPORTS = "import os\nimport sys\nimport random\nimport numpy as np\nfrom torchvision.utils import save_image\n"
USE = "from helpers import *\n"
GUARD = "    if not is_main_rank():\n        return\n"


def after(folder: Path, helpers: str, lines: str = "", loop: str = LOOP) -> str:
    """Return the conversion of a helper file that a loop uses."""
    report = converted(folder, helpers, lines, loop)
    found = {result.path.name: result for result in report.files}
    assert found["train.py"].after is not None
    changed = found["helpers.py"].after if "helpers.py" in found else None
    return textwrap.dedent(helpers) if changed is None else changed.decode()


def converted(folder: Path, helpers: str, lines: str = "", loop: str = LOOP) -> Report:
    return run(folder, helpers=textwrap.dedent(helpers), train=USE + IMPORTS + HEADER + loop + textwrap.dedent(lines))


def reviews(report: Report) -> list[str]:
    return [f.message for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_RANK_ZERO]


def test_neighbours_share_a_guard_and_loops_that_only_print_have_one(tmp_path: Path) -> None:
    lines = "print('a')\n\n# b\nprint('b')\nfor key, value in {}.items():\n    print(key)\n"
    assert f"if is_main_rank():\n{textwrap.indent(lines, '    ')}" in convert(tmp_path, HEADER + LOOP + lines)


@pytest.mark.parametrize("cell", ["# %%", "#%% [markdown]", "# COMMAND ----------", "# In[3]:"])
def test_what_begins_a_cell_of_a_notebook_is_not_indented(cell: str, tmp_path: Path) -> None:
    text = convert(tmp_path, HEADER + LOOP + f"print(1)\n\n{cell}\nprint(2)\nprint(3)\n")
    guard = "if is_main_rank():\n    print"
    assert f"{guard}(1)\n\n{cell}\n{guard}(2)\n    print(3)\n" in text


def test_the_heading_of_a_section_that_goes_on_behind_its_output_stays_outside_of_the_guard(tmp_path: Path) -> None:
    lines = "print('a')\n\n# ---- b\nprint('b')\nb = step()\n"
    expected = "    print('a')\n\n# ---- b\nif is_main_rank():\n    print('b')\nb = step()\n"
    assert expected in convert(tmp_path, HEADER + LOOP + lines)


def test_a_print_that_a_function_replaces_which_never_runs_is_guarded(tmp_path: Path) -> None:
    helpers = """
        import builtins


        def setup_for_distributed(is_master):
            builtin_print = builtins.print

            def print(*args):
                if is_master:
                    builtin_print(*args)

            builtins.print = print


        def init_distributed_mode(args):
            torch.cuda.set_device(args.gpu)
            setup_for_distributed(args.rank == 0)


        def show():
            print('a')
            print('b')
    """
    changed = after(tmp_path, helpers, "print('begun')\nshow()\n")
    assert "torch.cuda.set_device(args.gpu)" in changed and f"def show():\n{GUARD}" in changed


def test_what_a_path_or_a_variable_of_the_environment_is_stays_in_the_print(tmp_path: Path) -> None:
    line = "print(os.getenv('HOME'), Path('a').absolute())\n"
    assert f"if is_main_rank():\n    {line}" in convert(
        tmp_path, f"{IMPORTS}from pathlib import Path\n" + HEADER + LOOP + line
    )


def test_a_dict_over_several_lines_that_all_ranks_compute_gets_no_parentheses(tmp_path: Path) -> None:
    line = "torch.save({\n    'state': step(),\n}, 'state.pt')\n"
    assert "output = {\n    'state': step(),\n}\n" in convert(tmp_path, HEADER + LOOP + line)


def test_a_helper_whose_training_a_framework_runs_keeps_its_output(tmp_path: Path) -> None:
    helpers = """
        import pytorch_lightning as pl


        def fit(net):
            print('Lightning')
            pl.Trainer(max_epochs=3).fit(net)
    """
    assert "is_main_rank" not in after(tmp_path, helpers, "if os.getenv('LIGHTNING'):\n    fit(model)\n")


def test_the_text_of_an_error_is_made_where_it_is_printed(tmp_path: Path) -> None:
    lines = "try:\n    pass\nexcept ValueError as error:\n    print(traceback.format_exc())\n    print(error)\n"
    guarded = "    if is_main_rank():\n        print(traceback.format_exc())\n        print(error)\n"
    assert guarded in convert(tmp_path, "import traceback\n" + HEADER + LOOP + lines)


@pytest.mark.parametrize(
    ("line", "guarded"),
    [
        ("if x.sum() > 1 or step(): print(1)", "if (x.sum() > 1 or step()) and is_main_rank(): print(1)"),
        ("if step():\n    print(1)", "if step() and is_main_rank():\n    print(1)"),
        ("if y is None:\n    print(1)\nelse:\n    print(2)", "if is_main_rank():\n    if y is None:\n        print(1)"),
        ("if(y):\n    print(1)\nelif x:\n    step()", "if(y):\n    if is_main_rank():\n        print(1)\nelif x:"),
        (
            "for i in range(3):\n    print(i)\nprint(i)",
            "for i in range(3):\n    if is_main_rank():\n        print(i)\n",
        ),
        ("for i in loader:\n    print(i)", "for i in loader:\n    if is_main_rank():\n        print(i)"),
        ("it = iter(x)\nfor i in it:\n    print(i)", "for i in it:\n    if is_main_rank():\n        print(i)"),
    ],
)
def test_conditions_and_loops_stay_where_they_do_more_than_lead_to_output(
    line: str, guarded: str, tmp_path: Path
) -> None:
    assert guarded in convert(tmp_path, "from somewhere import step\n" + HEADER + LOOP + line + "\n")


@pytest.mark.parametrize(
    ("line", "converted"),
    [
        ("print('a', model(x))", "text = model(x)\nif is_main_rank():\n    print('a', text)"),
        ("print(np.random.rand())", "text = np.random.rand()\nif is_main_rank():\n    print(text)"),
        ("print(next(iter(loader)))", "text = next(iter(loader))\nif is_main_rank():\n    print(text)"),
        ("print(sum(len(b) for b in loader))", "text = sum(len(b) for b in loader)\nif is_main_rank():"),
        ("save_image(model(x), 'a.png')", "output = model(x)\nif is_main_rank():\n    save_image(output, 'a.png')"),
        ("torch.save(model(x), 'a')", "output = model(x)\nif is_main_rank():\n    torch.save(output, 'a')"),
        (
            "while names: os.remove(names.pop())",
            "while names:\n    output = names.pop()\n    if is_main_rank():\n        os.remove(output)",
        ),
        (
            "while names:\n    os.remove(names.pop())",
            "    output = names.pop()\n    if is_main_rank():\n        os.remove(",
        ),
        ("print(*model(x))", "\nprint(*model(x))"),
    ],
)
def test_all_ranks_compute_what_rank_0_prints_or_saves(line: str, converted: str, tmp_path: Path) -> None:
    assert converted in convert(tmp_path, f"{IMPORTS}{HEADER}{LOOP}names = []\n{line}\n")


@pytest.mark.parametrize(
    ("line", "is_printed_whole"),
    [
        ("print(np.unique(names), np.bincount([1, 2], minlength=3))", True),
        ("print(np.linspace(0, 1, 3), np.nanmean(names))", True),
        ("print(torch.mean(torch.FloatTensor(kept)), torch.Tensor(kept))", True),
        ("print(np.multiply(names, 2, out=kept))", False),
        ("print(np.fromiter(names, float))", False),
        ("print(np.sum(len(b) for b in loader))", False),
        ("print(np.random.permutation(3))", False),
        ("print(np.put(kept, 0, 1))", False),
    ],
)
def test_what_numpy_only_computes_stays_in_the_print(line: str, is_printed_whole: bool, tmp_path: Path) -> None:
    text = convert(tmp_path, f"{IMPORTS}{HEADER}{LOOP}names, kept = [], np.zeros(2)\n{line}\n")
    assert (f"if is_main_rank():\n    {line}\n" in text) is is_printed_whole


def test_all_ranks_give_their_shares_to_a_state_that_a_function_makes(tmp_path: Path) -> None:
    function = "def state():\n    return {'a': model.state_dict(), 'b': optimizer.state_dict()}\n\n\n"
    text = convert(tmp_path, HEADER + LOOP + "\n\n" + function + "torch.save(state(), 'a')\n")
    assert "optimizer_state(optimizer)" in text
    assert "save_on_main_rank(state(), 'a')" in text


def test_rank_0_alone_prints_by_a_lambda(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + "log = lambda text: print('  ', text, flush=True)\n" + LOOP + "log('done')\n")
    assert "log = lambda text: print('  ', text, flush=True) if is_main_rank() else None\n" in after


def test_a_setting_of_an_optimizer_is_read_without_its_state(tmp_path: Path) -> None:
    line = 'print(optimizer.state_dict()["param_groups"][0]["lr"])'
    after = convert(tmp_path, HEADER + LOOP.replace("optimizer.step()", f"optimizer.step()\n    {line}"))
    assert '"stage": 1' in after
    assert '    if is_main_rank():\n        print(optimizer.param_groups[0]["lr"])\n' in after


def test_other_ranks_return_from_functions_that_only_output(tmp_path: Path) -> None:
    helpers = '''
    import sys
    import time
    import matplotlib.pyplot as plt

    last = time.time()


    def text_of(seconds):
        parts = []
        if seconds > 60:
            parts.append('%dm' % (seconds // 60))
        return ' '.join(parts)


    def bar(current, total, message=None):
        """Show how far it is."""
        global last
        now = time.time()
        for _ in range(current):
            sys.stdout.write('=')
        sys.stdout.write(text_of(now - last))
        last = now
        if message:
            sys.stdout.write(message)
        sys.stdout.flush()


    def curves(values, path):
        figure, axes = plt.subplots()
        axes.plot(values)
        plt.savefig(path)
        plt.close(figure)


    def unused():
        print('a')
        print('b')
    '''
    text = after(tmp_path, helpers, "bar(1, 2, 'a')\ncurves([1], 'a.png')\n")
    assert f"        global last\n{textwrap.indent(GUARD, '    ')}" in textwrap.indent(text, "    ")
    assert f"def curves(values, path):\n{GUARD}" in text
    assert text.count("is_main_rank()") == 2


@pytest.mark.parametrize(
    ("use", "is_read"), [("last = 1\nassert last\n", False), ("import helpers\nassert helpers.last\n", True)]
)
def test_a_global_that_another_file_reads_is_set_on_all_ranks(use: str, is_read: bool, tmp_path: Path) -> None:
    helpers = "last = 0\n\n\ndef show(text):\n    global last\n    print(last)\n    print(text)\n    last = text\n"
    text = after(tmp_path, helpers, f"show('a')\n{use}")
    assert (f"    global last\n{GUARD}" in text) is not is_read


@pytest.mark.parametrize(
    "body",
    [
        "model.eval()\n    print('a')",
        "print('a')\n    noise = torch.randn(2)",
        "print('a')\n    random.shuffle(order)",
        "print('a')\n    for x in loader:\n        print(x)",
        "print('a')\n    model.steps = 1",
        "print('a')\n    order.append(1)",
        "print('a')\n    torch.distributed.barrier()",
        "print('a')\n    return 1",
        "print('a')\n    if order:\n        raise ValueError",
        "print('a')\n    seen['a'] = 1",
        "print('a')\n    global count\n    count = 2",
        "print('a')\n    yield 1",
        "print('a')\n    print(model.score)",
        "print('a')\n    make(order)",
        "print('a')\n    os.makedirs('a', exist_ok=True)",
    ],
)
def test_functions_that_do_more_than_output_run_on_all_ranks(body: str, tmp_path: Path) -> None:
    helpers = (
        "import os\nimport random\nimport torch\n\nseen = {}\ncount = 0\n\n\n"
        "class Scores:\n    @property\n    def score(self):\n        return torch.rand(1)\n\n\n"
        "def make(order):\n    order.clear()\n\n\n"
        f"def show(model, order, loader):\n    {body}\n\n\n"
        "def read():\n    return count, seen\n"
    )
    text = after(tmp_path, helpers, "show(model, [], loader)\nread()\n")
    assert "return\n" not in text.replace("return 1", "")
    assert "if is_main_rank():\n        print('a')\n" in text


@pytest.mark.parametrize(
    "helpers",
    [
        "def show():\n    if rank != 0:\n        return\n    print('a')\n    print('b')\n",
        "@master_only\ndef show():\n    print('a')\n    print('b')\n",
        "def show():\n    if dist.get_rank() == 0:\n        print('a')\n",
        "def show():\n    if utils.is_primary(args):\n        print('a')\n",
        "import builtins\n\nbuiltins.print = None\n\n\ndef show():\n    print('a')\n    print('b')\n",
    ],
)
def test_guards_of_the_program_are_enough(helpers: str, tmp_path: Path) -> None:
    assert "is_main_rank" not in after(tmp_path, helpers, "show()\n")


LOGGER = """
import os


class Logger:
    def __init__(self, path, resume=False):
        if resume:
            self.file = open(path, 'r')
            self.names = self.file.readline().split()
            self.file.close()
            self.file = open(path, 'a')
        else:
            self.file = open(path, 'w')

    def append(self, number):
        self.file.write('%f' % number)
        self.file.flush()
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "(Path() / 'log').open('a').write('x')",
            "((Path() / 'log').open('a') if is_main_rank() else open(os.devnull, 'a')).write('x')",
        ),
        ("SummaryWriter('a').add_text('b', 'c')", "(SummaryWriter('a') if is_main_rank() else NoTracker()).add_text("),
    ],
)
def test_what_a_file_or_tracker_is_made_for_is_called_of_rank_0s_too(tmp_path: Path, line: str, expected: str) -> None:
    imports = "from pathlib import Path\nfrom torch.utils.tensorboard import SummaryWriter\n"
    assert expected in convert(tmp_path, f"{imports}{IMPORTS}{HEADER}{LOOP}    {line}\n")


def test_a_log_that_is_opened_in_a_helper_is_rank_0s(tmp_path: Path) -> None:
    use = "if model.training:\n    log = Logger('log.txt', resume=True)\nelse:\n    log = Logger('log.txt')\n"
    text = after(tmp_path, LOGGER, use + "log.append(1.0)\n")
    assert text.count("open(path if is_main_rank() else os.devnull, ") == 2
    assert "open(path, 'r')" in text and "wait_for_all_ranks" not in text


def test_the_null_device_is_opened_on_all_ranks(tmp_path: Path) -> None:
    text = convert(
        tmp_path, f"{IMPORTS}{HEADER}{LOOP}with open(os.devnull, 'w') as nowhere:\n    sys.stderr = nowhere\n"
    )
    assert "with open(os.devnull, 'w') as nowhere:" in text
    assert not reviews(run(tmp_path, train=f"{IMPORTS}{HEADER}{LOOP}bar = open(os.devnull, 'w')\n"))


def test_ranks_wait_before_they_read_what_rank_0_has_written(tmp_path: Path) -> None:
    helpers = """
    import json


    def save(path, value):
        with open(path, 'w') as file:
            json.dump(value, file)


    def load(path):
        with open(path) as file:
            return json.load(file)


    def log(path, line):
        with open(path, 'a') as file:
            file.write(line)
    """
    text = after(tmp_path, helpers, "save('a.json', [])\nlog('b.txt', 'c')\nwords = load('a.json')\n")
    assert "    wait_for_all_ranks()\n    with open(path) as file:" in text
    assert text.count("is_main_rank() else os.devnull") == 2
    (tmp_path / "two").mkdir()
    report = converted(tmp_path / "two", helpers, "save('a.json', [])\nif random.random() > 0.5:\n    load('a.json')\n")
    assert reviews(report) == ["all ranks write this file at the same time, and read it again"]


def test_a_file_that_is_read_before_it_is_written_needs_no_wait(tmp_path: Path) -> None:
    text = convert(tmp_path, f"{IMPORTS}{HEADER}old = np.load('a.npy')\n{LOOP}np.save('a.npy', np.zeros(2))\n")
    assert "wait_for_all_ranks" not in text
    text = convert(tmp_path, f"{IMPORTS}{HEADER}{LOOP}np.save('a.npy', np.zeros(2))\nnew = np.load('a.npy')\n")
    assert "wait_for_all_ranks()\nnew = np.load" in text
    text = convert(tmp_path, f"{HEADER}{LOOP}f = open('a', 'w')\nf.close()\ng = open('a')\n")
    assert "f = open('a' if is_main_rank() else os.devnull, 'w')\nf.close()\nwait_for_all_ranks()\ng =" in text


QUIET = "init_distributed()\nif not is_main_rank():\n    logging.disable(logging.INFO)\n"


@pytest.mark.parametrize(
    ("setup", "is_quiet"),
    [
        ("logger = logging.getLogger()\n", True),
        ("logger = logging.getLogger()\nlogger.setLevel(logging.INFO)\n", True),
        ("rank = 0\nlogger = logging.getLogger()\nlogging.basicConfig(level=10 if rank == 0 else 30)\n", False),
        ("logger = logging.getLogger()\nif logger.isEnabledFor(10): model = 1\n", False),
    ],
)
def test_other_ranks_log_warnings_alone(setup: str, is_quiet: bool, tmp_path: Path) -> None:
    text = convert(tmp_path, f"import logging\n{HEADER}{setup}{LOOP}logger.info('loss %.3f', loss.item())\n")
    assert (QUIET.split("\n", 1)[1] in text) is is_quiet


def test_all_ranks_make_a_text_that_draws_random_numbers(tmp_path: Path) -> None:
    meter = "class Meter:\n    def __str__(self):\n        return str(torch.rand(1))\n\n\nmeter = Meter()\n"
    pure = "class Pure:\n    def __str__(self):\n        return '{a}'.format(**self.__dict__)\n\n\n"
    text = convert(tmp_path, f"{HEADER}{pure}{LOOP}print('a', Pure)\nmeter = Pure()\nprint('b', meter)\n")
    assert "if is_main_rank():\n    print('b', meter)" in text
    text = convert(tmp_path, f"{HEADER}{meter}{LOOP}print('a', meter)\nprint(f'{{meter}}')\n")
    assert "text = str(meter)\nif is_main_rank():\n    print('a', text)" in text
    assert "text = f'{meter}'\nif is_main_rank():\n    print(text)" in text


def test_rank_0_makes_the_time_of_its_lines_by_itself(tmp_path: Path) -> None:
    helpers = """
    import time


    def now():
        text = time.strftime('%H')
        return text


    def log(line):
        stamp = now()
        print(stamp)
        print(line)
    """
    text = after(tmp_path, helpers, "log('a')\n")
    assert f"def log(line):\n{GUARD}" in text and "rank_0_text" not in text


def test_all_ranks_decide_in_functions_that_make_what_is_printed(tmp_path: Path) -> None:
    function = "def word(loss):\n    if loss > 1:\n        torch.distributed.barrier()\n    return 'a'\n\n\n"
    assert "text = word(loss)\nif is_main_rank():" in convert(
        tmp_path, HEADER + function + LOOP + "print(word(loss))\n"
    )


def test_a_name_that_is_not_taken_yet_is_for_a_person_to_check(tmp_path: Path) -> None:
    lines = "n = 0\nwhile os.path.exists(f'run{n}'):\n    n += 1\nos.makedirs(f'run{n}')\n"
    (message,) = reviews(run(tmp_path, train=IMPORTS + HEADER + lines + LOOP))
    assert message.startswith("each rank looks for a name that is not taken")


SEARCH = """
def next_folder(root):
    os.makedirs(root, exist_ok=True)
    n = 1
    while os.path.exists(f'{root}/run{n}'):
        n += 1
    os.makedirs(f'{root}/run{n}')
    return f'{root}/run{n}'


"""
COUNT = """
def next_folder(root):
    return f'{root}/run{len(os.listdir(root))}'


"""


COUNT_PATHS = """
def next_folder(root):
    return pathlib.Path(root) / f'run{len(list(pathlib.Path(root).iterdir()))}'


"""


@pytest.mark.parametrize(
    ("function", "make"),
    [(SEARCH, "os.makedirs(folder"), (COUNT, "os.makedirs(folder"), (COUNT_PATHS, "folder.mkdir(parents=True")],
)
def test_all_ranks_have_the_name_that_rank_0_finds(function: str, make: str, tmp_path: Path) -> None:
    lines = f"import pathlib\nfolder = next_folder('runs')\n{make}, exist_ok=True)\n"
    report = run(tmp_path, train=IMPORTS + HEADER + function + lines + LOOP)
    assert b"folder = rank_0_text(next_folder('runs'))\n" in (report.files[0].after or b"") and not reviews(report)


@pytest.mark.parametrize(
    "lines",
    [
        SEARCH.replace("}')\n    return", "}', exist_ok=True)\n    return") + "folder = next_folder('runs')\n",
        SEARCH + "for x, y in data:\n    if x.sum() > 0: folder = next_folder('runs')\n",
        "folder = f'runs/{len(os.listdir(\"runs\"))}'\nos.makedirs(folder)\n",
        "import glob\nids = [int(p[-1]) for p in glob.glob('runs/*')]\nfolder = f'runs/{max(ids)}'\nos.mkdir(folder)\n",
    ],
)
def test_a_name_of_which_ranks_make_folders_of_their_own_is_for_review(lines: str, tmp_path: Path) -> None:
    (message,) = reviews(run(tmp_path, train=IMPORTS + HEADER + lines + LOOP))
    assert message.startswith("each rank looks for a name that is not taken")


def test_commands_of_the_shell_are_for_a_person_to_check(tmp_path: Path) -> None:
    report = run(tmp_path, train=IMPORTS + HEADER + LOOP + "os.system('cp -r a b')\n")
    assert reviews(report) == ["every rank runs this command, at the same time"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "requests.post('https://a.b', json={'loss': 1})",
            ["every rank sends this, and it arrives n times from n ranks"],
        ),
        ("model.push_to_hub('a/b')", ["every rank sends this, and it arrives n times from n ranks"]),
        (
            "import boto3\nboto3.client('s3').upload_file('a.pt', 'b', 'a.pt')",
            ["every rank sends this, and it arrives n times from n ranks"],
        ),
        ("if dist.get_rank() == 0:\n    model.push_to_hub('a/b')", []),
        ("answer = requests.get('https://a.b')", []),
    ],
)
def test_requests_that_each_rank_sends_are_for_a_person_to_check(line: str, found: list[str], tmp_path: Path) -> None:
    imports = "import requests\nimport torch.distributed as dist\n" + IMPORTS
    assert reviews(run(tmp_path, train=imports + HEADER + LOOP + f"{line}\n")) == found


def test_a_helper_stays_where_a_loop_that_is_not_converted_uses_it(tmp_path: Path) -> None:
    helpers = "def show(x):\n    print('a', x)\n    print('b')\n"
    other = LOOP.replace("optimizer.step()", "optimizer.step(loss)")
    report = run(
        tmp_path, helpers=helpers, train=USE + HEADER + LOOP + "show(1)\n", other=USE + HEADER + other + "show(2)\n"
    )
    assert [result.path.name for result in report.files if result.after is not None] == ["train.py"]
    assert any("a loop that was not converted uses it too" in message for message in reviews(report))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'if x.sum() > 0: best = 1; torch.save(model.state_dict(), "a.pt")\n',
            '    best = 1\n    if is_main_rank():\n        torch.save(model.state_dict(), "a.pt")\n',
        ),
        (
            'best = 1; torch.save(model.state_dict(), "a.pt"); last = 2\n',
            'best = 1\nif is_main_rank():\n    torch.save(model.state_dict(), "a.pt")\nlast = 2\n',
        ),
        (
            "if x.sum() > 0: print(torch.rand(1))\n",
            "    text = torch.rand(1)\n    if is_main_rank():\n        print(text)\n",
        ),
        (
            "try: print(torch.rand(1))\nexcept OSError as e: print(e); raise\n",
            "except OSError as e:\n    if is_main_rank():\n        print(e)\n    raise\n",
        ),
        ("for k in range(2): print(k, torch.rand(1))\n", "        print(k, text)\n"),
    ],
)
def test_output_that_shares_its_line_with_other_statements_is_rank_0s(line: str, expected: str, tmp_path: Path) -> None:
    assert expected in convert(tmp_path, HEADER + LOOP + line)


def test_a_comment_behind_what_rank_0_prints_stays_there_alone(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + LOOP + "    print(loss.item())  # expected below 1\n")
    assert "print(loss.item())  # expected below 1\n" in after
    assert after.count("# expected below 1") == 1


@pytest.mark.parametrize("write", ["torch.save(model.state_dict(), buffer)", "figure.savefig(buffer, format='raw')"])
def test_every_rank_writes_what_it_keeps_in_memory(write: str, tmp_path: Path) -> None:
    lines = f"import io\n\n{HEADER}\n{LOOP}\nbuffer = io.BytesIO()\n{write}\nread = buffer.getvalue()\n"
    assert f"\n{write}\n" in convert(tmp_path, lines)


def test_a_function_that_may_be_print_prints_on_rank_0(tmp_path: Path) -> None:
    helpers = """
    class Stopping:
        def __init__(self, trace_func=print):
            self.trace_func = trace_func

        def __call__(self, loss):
            self.count = loss
            self.trace_func(loss)
    """
    text = after(tmp_path, helpers, "\nStopping()(1)\n")
    assert "        if is_main_rank():\n            self.trace_func(loss)\n" in text


def test_a_notebooks_progress_bar_writes_on_rank_0_alone(tmp_path: Path) -> None:
    text = f"from tqdm.autonotebook import tqdm\n{HEADER}\n{LOOP}\ntqdm.write('done')\n"
    assert "if is_main_rank():\n    tqdm.write('done')" in convert(tmp_path, text)


def test_what_ranks_show_and_write_that_the_program_starts_itself_stays(tmp_path: Path) -> None:
    """Each of them predicted the samples of its share: the files of all but rank 0 were lost."""
    start = "import logging\nimport torch.distributed as dist\nfrom tqdm import tqdm\ndist.init_process_group('gloo')\n"
    output = "print(len(loader))\nfor name, y in tqdm(predict(model)):\n    torch.save(y, name)\n"
    output += "logging.basicConfig(filename='log.txt')\nwith open('scores.txt', 'w') as f:\n    f.write('1')\n"
    assert convert(tmp_path, start + HEADER + LOOP + output).endswith(output)


def test_a_log_file_that_rank_0_writes_is_flushed_to_the_disk_by_rank_0(tmp_path: Path) -> None:
    helpers = """
        import os


        class Logger:
            def __init__(self, path):
                self.file = open(path, "w")

            def flush(self):
                self.file.flush()
                os.fsync(self.file.fileno())
        """
    text = after(tmp_path, helpers, lines="log = Logger('log.txt')\nlog.flush()\n")
    assert "        if is_main_rank():\n            os.fsync(self.file.fileno())\n" in text


@pytest.mark.parametrize("behind", ["", "from math import sqrt\n"])
def test_a_name_is_imported_before_a_failed_import_prints(behind: str, tmp_path: Path) -> None:
    """The import of is_main_rank() stood behind the last one of the module: the handler raised a NameError."""
    attempt = "try:\n    import optional\nexcept ImportError:\n    print('no optional')\n"
    after = convert(tmp_path, HEADER.replace("\n\nclass", f"\n{attempt}{behind}\n\nclass", 1) + LOOP)
    assert "is_main_rank, " in after.partition("if is_main_rank()")[0]


@pytest.mark.parametrize(
    ("check", "after"),
    [
        ("if not folder.is_dir():\n    folder.mkdir()\nelse:\n    raise OSError(folder)", "not folder.is_dir()"),
        ("if folder.exists():\n    raise OSError(folder)\nfolder.mkdir()", "folder.exists()"),
    ],
)
def test_rank_0_checks_a_folder_that_ends_the_program_where_it_exists(check: str, after: str, tmp_path: Path) -> None:
    """The other ranks would find the one that rank 0 has just made."""
    start = "from pathlib import Path\n\nfolder = Path('runs') / 'one'\n" + check + "\n"
    assert f"if rank_0_decides({after}):\n" in convert(tmp_path, HEADER + start + LOOP)


def test_the_runtime_is_imported_before_a_line_above_the_imports_that_needs_it(tmp_path: Path) -> None:
    log = "import logging\nlogging.basicConfig(filename='log', level=logging.INFO)\n"
    text = convert(tmp_path, f"{log}{HEADER}{LOOP}")
    first = text.index("logging.basicConfig(filename='log' if is_main_rank() else os.devnull")
    assert text.index("import os\n") < first and text.index("from trial_runtime.plain import") < first


def test_only_rank_0_writes_to_a_screen_that_an_object_keeps(tmp_path: Path) -> None:
    """All ranks wrote each line. What takes the place of sys.stderr shows the errors of all, and stays."""
    helpers = """\
    import sys


    class Console:
        def __init__(self):
            self.out = sys.stdout

        def line(self, text):
            self.out.write(text)

        def write(self, text):
            self.out.write(text)


    console = Console()
    """
    text = after(tmp_path, helpers, "console.line('end')\nsys.stderr = console\n")
    assert "def line(self, text):\n        if is_main_rank():\n            self.out.write(text)\n" in text
    assert "def write(self, text):\n        self.out.write(text)\n" in text


def test_a_guard_is_indented_as_most_blocks_are_where_the_first_one_is_odd(tmp_path: Path) -> None:
    helpers = """
        def first():
           return 1


        def show(count):
            if count:
                count += 1
            print(count)
            return count
    """
    text = after(tmp_path, helpers, "\nshow(first())\n")
    assert "    if is_main_rank():\n        print(count)\n" in text and "def first():\n   return 1\n" in text
