"""``ds-verify`` calls trials on ``model_hub``'s base class the same as their conversions, on one rank and on two.

``tests/runtime/test_huggingface.py`` compares the two base classes themselves, in a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import huggingface_project
import pytest
from ds_verify.cli import main
from ds_verify.exit_codes import SAME
from ds_verify.fork_server import ForkServer
from ds_verify.launchers import PRELOAD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers"),
]


_TRANSFORMERS = (
    "accelerate",
    "transformers.optimization",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
)
"""What the trials have each rank import, six times as long as it trains."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Provide what starts ranks with transformers imported, once for all of them."""
    server = ForkServer((*PRELOAD, *_TRANSFORMERS))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def offline(server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds_verify.launchers.launcher_for", lambda _: server)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("trial", "aggregation"),
    [
        ("StepTrial", 2),
        ("PlainTrial", 2),  # without accumulation: on determined itself, below
        ("InitTrial", 1),
    ],
)
def test_a_trial_on_the_base_class_and_its_conversion_are_the_same(
    trial: str, aggregation: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = huggingface_project.write_project(tmp_path / "project", trial, aggregation)
    code = main([str(config), "--steps", "6", "--device", "cpu", "--no-report"])
    printed = capsys.readouterr()
    assert code == SAME, printed.out + printed.err
    assert printed.out.splitlines()[-1].startswith("same: 6 batches with 1 and 2 ranks")


def test_the_original_is_served_on_determined_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("determined")
    config = huggingface_project.write_project(tmp_path / "project", "PlainTrial")
    code = main([str(config), "--steps", "6", "--device", "cpu", "--no-report", "--oracle", "determined"])
    assert code == SAME, capsys.readouterr().out
