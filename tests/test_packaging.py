"""The distribution: what its commands import, what they need, what it holds."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata, resources
from pathlib import Path

import ds_migrate
import hatchling.build
import pytest
import trial_runtime
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML
from trial_runtime._installation import command_for

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "deepspeed", "libcst", "rich", "pygments", "ruamel", "numpy", "tensorboard"}


def imported(*arguments: str) -> set[str]:
    """Top-level modules that ``python ARGUMENTS`` imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return {module.partition(".")[0] for module in re.findall(r"^import time:.*\|\s*([\w.]+)$", run.stderr, re.M)}


def test_help_imports_nothing_heavy() -> None:
    modules = imported("-m", "ds_migrate", "--help")
    assert "ds_migrate" in modules
    assert modules & HEAVY == set()


def test_a_tree_without_a_trial_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n")
    modules = imported("-m", "ds_migrate", str(tmp_path))
    assert "ds_migrate" in modules
    assert modules & HEAVY == set()


def test_a_conversion_imports_no_part_of_the_runtime(tmp_path: Path) -> None:
    project = shutil.copytree(ROOT / "fixtures/guide/before", tmp_path / "project")
    modules = imported("-m", "ds_migrate", str(project))
    assert "libcst" in modules
    assert modules & {"torch", "deepspeed", "numpy", "tensorboard", "trial_runtime"} == set()


def test_one_version_everywhere() -> None:
    assert metadata.version("ds-migrate") == ds_migrate.__version__ == trial_runtime.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{ds_migrate.__version__}]" in changes


def test_the_codemod_alone_needs_four_packages_and_before_3_11_a_fifth() -> None:
    requirements = [Requirement(r) for r in metadata.requires("ds-migrate") or [] if "extra ==" not in r]
    needed = {(canonicalize_name(r.name), str(r.marker or "")) for r in requirements}
    always = {(name, "") for name in ("libcst", "pathspec", "rich", "ruamel-yaml")}
    assert needed == always | {("tomli", 'python_version < "3.11"')}


def third_party(folder: Path) -> set[str]:
    """Top-level modules that the sources of a package import, from neither this distribution nor Python."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"ds_migrate", "ds_verify", "trial_runtime"}


def declared(*extras: str) -> set[str]:
    """Names of the distributions that the project asks for, in itself and with these extras."""
    names: set[str] = set()
    for text in metadata.requires("ds-migrate") or []:
        requirement = Requirement(text)
        # What the oldest Python needs is declared, whatever this one is.
        asked = [{"extra": extra, "python_version": "3.10"} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, asked)):
            names.add(canonicalize_name(requirement.name))
    return names


@pytest.mark.parametrize(
    ("package", "extras", "brought_along"),
    [
        ("codemod/ds_migrate", ("completion",), {"pygments"}),  # by rich
        (
            "runtime/trial_runtime",
            ("runtime", "search", "mlflow", "trackio", "wandb"),
            {"typing_extensions", "google", "transformers"},
        ),  # by torch, by gcsfs of the extra gcs, and by the extra huggingface
        ("runtime/ds_verify", ("runtime",), set()),
    ],
)
def test_what_a_package_imports_is_what_it_asks_for(
    package: str, extras: tuple[str, ...], brought_along: set[str]
) -> None:
    modules = third_party(ROOT / package) - brought_along
    assert modules
    assert {canonicalize_name(module) for module in modules - {"ruamel"}} <= declared(*extras)


@pytest.mark.parametrize("package", ["ds_migrate", "ds_verify", "trial_runtime"])
def test_packages_are_typed(package: str) -> None:
    assert resources.files(package).joinpath("py.typed").is_file()


def test_pins_are_within_the_ranges_and_cover_all_that_tests_need() -> None:
    """What CI installs is installed as the constraints file says, with nothing left to choose."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                pins[canonicalize_name(requirement.name)] = requirement.specifier
    waiting, seen, unpinned = [("ds-migrate", "test"), ("ds-migrate", "lint")], set(), set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed here
        for text in requires:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            needed = canonicalize_name(requirement.name)
            waiting += [(needed, wanted) for wanted in requirement.extras or {""}]
            if needed != "ds-migrate" and needed not in pins and not needed.startswith(("nvidia-", "cuda-", "triton")):
                unpinned.add(needed)
    assert unpinned == set()
    for pin in ("torch==2.13.0", "deepspeed==0.19.8", "libcst==1.9.0", "determined==0.38.1"):
        name, _, version = pin.partition("==")
        assert str(pins[canonicalize_name(name)]) == f"=={version}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that a user installs, built without a network."""
    folder, here = tmp_path_factory.mktemp("wheel"), Path.cwd()
    os.chdir(ROOT)
    try:
        return zipfile.ZipFile(folder / hatchling.build.build_wheel(str(folder)))
    finally:
        os.chdir(here)


def test_the_wheel_holds_the_packages_whole_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    packages = [ROOT / "codemod/ds_migrate", ROOT / "runtime/ds_verify", ROOT / "runtime/trial_runtime"]
    expected = {
        f"{package.name}/{path.relative_to(package).as_posix()}"
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".pyo")
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected
    assert any(name.endswith("schema.json") for name in held)


def test_the_wheel_has_the_three_commands_and_the_license(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    commands = re.findall(r"^([\w-]+) = ", wheel.read(entry_points).decode(), re.M)
    assert sorted(commands) == ["ds-migrate", "ds-train", "ds-verify"]
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        ({}, "pip install 'ds-migrate[runtime]'"),
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'ds-migrate[runtime] @ git+https://host/x.git@abc'",
        ),
        (
            {"url": "file:///w/ds_migrate-1-py3-none-any.whl", "archive_info": {}},
            "pip install 'ds-migrate[runtime] @ file:///w/ds_migrate-1-py3-none-any.whl'",
        ),
        ({"url": "file:///my%20clone", "dir_info": {"editable": True}}, "pip install '/my clone[runtime]'"),
        (
            {"url": ROOT.as_uri(), "dir_info": {}},
            f"pip install -c {shlex.quote(f'{ROOT}/constraints.txt')} {shlex.quote(f'{ROOT}[runtime]')}",
        ),
    ],
)
def test_the_runtime_is_installed_from_where_the_package_came_from(recorded: dict[str, object], command: str) -> None:
    assert command_for(recorded) == command


def test_a_release_is_one_command_which_the_workflow_runs() -> None:
    workflow = YAML(typ="safe").load(ROOT / ".github/workflows/release.yml")
    assert ".ci/release" in [step.get("run") for step in workflow["jobs"]["build"]["steps"]]
    assert workflow["jobs"]["publish"]["needs"] == "build"
    script = ROOT / ".ci/release"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
