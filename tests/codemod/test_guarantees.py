"""What holds whatever stands in the files: bad ones stop nothing, and nothing is taken for granted of the runtime."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import examples
import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.findings import FileStatus, Severity, TrialStatus
from ds_migrate.rules.dsm390_context_api import is_lost
from ds_migrate.upgrade.result import RENAMED
from guarantees import assert_stable, context_has
from idiom_case import assert_lines

TRIAL = examples.module()


def syntax_error(folder: Path) -> None:
    (folder / "bad.py").write_text(TRIAL.replace("class MyTrial(PyTorchTrial):", "class MyTrial(PyTorchTrial:"))


def gbk(folder: Path) -> None:
    (folder / "bad.py").write_bytes(TRIAL.encode() + "# 训练\n".encode("gbk"))


def python_2(folder: Path) -> None:
    (folder / "bad.py").write_text(TRIAL + '\nprint "done"\n')


def zero_byte(folder: Path) -> None:
    (folder / "bad.py").write_bytes(TRIAL.encode() + b"\0")


def unreadable(folder: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (folder / "bad.py").write_text(TRIAL)
    (folder / "bad.py").chmod(0)


def loop(folder: Path) -> None:
    (folder / "bad.py").symlink_to(folder / "other.py")
    (folder / "other.py").symlink_to(folder / "bad.py")


def deep(folder: Path) -> None:
    (folder / "bad.py").write_text(TRIAL + "\nx = " + "(" * 900 + "1" + ")" * 900 + "\n")


def no_notebook(folder: Path) -> None:
    (folder / "bad.ipynb").write_text('{"cells": [{"source": "class A(determined.pytorch.PyTorchTrial): pass"')


@pytest.mark.parametrize("spoil", [syntax_error, gbk, python_2, zero_byte, unreadable, loop, deep, no_notebook])
def test_a_bad_file_is_one_error_and_stops_no_other(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    spoil(tmp_path)
    (tmp_path / "model_def.py").write_text(TRIAL)
    report = examples.run(tmp_path)
    good = next(f for f in report.files if f.path.name == "model_def.py")
    assert good.status is FileStatus.CHANGED
    assert [t.status for t in good.trials] == [TrialStatus.CONVERTED]
    sources = {s.path.name: s.error for s in discover([str(tmp_path)])}
    bad = [f for f in report.files if f.path.stem == "bad"]
    errors = [finding for f in bad for finding in f.findings if finding.severity is Severity.ERROR]
    assert len(errors) + sum(error is not None for name, error in sources.items() if name.startswith("bad")) == 1
    assert all(f.status is FileStatus.ERROR and not f.to_write for f in bad)


def test_a_helper_that_does_not_parse_blocks_only_what_needs_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from determined.pytorch import PyTorchTrial\n\nclass Base(PyTorchTrial:\n")
    (tmp_path / "derived.py").write_text(TRIAL.replace("PyTorchTrial)", "Base)").replace("import torch\n",
        "import torch\nfrom broken import Base\n", 1))  # fmt: skip
    (tmp_path / "model_def.py").write_text(TRIAL)
    report = examples.run(tmp_path)
    changed = {f.path.name for f in report.files if f.to_write and f.path.suffix == ".py"}
    assert changed == {"model_def.py"}
    assert [f.status for f in report.files if f.path.name == "broken.py"] == [FileStatus.ERROR]


def test_what_the_context_loses_is_blocked() -> None:
    had = {n for n in context_has("trial_runtime.pytorch", "PyTorchTrialContext") if not n.startswith("_")}
    had -= RENAMED.keys()  # of 0.12.11, renamed before all else
    assert had - context_has() <= {name for name in had if is_lost(name)}
    assert {"wrap_model", "backward", "experimental", "_aggregation_frequency"} <= set(
        filter(is_lost, [*had, "_aggregation_frequency"])
    )


# Names of every kind that Determined has and the runtime has not, as real files import them.
LACKING = [
    "from determined.common import util\n\nutil.chunks(b'')\n",
    "from determined import core\n\ncore.DummyTrainContext()\n",
    "import determined as det\n\ndet.ExperimentConfig\n",
    "from determined import pytorch\n\npytorch.lightning.LightningAdapter\n",
    "import determined.keras\n\ndetermined.keras.TFKerasTrial\n",
    "from determined.experimental import core_v2\n\ncore_v2.init()\n",
    "import determined.util as util\n\nutil.write_user_code\n",
]


@pytest.mark.parametrize("use", LACKING)
def test_a_name_that_the_runtime_lacks_is_imported_where_it_is_used(use: str, tmp_path: Path) -> None:
    result = examples.convert(tmp_path, TRIAL + "\n\n" + use)
    found = [f for f in result.findings if f.severity is Severity.REVIEW and f.code == "DSM101"]
    assert found and all(f.help for f in found)
    text = (TRIAL + "\n\n" + use).splitlines()
    assert all("determined" in text[f.line - 1] or "." in text[f.line - 1] or "(" in text[f.line - 1] for f in found)
    assert result.after is not None
    trial, _, below = result.after.decode().partition("def build_validation_data_loader")
    assert any(line.startswith(("import determined", "from determined")) for line in below.splitlines())
    assert not any(line.startswith(("import determined", "from determined")) for line in trial.splitlines())


KEPT = {
    "in a function": (
        'from determined.experimental import core_v2\n\n\ndef submit():\n    """Submit."""\n    core_v2.init()\n',
        ("def submit():", '"""Submit."""', "from determined.experimental import core_v2", "core_v2.init()"),
    ),
    "a module": (
        "import determined.common.api\n\n\ndef submit():\n    determined.common.api.login()\n",
        ("def submit():", "import determined.common.api", "determined.common.api.login()"),
    ),
    "below a package that the runtime has": (
        "import determined as det\n\n\ndef keras():\n    return det.keras.TFKerasTrial, det.LOG_FORMAT\n",
        (
            "import trial_runtime as det",
            "import determined.keras",
            "return determined.keras.TFKerasTrial, det.LOG_FORMAT",
        ),
    ),
    "where a script begins": (
        "from determined.experimental import core_v2 as core\n\nif __name__ == '__main__':\n"
        "    print(1)\n    core.init()\n",
        (
            "if __name__ == '__main__':",
            "print(1)",
            "from determined.experimental import core_v2 as core",
            "core.init()",
        ),
    ),
    "refused at the call": (
        "from determined.experimental import client\n\n\ndef register():\n    return client.get_model('m')\n",
        ("from trial_runtime.experimental import client", "return client.get_model('m')"),
    ),
    "guarded": (
        "try:\n    from determined.keras import TFKerasTrial\nexcept ImportError:\n    TFKerasTrial = None\n\n"
        "print(TFKerasTrial)\n",
        ("try:", "from determined.keras import TFKerasTrial", "except ImportError:", "print(TFKerasTrial)"),
    ),
}


@pytest.mark.parametrize(("use", "lines"), KEPT.values(), ids=list(KEPT))
def test_a_name_without_counterpart_blocks_no_trial(use: str, lines: tuple[str, ...], tmp_path: Path) -> None:
    imports, _, rest = use.partition("\n") if use.startswith(("from", "import")) else ("import os", "", use)
    result = examples.convert(tmp_path, TRIAL.replace("import torch\n", f"import torch\n{imports}\n", 1) + rest)
    found = [f for f in result.findings if f.severity is Severity.REVIEW and f.code == "DSM101"]
    assert len(found) == 1 and found[0].help
    assert result.after is not None
    assert_lines(result.after.decode(), lines)
    (tmp_path / "model_def.py").write_bytes(result.after)
    assert_stable(tmp_path)
