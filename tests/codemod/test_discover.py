"""Which files a run looks at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ds_migrate.files import discovery as walk
from ds_migrate.files.discovery import Source, discover, project_files, project_root
from ds_migrate.files.prefilter import may_hold_trial
from ds_migrate.project.named_files import keep_concerned
from shell_samples import TRIAL, git


def make(root: Path, *names: str, data: bytes = TRIAL) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def names(sources: list[Source], root: Path) -> list[str]:
    return [source.path.relative_to(root).as_posix() for source in sources]


def errors(sources: list[Source]) -> dict[str, str]:
    return {source.path.name: source.error for source in sources if source.error}


def named(*paths: Path) -> list[Source]:
    """The files, named one by one, as the command line sees them."""
    sources = discover(paths)
    keep_concerned(sources)
    return sources


@pytest.fixture(params=["git", "no git"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with and without git: what is found must be the same."""
    if request.param == "git":
        git(tmp_path, "init", "-q")
    return tmp_path


def test_a_folder_gives_python_notebooks_and_yaml_files_sorted(tree: Path) -> None:
    make(tree, "b.py", "a.py", "sub/c.ipynb", "const.yaml", "x.yml", "readme.md", "stub.pyi", "py")
    assert names(discover([tree]), tree) == ["a.py", "b.py", "const.yaml", "sub/c.ipynb", "x.yml"]


def test_only_bytes_that_may_concern_a_migration_are_kept(tree: Path) -> None:
    make(tree, "trial.py")
    make(tree, "other.py", data=b"import os\n")
    make(tree, "experiment.yaml", data=b"entrypoint: model_def:Trial\n")
    make(tree, "compose.yaml", data=b"services: {}\n")
    kept = {source.path.name: source.data is not None for source in discover([tree])}
    assert kept == {"trial.py": True, "other.py": False, "experiment.yaml": True, "compose.yaml": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import determined", True),
        ("import determined.pytorch as dp", True),
        ("import os, determined as det", True),
        ("import os,\\\n    determined", True),
        ("from determined import pytorch", True),
        ("from \\\n determined.pytorch import init", True),
        ("if True:\n\timport\tdetermined", True),
        ("x = 1;import determined", True),
        ("importlib.import_module('determined.core')", True),
        ('__import__("determined")', True),
        ('{"source": ["import determined as det\\n"]}', True),
        ("# as determined by hand, and undetermined otherwise", False),
        ("from .determined import x", False),
        ("predetermined = 'undetermined'", False),
    ],
)
def test_imports_of_determined_are_looked_for_and_not_the_word(text: str, expected: bool) -> None:
    assert may_hold_trial(text.encode()) is expected


def test_what_was_not_kept_can_still_be_read(tmp_path: Path) -> None:
    make(tmp_path, "other.py", data=b"import os\n")
    (source,) = discover([tmp_path])
    assert source.read() == b"import os\n"


def test_environments_and_caches_are_passed_over(tree: Path) -> None:
    make(tree, "a.py", ".venv/x.py", "node_modules/y.py", "pkg/__pycache__/z.py", "pkg/.ipynb_checkpoints/n.ipynb")
    make(tree, "lib/site-packages/dep.py", "myenv/pyvenv.cfg", "myenv/lib/x.py")
    assert names(discover([tree]), tree) == ["a.py"]


def test_an_environment_named_itself_is_searched(tree: Path) -> None:
    make(tree, ".venv/site-packages/model_hub/trial.py")
    assert names(discover([tree / ".venv/site-packages"]), tree) == [".venv/site-packages/model_hub/trial.py"]


def test_gitignore_holds(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "a.py", "build/b.py")
    (tmp_path / ".gitignore").write_text("build/\n")
    assert names(discover([tmp_path]), tmp_path) == ["a.py"]


def test_an_ignored_folder_named_itself_is_searched(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "build/b.py")
    (tmp_path / ".gitignore").write_text("build/\n")
    assert names(discover([tmp_path / "build"]), tmp_path) == ["build/b.py"]


