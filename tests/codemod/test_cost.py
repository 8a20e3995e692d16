"""What a run may cost, counted and not timed: parses, reads, and what is held in memory."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from pathlib import Path

import libcst as cst
import pytest
from ds_migrate import pipeline
from ds_migrate.files import discovery
from ds_migrate.findings import Report, TrialStatus
from ds_migrate.options import Options
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

    def counted(self: SourceFile, path: Path, data: bytes) -> None:
        parsed.append(path)
        inner(self, path, data)

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

    def noted(self: SourceFile, path: Path, data: bytes) -> None:
        alive.append(sum(module() is not None for module in modules))
        inner(self, path, data)
        modules.append(weakref.ref(self.module))

    monkeypatch.setattr(SourceFile, "__init__", noted)
    gc.disable()  # nothing may wait for the garbage collector
    try:
        migrate(tree)
        assert alive == [0, 0, 0]
        assert all(module() is None for module in modules)
    finally:
        gc.enable()


def test_a_file_without_a_word_of_a_trial_is_read_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    inner = discovery.read_file

    def counted(name: str, follow_links: bool = True) -> bytes:
        read[Path(name).name] += 1
        return inner(name, follow_links)

    monkeypatch.setattr(discovery, "read_file", counted)
    monkeypatch.setattr(pipeline, "read_file", counted)
    migrate(tree)
    assert read["data.py"] == 3  # one in each folder


def test_a_file_is_walked_less_than_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules ask for ``file.nodes(kind, below=node)``, which one walk prepares."""
    visited = 0
    inner = syntax_tree.children

    def counted(node: cst.CSTNode) -> list[cst.CSTNode]:
        nonlocal visited
        visited += 1
        return inner(node)

    monkeypatch.setattr(syntax_tree, "children", counted)
    (tmp_path / "model_def.py").write_bytes(FIXTURE.read_bytes())
    migrate(tmp_path)
    nodes = len(SourceFile(FIXTURE, FIXTURE.read_bytes()).nodes())
    visited -= nodes  # this last file
    assert nodes <= visited < 2 * nodes
