"""What a run may cost, counted and not timed: parses, reads, and what is held in memory."""

from __future__ import annotations

import gc
import tokenize
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
from ds_migrate import pipeline
from ds_migrate.experiment import planning
from ds_migrate.files import discovery, reading
from ds_migrate.findings import Report, TrialStatus
from ds_migrate.options import Options
from ds_migrate.project import trials
from ds_migrate.syntax import node_index
from ds_migrate.syntax import nodes as syntax_tree
from ds_migrate.syntax.source import SourceFile

FIXTURE = Path(__file__).parents[2] / "fixtures/schedule_clip_reducers/before/model_def.py"


def migrate(folder: Path) -> Report:
    return pipeline.migrate(discovery.discover([folder]), Options())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three folders, each with a trial and a module without one."""
    for name in ("one", "two", "three"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model_def.py").write_bytes(FIXTURE.read_bytes())
        (folder / "data.py").write_bytes(b"SIZE = 3\n")
    return tmp_path


def test_each_file_with_a_trial_is_parsed_once_and_no_other(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Path] = []
    inner = SourceFile.__init__

    def counted(self: SourceFile, path: Path, *arguments: Any) -> None:
        parsed.append(path)
        inner(self, path, *arguments)

    monkeypatch.setattr(SourceFile, "__init__", counted)
    report = migrate(tree)
    assert len(list(report.trials(TrialStatus.CONVERTED))) == 3
    assert sorted(path.relative_to(tree).as_posix() for path in parsed) == [
        "one/model_def.py",
        "three/model_def.py",
        "two/model_def.py",
    ]


def test_a_parsed_file_is_let_go_before_the_next_folder_is_parsed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[weakref.ref[object]] = []
    alive: list[int] = []
    inner = SourceFile.__init__

    def noted(self: SourceFile, path: Path, *arguments: Any) -> None:
        alive.append(sum(module() is not None for module in modules))
        inner(self, path, *arguments)
        modules.append(weakref.ref(self.module))

    monkeypatch.setattr(SourceFile, "__init__", noted)
    gc.disable()  # nothing may wait for the garbage collector
    try:
        migrate(tree)
        assert alive == [0, 0, 0]
        assert all(module() is None for module in modules)
    finally:
        gc.enable()


class Calls(Counter[str]):
    """The calls of a function, by what each is about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *owners: Any, key: Callable[..., str]) -> None:
        """Count calls of the function that all ``owners`` have under ``name``."""
        super().__init__()
        inner = getattr(owners[0], name)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            self[key(*arguments)] += 1
            return inner(*arguments, **keywords)

        for owner in owners:
            monkeypatch.setattr(owner, name, counted)


def test_each_file_is_read_once_parsed_once_and_tokenized_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "one/const.yaml").write_text("entrypoint: model_def:SegmentTrial\n")
    (tree / "one/train.py").write_text("from model_def import SegmentTrial  # ds-migrate: skip\n")
    (tree / "other.yaml").write_text("entrypoint: module:Class\n")
    (tree / "names.yaml").write_text("a: 1\n")
    read = Calls(monkeypatch, "read_file", discovery, reading, key=lambda name, *_: str(Path(name).relative_to(tree)))
    parsed = Calls(monkeypatch, "module_facts", trials, key=lambda data, *_: data.decode())
    yaml = Calls(monkeypatch, "read_yaml", planning, key=lambda data: data.decode())
    comments = Calls(monkeypatch, "tokenize", tokenize, key=lambda *_: "")
    listed = Calls(monkeypatch, "_files_below", discovery, key=lambda folder, *_: str(folder))

    report = migrate(tree)

    assert len(list(report.trials(TrialStatus.CONVERTED))) == 3
    assert read == {str(path.relative_to(tree)): 1 for path in tree.rglob("*.*") if path.suffix in (".py", ".yaml")}
    assert sorted(parsed.values()) == [1, 3]  # train.py, and the model_def.py of three folders
    assert yaml == {"entrypoint: model_def:SegmentTrial\n": 1}
    assert comments == {"": 1}
    assert listed == {str(tree): 1}


def test_a_file_is_walked_less_than_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules ask for ``file.nodes(kind, below=node)``, which one walk prepares."""
    visited = 0
    inner = syntax_tree.children

    def counted(node: cst.CSTNode) -> list[cst.CSTNode]:
        nonlocal visited
        visited += 1
        return inner(node)

    for module in (syntax_tree, node_index):
        monkeypatch.setattr(module, "children", counted)
    (tmp_path / "model_def.py").write_bytes(FIXTURE.read_bytes())
    migrate(tmp_path)
    nodes = len(SourceFile(FIXTURE, FIXTURE.read_bytes()).nodes())
    visited -= nodes  # this last file
    assert nodes <= visited < 2 * nodes