def test_a_tracked_file_that_was_deleted_is_no_error(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "a.py", "gone.py")
    git(tmp_path, "add", "-A")
    (tmp_path / "gone.py").unlink()
    assert names(discover([tmp_path]), tmp_path) == ["a.py"]


@pytest.mark.parametrize("outer_is_git", [True, False])
def test_a_repository_inside_the_folder_is_searched_by_its_own_rules(tmp_path: Path, outer_is_git: bool) -> None:
    make(tmp_path, "a.py", "inner/b.py", "inner/ignored.py")
    (tmp_path / "inner/.gitignore").write_text("ignored.py\n")
    git(tmp_path / "inner", "init", "-q")
    if outer_is_git:
        git(tmp_path, "init", "-q")
    assert names(discover([tmp_path]), tmp_path) == ["a.py", "inner/b.py"]


def test_a_submodule_is_searched(tmp_path: Path) -> None:
    make(tmp_path, "library/lib.py", "project/a.py")
    for folder in ("library", "project"):
        git(tmp_path / folder, "init", "-q")
        git(tmp_path / folder, "add", "-A")
        git(tmp_path / folder, "commit", "-qm", "start")
    git(tmp_path / "project", "-c", "protocol.file.allow=always", "submodule", "add", "-q", "../library", "sub")
    assert names(discover([tmp_path / "project"]), tmp_path / "project") == ["a.py", "sub/lib.py"]


