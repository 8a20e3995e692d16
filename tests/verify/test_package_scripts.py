"""Scripts that ship in packages on PyPI train the same when they are converted, proven without an edit.

What they download is not there: ``stand_ins`` has the data and the modules that they import besides.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from ds_verify.cli import main
from ds_verify.exit_codes import SAME

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STAND_INS = Path(__file__).with_name("stand_ins")
HASHES = {
    "bayesian-torch==0.5.0": "d7f9f8e46cdd274a669cd832c297b61a864d1d4bebc749b1dae5a13e5a7741d5",
    "pytorch_warmup==0.2.0": "da01fef6a75a0db3502f5566957ec3d28fc6d754bf5cceba3165815411a7278f",
    "schedulefree==1.4.1": "69ef25601d1fc0d8dd00cb36f9af78833f88b7846f1bb6ddecc9f144f3e9f7cb",
    "torch-optimizer==0.3.0": "b2180629df9d6cd7a2aeabe71fa4a872bba938e8e275965092568cd9931b924c",
}


@dataclass(frozen=True)
class Script:
    """A script of a package.

    Attributes:
        package: with its version. path: in the package. module: of the package, which the script imports.
        arguments: that make it short. ranks: scripts of pytorch_warmup end where their folder for results is there
        already, so that a second rank does.
    """

    package: str
    path: str
    module: str
    arguments: tuple[str, ...] = ()
    ranks: str = "1,2"


SCRIPTS = {
    "warmup-emnist": Script(
        "pytorch_warmup==0.2.0", "examples/emnist/main.py", "pytorch_warmup",
        ("--no-gpu", "--batch-size=16", "--epochs=1"), "1",
    ),
    "warmup-cifar10": Script(
        "pytorch_warmup==0.2.0", "examples/cifar10/main.py", "pytorch_warmup",
        ("--no-gpu", "--batch-size=16", "--epochs=1", "--no-progress", "--algorithm=adamw", "--warmup=linear"), "1",
    ),
    "bayesian-cifar": Script(
        "bayesian-torch==0.5.0", "bayesian_torch/examples/main_deterministic_cifar.py", "bayesian_torch",
        ("--mode=train", "--batch-size=16", "--workers=0", "--epochs=1"),
    ),
    "schedulefree-mnist": Script(
        "schedulefree==1.4.1", "examples/mnist/main.py", "schedulefree", ("--batch-size=16", "--epochs=1")
    ),
    "torch-optimizer-mnist": Script("torch-optimizer==0.3.0", "examples/mnist.py", "torch_optimizer"),
}  # fmt: skip


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the unpacked source distributions by package."""
    folder = tmp_path_factory.mktemp("packages")
    pip = shutil.which("pip")
    if pip is None:
        pytest.skip("there is no pip")
    wanted = folder / "wanted.txt"
    wanted.write_text("".join(f"{name} --hash=sha256:{found}\n" for name, found in HASHES.items()))
    command = [pip, "download", "-q", "--no-binary", ":all:", "--no-deps", "--require-hashes", "-r", str(wanted)]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index did not answer in 300 s")
    if done.returncode and "Could not find a version" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found = {}
    for name in HASHES:
        (archive,) = folder.glob(f"{name.replace('==', '-')}.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        found[name] = folder / archive.name.removesuffix(".tar.gz")
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_a_package_trains_as_before(
    name: str,
    packages: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = SCRIPTS[name]
    project, source = tmp_path / "project", packages[script.package]
    shutil.copytree(STAND_INS, project)
    # As it is installed: without the other scripts, which would be converted too.
    without = shutil.ignore_patterns("examples")
    shutil.copytree(source / script.module, project / script.module, ignore=without, dirs_exist_ok=True)
    path = project / Path(script.path).name
    shutil.copyfile(source / script.path, path)
    monkeypatch.chdir(project)
    options = ["--plain", "--no-report", "--steps", "8", "--ranks", script.ranks, "--against", "converted"]
    found = main([*options, path.name, *script.arguments])
    printed = capsys.readouterr()
    assert found == SAME, printed.out + printed.err
    assert path.read_bytes() == (source / script.path).read_bytes()
