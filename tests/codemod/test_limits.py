"""Every run ends soon: time grows with the size of a file, up to a size that is refused with the limit it met."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import examples
import pytest
from ds_migrate.cli import main
from ds_migrate.files import limits
from ds_migrate.files.patterns import slow_patterns
from ds_migrate.findings import Report, Severity
from fuzz.cases import foreign_source

CONFIG = "entrypoint: model_def:MyTrial\nhyperparameters:\n  global_batch_size: 4\n"
STEP = "        loss = self.criterion"


def in_batch(line: str, count: int) -> str:
    """A trial whose train_batch has a line many times."""
    lines = "".join(f"        {line.format(i)}\n" for i in range(count))
    return examples.module().replace(STEP, lines + STEP, 1)


def methods(text: str, count: int) -> str:
    return examples.module() + "".join(text.format(i, i + 1) for i in range(count))


# Files whose time once grew with the square of their size, or worse: (name, content by a count, count).
GROWING: dict[str, tuple[str, Callable[[int], str], int]] = {
    "statements": ("model_def.py", lambda n: in_batch("x{0} = compute({0})", n), 250),
    "methods": ("model_def.py", lambda n: methods("\n    def h{0}(self, b):\n        return self.model(b)\n", n), 125),
    "calls": (
        "model_def.py",
        lambda n: methods("\n    def h{0}(self, batch):\n        return self.h{1}(batch)\n", n),
        250,
    ),
    "contexts": ("model_def.py", lambda n: in_batch("c{0} = self.context", n), 250),
    "skips": ("model_def.py", lambda n: examples.module() + "# ds-migrate: skip\n" * n, 1000),
    "ignores": ("model_def.py", lambda n: examples.module() + "# ds-migrate: ignore[DSM350]\n" * n, 500),
    "markers": ("model_def.py", lambda n: examples.module() + "# TODO(ds-migrate DSM301): x\n" * n, 500),
    "entrypoints": ("c.yaml", lambda n: CONFIG + "# entrypoint\n" * n, 1000),
    "list": ("c.yaml", lambda n: CONFIG + "data:\n" + "  - {a: 1}\n" * n, 250),
    "keys": ("c.yaml", lambda n: CONFIG + "data:\n" + "".join(f"  k{i}: {i}\n" for i in range(n)), 500),
    "aliases": ("c.yaml", lambda n: CONFIG + "x: &a {b: 1}\n" + "".join(f"y{i}: *a\n" for i in range(n)), 250),
    "JSON": ("ds_config.json", lambda n: "{" + ",".join(f'"k{i}": 1' for i in range(n)) + "}", 1500),
    "library": (
        "model_def.py",
        lambda n: foreign_source(n) + in_batch("self.optimizer.param_groups[0]['lr'] = x", 1),
        8_000,
    ),
}


def seconds(folder: Path, name: str, text: str) -> float:
    """Return the CPU time of one run over a trial and one more file."""
    folder.mkdir(exist_ok=True)
    (folder / "model_def.py").write_text(examples.module())
    (folder / name).write_text(text)
    began = time.process_time()
    examples.run(folder)
    return time.process_time() - began


@pytest.mark.parametrize("name", GROWING)
def test_time_grows_with_the_size(name: str, tmp_path: Path) -> None:
    """Four times the content takes less than eight times as long; the square would take sixteen times.

    Other work on the machine only ever adds time, and by turns: the fastest of up to five runs counts.
    """
    file, content, count = GROWING[name]
    seconds(tmp_path / "warm", file, content(10))
    small = min(seconds(tmp_path / "small", file, content(count)) for _ in range(2))
    large = float("inf")
    for _ in range(5):
        large = min(large, seconds(tmp_path / "large", file, content(4 * count)))
        if large < 8 * small + 0.05:
            return
        small = min(small, seconds(tmp_path / "small", file, content(count)))
    pytest.fail(f"{count} take {small:.3f} s, {4 * count} take {large:.3f} s")


OPEN = ["class A(\n", "from a import (\n", "from a import b\n", "class A(B): pass\n"]
LONG = [f"from {'.' * 100_000}", f"from a{' ' * 100_000}", f"from {' ' * 100_000}", f"from .{' ' * 100_000}@"]


@pytest.mark.parametrize("text", [*(line * 10_000 for line in OPEN), *LONG], ids=range(8))
def test_a_file_named_alone_is_searched_in_no_time(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(f"class A(Base): pass\n{text}\n")
    began = time.process_time()
    main([str(path)])
    assert time.process_time() - began < 2


def limits_met(report: Report) -> list[str]:
    return [f"{finding.code} {finding.message}" for _, finding in report.findings(Severity.BLOCKED, Severity.ERROR)]


def test_a_module_beyond_the_limit_blocks_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LARGEST_MODULE", 3000)
    (tmp_path / "model_def.py").write_text(examples.module() + "# " + "x" * 3000 + "\n")
    assert limits_met(examples.run(tmp_path)) == [
        "DSM019 model_def.py has 4 kB, and modules of up to 3 kB are converted"
    ]


def test_a_helper_beyond_the_limit_blocks_the_trials_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds_migrate.project.trials.LARGEST_READ", 3000)
    monkeypatch.setattr("ds_migrate.project.conversion_groups.LARGEST_READ", 3000)
    monkeypatch.setattr("ds_migrate.project.recognition.LARGEST_READ", 3000)
    monkeypatch.setattr(limits, "LARGEST_MODULE", 2900)
    source = examples.module().replace("from models import", "import helper\nfrom models import")
    (tmp_path / "model_def.py").write_text(source)
    (tmp_path / "helper.py").write_text("from determined.pytorch import DataLoader\n" + "#" * 3000)
    report = examples.run(tmp_path)
    assert any("DSM019 helper.py has 3 kB, and modules of" in message for message in limits_met(report))
    assert not [file for file in report.files if file.to_write]


@pytest.mark.parametrize(("limit", "most"), [("MOST_WORK", 5000), ("MOST_TRIALS", 1)])
def test_many_trials_of_large_modules_are_not_converted_together(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, limit, most)
    (tmp_path / "model_def.py").write_text(examples.module() + "\n\nclass Other(MyTrial):\n    pass\n" + "#" * 2000)
    met = limits_met(examples.run(tmp_path))
    assert met == 2 * ["DSM019 2 trials share 3 kB of modules, which is too much to convert together"]


def test_a_config_beyond_the_limit_is_a_finding(tmp_path: Path) -> None:
    for folder in ("yaml", "json"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model_def.py").write_text(examples.module())
    (tmp_path / "yaml/c.yaml").write_text(CONFIG + "data: " + "x" * limits.LARGEST_CONFIG)
    (tmp_path / "json/ds_config.json").write_text('{"x": "' + "x" * limits.LARGEST_JSON + '"}')
    met = limits_met(examples.run(tmp_path))
    assert any(message.startswith("DSM411") and "larger than 256 KiB" in message for message in met)
    assert any(message.startswith("DSM505") and "files of up to 100 kB are read" in message for message in met)


@pytest.mark.parametrize("pattern", ["*a*a*a*b", "x/*a*a*a*a*a*b/y", "**/a/**/a/**/b", "a**b**c**d**e"])
def test_a_pattern_that_would_hang_is_found(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert slow_patterns([pattern]) == [pattern]
    (tmp_path / ".gitignore").write_text(f"{pattern}\nignored\n")
    (tmp_path / ("a" * 250)).mkdir()
    for name in (f"{'a' * 240}.py", "model_def.py", f"{'a' * 250}/{'a' * 240}.py"):
        (tmp_path / name).write_text(examples.module())
    began = time.process_time()
    assert main(["--check", str(tmp_path)]) == 2
    assert time.process_time() - began < 8
    shown = capsys.readouterr()
    assert f"its pattern {pattern} has too many wildcards" in shown.out + shown.err
    assert main(["--exclude", pattern, str(tmp_path)]) == 2
    assert "too many wildcards" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["*.py[cod]", "**/build/**", "*test*data*", "/a/*/b/*/c/*/d/*", "***", "!*.py"])
def test_usual_patterns_are_applied(pattern: str) -> None:
    assert slow_patterns([pattern]) == []


def test_a_long_line_of_classes_is_followed_as_far_as_the_limit(tmp_path: Path) -> None:
    text = "".join(f"class M{i}(M{i + 1}):\n    pass\n\n\n" for i in range(limits.DEEPEST_CLASS + 200))
    source = examples.module().replace("class MyTrial(PyTorchTrial)", f"{text}class MyTrial(M0, PyTorchTrial)")
    (tmp_path / "model_def.py").write_text(source)
    assert len(list(examples.run(tmp_path).trials())) == 1