def test_the_variables_of_a_git_hook_do_not_lead_astray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hooked", "asked"):
        make(tmp_path, f"{name}/{name}.py")
        git(tmp_path / name, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "hooked/.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "hooked"))
    assert names(discover([tmp_path / "asked"]), tmp_path / "asked") == ["asked.py"]


def test_a_file_is_searched_once_however_often_it_is_named(tree: Path) -> None:
    make(tree, "a.py")
    (tree / "link.py").symlink_to("a.py")
    assert len(discover([tree / "a.py", tree, tree / "a.py", f"{tree}/./a.py"])) == 1


def test_a_file_goes_by_its_own_name_where_a_link_to_it_comes_first(tree: Path) -> None:
    make(tree, "z.py")
    (tree / "a.py").symlink_to("z.py")
    assert [source.path.name for source in discover([tree])] == ["z.py"]
    assert [source.path.name for source in discover([tree / "a.py"])] == ["a.py"]


def test_a_loop_of_links_is_one_error_and_stops_nothing(tree: Path) -> None:
    make(tree, "z.py")
    (tree / "loop.py").symlink_to("pool.py")
    (tree / "pool.py").symlink_to("loop.py")
    (tree / "folder").symlink_to(tree)
    sources = discover([tree])
    assert [source.path.name for source in sources] == ["z.py", "loop.py"]
    assert "symbolic links" in errors(sources)["loop.py"]


def test_a_dangling_link_is_news_only_when_it_was_named(tree: Path) -> None:
    (tree / ".#lock.py").symlink_to("somebody@somewhere")
    assert discover([tree]) == []
    assert errors(discover([tree / ".#lock.py"])) == {".#lock.py": "cannot be read: no such file or directory"}


def test_a_pipe_does_not_make_the_run_wait(tree: Path) -> None:
    os.mkfifo(tree / "pipe.py")
    assert errors(discover([tree])) == {}
    assert errors(discover([tree / "pipe.py"])) == {"pipe.py": "cannot be read: not a regular file"}


def test_a_missing_path_is_an_error_and_the_others_are_read(tmp_path: Path) -> None:
    make(tmp_path, "a.py")
    sources = discover([tmp_path / "missing.py", tmp_path / "a.py"])
    assert errors(sources) == {"missing.py": "cannot be read: no such file or directory"}
    assert [source.path.name for source in sources if not source.error] == ["a.py"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.py", "closed/b.py")
    scandir = os.scandir

    def guarded(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    sources = discover([tmp_path])
    assert errors(sources) == {"closed": "cannot be read: permission denied"}
    assert names(sources, tmp_path) == ["closed", "a.py"]


def test_paths_stay_as_the_user_named_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "pkg/a.py")
    monkeypatch.chdir(tmp_path)
    assert [str(source.path) for source in discover(["pkg"])] == ["pkg/a.py"]
    assert [str(source.path) for source in discover(["."])] == ["pkg/a.py"]
    assert discover(["."])[0].real == Path(os.path.realpath(tmp_path)) / "pkg/a.py"


def test_a_name_that_is_no_text_is_read(tmp_path: Path) -> None:
    name = os.fsdecode(b"tri\xffal.py")
    make(tmp_path, name)
    git(tmp_path, "init", "-q")
    assert [source.path.name for source in discover([tmp_path])] == [name]


def test_the_project_of_a_file_is_its_work_tree_else_its_folder(tmp_path: Path) -> None:
    make(tmp_path, "in/pkg/a.py", "out/pkg/a.py")
    git(tmp_path / "in", "init", "-q")
    assert project_root(tmp_path / "in/pkg/a.py") == Path(os.path.realpath(tmp_path / "in"))
    assert project_root(tmp_path / "out/pkg/a.py") == Path(os.path.realpath(tmp_path / "out/pkg"))
    assert project_root(tmp_path / "out") == Path(os.path.realpath(tmp_path / "out"))


def test_a_source_belongs_to_the_project_of_the_folder_that_was_named(tmp_path: Path) -> None:
    make(tmp_path, "pkg/sub/a.py")
    assert discover([tmp_path / "pkg"])[0].root == Path(os.path.realpath(tmp_path / "pkg"))


def test_a_project_that_is_walked_is_not_listed_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tree, "trial.py", "sub/b.py")
    make(tree, "sub/const.yaml", data=b"a: 1\n")
    whole, part = discover([tree], lambda name: not name.endswith("b.py")), discover([tree / "sub"])
    files = project_files(tree)
    monkeypatch.setattr(walk, "_files_below", lambda *_, **__: pytest.fail("listed twice"))
    assert {source.listed is not None for source in whole} == {True}
    assert project_files(tree, whole[0].listed) == files
    has_git = (tree / ".git").exists()
    assert {source.listed is None for source in part} == {has_git}


def test_project_files_are_resolved_and_named_once(tree: Path) -> None:
    make(tree, "a.py", "sub/b.ipynb", "c.yaml", "d.txt")
    (tree / "link.py").symlink_to("a.py")
    root = Path(os.path.realpath(tree))
    assert project_files(tree) == [f"{root}/a.py", f"{root}/c.yaml", f"{root}/sub/b.ipynb"]


@pytest.mark.parametrize(
    ("importing", "bases", "file"),
    [
        ("from base import Base", "Base", "base.py"),
        ("import base as b", "b.Base", "base.py"),
        ("import os, base", "base.Base", "base.py"),
        ("from lib.base import Base as B", "B", "lib/base.py"),
        ("from lib import (\n    other as o,\n    base,\n)", "base.Base", "lib/base.py"),
        ("from .base import *", "Base", "pkg/base.py"),
        ("from . import base", "base.Base", "pkg/base.py"),
        ("from ..base import Base", "nn.Module, Base", "base.py"),
        ("from lib import Base", "Base", "lib/__init__.py"),
        ("from base import Base", "Base", "src/base.py"),
    ],
)
def test_a_file_that_imports_a_trial_is_kept_though_it_has_no_word_of_one(
    importing: str, bases: str, file: str, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, file)
    make(tmp_path, "pkg/derived.py", data=f"{importing}\nclass D({bases}): ...\n".encode())
    make(tmp_path, "pkg/other.py", data=b"import base as other\nclass D(Base): ...\n")
    kept = {source.path.stem: source.data is not None for source in named(*sorted((tmp_path / "pkg").glob("[do]*.py")))}
    assert kept == {"derived": True, "other": False}


def test_imports_are_followed_through_other_files_and_around_loops(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "base.py")
    make(tmp_path, "between.py", data=b"import derived\nfrom base import Other as Base\n")
    make(tmp_path, "derived.py", data=b"from between import Base as B\nclass D(B): ...\n")
    assert named(tmp_path / "derived.py")[0].data is not None


def test_imports_are_not_followed_out_of_the_project(tmp_path: Path) -> None:
    make(tmp_path, "base.py")
    make(tmp_path, "project/derived.py", data=b"from base import Base\nclass D(Base): ...\n")
    git(tmp_path / "project", "init", "-q")
    assert named(tmp_path / "project/derived.py")[0].data is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('"""As determined by hand."""\nclass A(dict): ...\n', False),
        ("import determined\nfrom other import A\nclass B(A): ...\n", False),
        ("import determined\nfrom base import Base\nclass B(Base): ...\n", True),
        ("import determined\nfrom determined.pytorch import PyTorchTrial\n", True),
        ("import determined  # ds-migrate: skip\n", True),
    ],
)
def test_a_file_with_a_word_of_a_trial_that_can_define_none_needs_no_project(
    text: str, kept: bool, tmp_path: Path
) -> None:
    make(tmp_path, "base.py", data=b"from determined.pytorch import PyTorchTrial as Base\n")
    make(tmp_path, "other.py", data=b"class A: ...\n")
    make(tmp_path, "named.py", data=text.encode())
    make(tmp_path, "plain.py", data=b"import os\n")
    (source, plain) = named(tmp_path / "named.py", tmp_path / "plain.py")
    assert (source.data is not None, plain.data) == (kept, None)
    assert source.read() == text.encode()


