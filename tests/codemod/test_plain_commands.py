"""Plain training loops in functions that a project installs as commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import HEADER, LOOP, body, convert

IN_MAIN = HEADER + "\ndef main():\n    '''Train.'''\n" + "".join(f"    {line}\n" for line in LOOP.splitlines())
BLOCK = "\nif __name__ == '__main__':\n    main()\n"
STARTED = "'''Train.'''\n    init_distributed()\n"


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("pyproject.toml", '[project.scripts]\ntrain = "train:main"\n'),
        ("pyproject.toml", '[tool.poetry.scripts]\ntrain = {callable = "train:main"}\n'),
        ("setup.cfg", "[options.entry_points]\nconsole_scripts =\n    train = train:main\n"),
        ("setup.py", "setup(entry_points={'console_scripts': ['train=train:main']})\n"),
    ],
)
def test_ranks_start_in_a_command(name: str, metadata: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(metadata)
    after = convert(tmp_path, IN_MAIN + BLOCK)
    assert STARTED in after
    assert after.endswith(BLOCK)


def test_ranks_start_in_a_command_and_before_other_work_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\ntrain = "train:main"\n')
    after = convert(tmp_path, IN_MAIN + BLOCK.replace("main()", "torch.manual_seed(0)\n    main()"))
    assert STARTED in after
    assert "    init_distributed()\n    torch.manual_seed(0)\n    main()\n" in after


def test_a_command_of_another_function_starts_no_ranks_in_main(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\nshow = "train:show"\n')
    after = convert(tmp_path, IN_MAIN + "\ndef show():\n    print('shown')\n" + BLOCK)
    assert STARTED not in after


def test_ranks_start_in_a_function_that_a_package_offers_and_its_script_calls(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from .train import main\n")
    after = convert(package, IN_MAIN + BLOCK)
    assert STARTED in after
    assert after.endswith(BLOCK)


LIBRARY = IN_MAIN + "\n\ndef repeat(times):\n    for _ in range(times):\n        main()\n"


def test_ranks_start_in_each_function_of_a_library_that_other_code_may_call(tmp_path: Path) -> None:
    after = convert(tmp_path, LIBRARY + "\n\ndef _hidden():\n    return repeat(2)\n\n\ndef last():\n    _hidden()\n")
    assert STARTED in after and "def repeat(times):\n    init_distributed()\n" in after
    assert "def _hidden():\n    return" in after and "def last():\n    init_distributed()\n" in after


def test_ranks_start_in_what_a_package_offers_below_its_script(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from .train import repeat, main\n")
    after = convert(package, LIBRARY + BLOCK.replace("main()", "repeat(2)"))
    assert STARTED in after
    assert "def repeat(times):\n    init_distributed()\n" in after


def test_ranks_start_in_a_function_of_a_package_that_only_its_own_trial_calls(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    trial = "\n\ndef _demo():\n    torch.manual_seed(0)\n    main()\n\n\nif __name__ == '__main__':\n    _demo()\n"
    after = convert(tmp_path, IN_MAIN + trial)
    assert STARTED in after and "\n    init_distributed()\n    _demo()\n" in after
    assert "def _demo():\n    torch" in after


def test_ranks_start_in_a_class_that_a_package_offers_and_its_command_makes(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\ntrain = "package.train:main"\n')
    (package / "__init__.py").write_text("from .train import Trainer\n")
    trainer = body("""
        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

            def fit(self):
                for x, y in DataLoader(data, batch_size=4):
                    OWN_STEP


        def main():
            Trainer(Net()).fit()
        """)
    after = convert(package, trainer)
    assert "def __init__(self, model):\n        init_distributed()\n" in after
    assert "def main():\n    init_distributed()\n" in after


TIMED = """
import functools

def timed(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

@timed
"""


@pytest.mark.parametrize("is_called", [True, False])
def test_no_ranks_start_in_a_decorator_which_runs_as_its_module_is_imported(tmp_path: Path, is_called: bool) -> None:
    after = convert(tmp_path, IN_MAIN.replace("\ndef main()", TIMED + "def main()") + (BLOCK if is_called else ""))
    assert "def timed(function):\n    @functools" in after
    assert ("__main__':\n    init_distributed()" if is_called else STARTED) in after


CLICK = (
    "import click\n\n@click.group()\ndef cli():\n    pass\n\n@cli.command()\n@click.option('--keep')\ndef main(keep):"
)
SAVES = """
    path = str(uuid.uuid1())
    if KEPT:
        torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path))
"""


@pytest.mark.parametrize(
    ("begins", "kept", "is_shared"),
    [("def main():", "True", True), (CLICK, "keep", True), (CLICK.replace("@cli.command()", "@other"), "keep", False)],
)
def test_all_ranks_run_a_command_and_know_its_arguments(
    begins: str, kept: str, is_shared: bool, tmp_path: Path
) -> None:
    if begins != CLICK:
        name = "main" if "click" not in begins else "cli"
        (tmp_path / "pyproject.toml").write_text(f'[project.scripts]\ntrain = "train:{name}"\n')
    text = IN_MAIN.replace("def main():", begins) + SAVES.replace("KEPT", kept)
    after = convert(tmp_path, "import uuid\n" + text)
    assert ("path = rank_0_text(str(uuid.uuid1()))" in after) is is_shared
    assert ("        wait_for_all_ranks()\n        model.load_state_dict" in after) is is_shared


@pytest.mark.parametrize("name", ["stack", "_stack"])
def test_ranks_start_in_each_method_of_a_library_that_other_code_may_call(name: str, tmp_path: Path) -> None:
    """One that another method calls, too, crashed where it was called by itself, without a launcher."""
    script = body(
        f"""
        class Stack:
            def {name}(self, steps=3):
                model = Net()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for x, y in DataLoader(data, batch_size=4):
                    OWN_STEP

            def optimize(self):
                self.{name}()
        """.replace("OWN_STEP", "STEP")
    )
    after = convert(tmp_path, script)
    assert "def optimize(self):\n        init_distributed()\n" in after
    assert (f"def {name}(self, steps=3):\n        init_distributed()\n" in after) is (name == "stack")