def test_beside_a_trial_or_in_a_folder_every_file_with_a_word_is_kept(tmp_path: Path) -> None:
    make(tmp_path, "helper.py", data=b"import determined\n")
    assert [source.data is not None for source in named(tmp_path)] == [True]
    make(tmp_path, "trial.py")
    both = named(tmp_path / "helper.py", tmp_path / "trial.py")
    assert [source.data is not None for source in both] == [True, True]


# -- what training made -----------------------------------------------------------------------------------------------

RUN = b'{"id": "a1", "number": 1, "seed": 7, "status": "completed"}\n'
MANIFEST = b'{"files": {"code/trial.py": {}}, "progress": {"batches": 3}, "world_size": 1}\n'


def test_what_ds_train_made_is_not_walked_into(tree: Path) -> None:
    make(tree, "trial.py", "out/code/trial.py", "saved/batch_3/code/trial.py", "web/trial.py")
    make(tree, "out/run.json", data=RUN)
    make(tree, "out/config.yaml", data=b"entrypoint: trial:Trial\n")
    make(tree, "saved/batch_3/manifest.json", data=MANIFEST)
    make(tree, "web/manifest.json", data=b'{"name": "app", "icons": []}\n')
    make(tree, "web/run.json", data=b'{"id": 1}\n')
    assert names(discover([tree]), tree) == ["trial.py", "web/trial.py"]
    assert [Path(name).relative_to(tree).as_posix() for name in project_files(tree)] == ["trial.py", "web/trial.py"]


@pytest.mark.parametrize("named", ["out", "out/checkpoints", "out/checkpoints/batch_3/code/trial.py", "link.py"])
def test_a_name_inside_of_what_ds_train_made_is_refused_with_the_reason(tree: Path, named: str) -> None:
    make(tree, "out/checkpoints/batch_3/code/trial.py")
    make(tree, "out/run.json", data=RUN)
    make(tree, "out/checkpoints/batch_3/manifest.json", data=MANIFEST)
    (tree / "link.py").symlink_to("out/checkpoints/batch_3/code/trial.py")
    (source,) = discover([tree / named])
    assert source.data is None
    assert source.error is not None
    assert source.error.startswith(f"it belongs to a run directory of ds-train, {os.path.realpath(tree)}/out")


def test_a_link_to_the_code_of_a_checkpoint_is_left_out(tree: Path) -> None:
    make(tree, "out/checkpoints/batch_3/code/trial.py")
    make(tree, "out/checkpoints/batch_3/manifest.json", data=MANIFEST)
    (tree / "link.py").symlink_to("out/checkpoints/batch_3/code/trial.py")
    assert discover([tree]) == []
