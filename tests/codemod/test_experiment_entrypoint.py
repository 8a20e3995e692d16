"""Entrypoints in every form: which trial they name, and how Determined's launch layers are converted."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.experiment.entrypoint import commands, words
from ds_migrate.project.loading import ConfigFile
from experiment_project import Project, codes, plan, project

REST = "hyperparameters: {global_batch_size: 8, deepspeed_config: ds_config.json}\n"
DDP = "python3 -m determined.launch.torch_distributed"
HARNESS = "python3 -m determined.exec.harness"
ITEMS = "python3, -m, determined.launch."
DS = "python3 -m determined.launch.deepspeed"


@pytest.fixture
def here(tmp_path: Path) -> Project:
    return project(tmp_path)


def entry(here: Project, text: str, target: str = "runtime", rest: str = REST) -> str:
    """The config's entrypoint after conversion, as text."""
    [result] = here.results(f"entrypoint: {text}\n{rest}", target=target)
    after = (result.after or result.before or b"").decode()
    assert after.startswith("entrypoint: ")
    assert after.endswith(f"\n{rest}")
    return after[len("entrypoint: ") : -len(f"\n{rest}")]


@pytest.mark.parametrize(
    ("before", "runtime", "determined"),
    [
        ("model_def:MyTrial", None, f"{DS} --trial model_def:MyTrial"),
        ('"model_def:MyTrial"  # go', None, f'"{DS} --trial model_def:MyTrial"  # go'),
        (f"{DDP} --trial model_def:MyTrial", "model_def:MyTrial", f"{DS} --trial model_def:MyTrial"),
        (f"{DDP} --trial=model_def:MyTrial", "model_def:MyTrial", f"{DS} --trial=model_def:MyTrial"),
        (f"'{DDP} -- --trial model_def:MyTrial'", "'model_def:MyTrial'", f"'{DS} --trial model_def:MyTrial'"),
        (f">-\n  {DDP}\n  --trial model_def:MyTrial", "model_def:MyTrial", f">-\n  {DS}\n  --trial model_def:MyTrial"),
        (f"{DDP} --nnodes 1 -- {HARNESS} model_def:MyTrial", "model_def:MyTrial", f"{DS} --trial model_def:MyTrial"),
        (f"{HARNESS} model_def:MyTrial", "model_def:MyTrial", f"{DS} --trial model_def:MyTrial"),
        (f"{DDP} --nnodes 1 model_def:MyTrial", "model_def:MyTrial", f"{DS} --trial model_def:MyTrial"),
        (f"{DDP} python3 train.py --lr 1e-4", "python3 train.py --lr 1e-4", f"{DS} python3 train.py --lr 1e-4"),
        (f"|\n  {DDP} \\\n    python3 train.py", "|\n  python3 train.py", f"|\n  {DS} \\\n    python3 train.py"),
        (
            f'[{ITEMS}torch_distributed, python3, train.py, -n, "3", 4]',
            '[python3, train.py, -n, "3", 4]',
            f'[{ITEMS}deepspeed, python3, train.py, -n, "3", 4]',
        ),
        ("python3 train.py", None, f"{DS} python3 train.py"),
        ("python3 -u ./train.py", None, f"{DS} python3 -u ./train.py"),
        ("python3 -m train --lr 1", None, f"{DS} python3 -m train --lr 1"),
        ("LR=1 python3 train.py", None, f"LR=1 {DS} python3 train.py"),
        ("python3 'tools/run it.py'", None, f"{DS} python3 'tools/run it.py'"),
        ("python3 tools/run\\ it.py", None, f"{DS} python3 tools/run\\ it.py"),
        (
            f"[{ITEMS}torch_distributed, python3, train.py]",
            "[python3, train.py]",
            f"[{ITEMS}deepspeed, python3, train.py]",
        ),
        (
            '["python3", "tools/run it.py"]',
            None,
            '["python3", "-m", "determined.launch.deepspeed", "python3", "tools/run it.py"]',
        ),
        (
            f"[{ITEMS}torch_distributed, --, --trial, 'model_def:MyTrial']",
            "model_def:MyTrial",
            f"[{ITEMS}deepspeed, --trial, 'model_def:MyTrial']",
        ),
        (
            "\n  - python3\n  - -m\n  - determined.launch.torch_distributed  # DDP\n"
            "  - python3\n  # the script\n  - train.py",
            "\n  - python3\n  # the script\n  - train.py",
            "\n  - python3\n  - -m\n  - determined.launch.deepspeed  # DDP\n  - python3\n  # the script\n  - train.py",
        ),
        (
            "\n- python3\n- train.py",
            None,
            "\n- python3\n- -m\n- determined.launch.deepspeed\n- python3\n- train.py",
        ),
    ],
)  # fmt: skip
def test_the_launch_layer_goes_and_the_command_stays(
    here: Project, before: str, runtime: str | None, determined: str
) -> None:
    if runtime is None:
        assert here.results(f"entrypoint: {before}\n{REST}") == []
    else:
        assert entry(here, before) == runtime
    assert entry(here, before, "determined") == determined
    assert here.results(f"entrypoint: {determined}\n{REST}", target="determined") == []


@pytest.mark.parametrize("form", ["{}", DDP + " --trial {}", HARNESS + " {}"])
@pytest.mark.parametrize(
    ("file", "text", "spec"),
    [
        ("model-def.py", "class MyTrial: ...", "model-def:MyTrial"),
        ("model_def.py", "class Outer:\n    class MyTrial: ...", "model_def:Outer.MyTrial"),
        ("entry.py", "import model_def as trials", "entry:trials.MyTrial"),
    ],
)
def test_every_class_that_determined_found_is_found(tmp_path: Path, form: str, file: str, text: str, spec: str) -> None:
    here = project(tmp_path)
    (tmp_path / "model_def.py").write_text("class MyTrial: ...")
    (tmp_path / file).write_text(text)
    if file == "model-def.py":
        here = here.with_trial(path=tmp_path / file)
    text = f"entrypoint: {form.format(spec)}\nhyperparameters: {{global_batch_size: 8}}\n"
    assert here.convert(text) == f"entrypoint: {spec}\n{REST}"
    assert here.convert(text, target="determined") == f"entrypoint: {DS} --trial {spec}\n{REST}"


def test_a_class_of_another_module_of_that_name_is_not_taken_for_the_trial(here: Project) -> None:
    (here.root / "entry.py").write_text("import other as trials\n")
    assert here.results(f"entrypoint: entry:unknown.MyTrial\n{REST}") == []


def test_the_address_of_a_launch_layer_is_no_class() -> None:
    line = "python3 -m determined.launch.torch_distributed --master_addr host:29500 -- python3 a.py"
    (command,) = commands([word.value for word in words(line)], shell=True)
    assert (command.script, command.trial, command.overrides) == ("a.py", None, ("--master_addr", "host:29500"))


def test_a_block_list_becomes_the_class_with_its_comments_kept(here: Project) -> None:
    words_of = (
        "  - python3\n  - -m\n  - determined.launch.torch_distributed\n  # class\n  - --trial\n  - model_def:MyTrial"
    )
    assert entry(here, "# go\n" + words_of) == "model_def:MyTrial # go\n  # class"


def test_arguments_of_the_launch_layer_are_shown_when_they_go(here: Project) -> None:
    text = f"entrypoint: {DDP} --nnodes 2 --max_restarts=1 -- python3 train.py\n{REST}"
    result = here.result(text)
    assert result.after == f"entrypoint: python3 train.py\n{REST}".encode()
    assert codes(result) == [("DSM402", "review")]
    assert "--nnodes 2 --max_restarts=1" in result.findings[0].message


def test_horovod_stays_where_it_made_a_difference(here: Project) -> None:
    before = "python3 -m determined.launch.horovod --fusion-threshold-mb 1 -- --trial model_def:MyTrial"
    assert entry(here, before) == "model_def:MyTrial"
    ranks = REST + "resources: {slots_per_trial: 2}\n"
    result = here.result(f"entrypoint: {before}\n{ranks}")
    assert (result.after, codes(result)) == (None, [("DSM402", "review")])
    assert entry(here, before, "determined", ranks) == f"{DS} --trial model_def:MyTrial"


def test_a_script_runs_its_own_class_not_another_one_of_that_name(here: Project) -> None:
    (here.root / "train.py").write_text("class MyTrial(PyTorchTrial): ...\n")
    assert here.results("entrypoint: python3 train.py\n") == []
    config = ConfigFile(here.root / "const.yaml", b"entrypoint: python3 train.py\n")
    for source, expected in ((here.root / "model_def.py", 1), (here.root / "train.py", 0)):
        scripts = {here.root / "train.py": [(source, "MyTrial")]}
        assert len(plan([config], here.trials, scripts, root=here.root)) == expected


def test_a_shell_line_is_reviewed_since_ds_train_runs_one_command(here: Project) -> None:
    result = here.result(f"entrypoint: pip install x && {DDP} python3 train.py\n{REST}")
    assert result.after == f"entrypoint: pip install x && python3 train.py\n{REST}".encode()
    assert codes(result) == [("DSM402", "review"), ("DSM402", "converted")]
    lines = here.result(f"entrypoint: |\n  pip install x\n  {DDP} python3 train.py\n{REST}")
    assert lines.after == f"entrypoint: |\n  pip install x\n  python3 train.py\n{REST}".encode()
    assert codes(lines) == [("DSM402", "review"), ("DSM402", "converted")]


def test_a_directory_change_counts_for_the_path_of_the_config(here: Project) -> None:
    result = here.result("entrypoint: cd tools && python3 'run it.py'\nhyperparameters: {a: 1}\n")
    assert result.after is None
    assert ("DSM401", "review") in codes(result)


def test_an_escaped_string_is_written_anew(here: Project) -> None:
    assert entry(here, '"python3 -m determined.launch.torch_distributed\\x20python3 train.py"') == "python3 train.py"


@pytest.mark.parametrize(
    "text",
    ["bash run.sh", "python3", "python3 -m", "[]", "{a: b}", "python3 other.py", "3", "", "python3 -c 'import train'"],
)
def test_what_runs_no_known_trial_is_left_alone(here: Project, text: str) -> None:
    assert here.results(f"entrypoint: {text}\n# MyTrial\n{REST}") == []


@pytest.mark.parametrize(
    "text",
    ["bash run.sh model_def:MyTrial", "torchrun --nproc_per_node=2 train.py", "[sh, -c, python3 train.py]"],
    ids=["a trial for a script", "a script for a launcher", "a command in a word"],
)
def test_a_command_that_cannot_be_followed_to_its_trial_is_reported(here: Project, text: str) -> None:
    result = here.result(f"entrypoint: {text}\n{REST}")
    assert (result.after, codes(result)) == (None, [("DSM416", "review")])


def test_an_entrypoint_shared_through_an_anchor_stays(here: Project) -> None:
    result = here.result(f"entrypoint: &e {DDP} python3 train.py\nother: *e\n{REST}")
    assert (result.after, codes(result)) == (None, [("DSM413", "review")])


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("python3 a.py", "a.py"),
        ("/usr/bin/python3.11 -W ignore -u a.py", "a.py"),
        ("A=1 exec python a.py", "a.py"),
        ("./a.py --x", "./a.py"),
        ("pip install x; python3 a.py", "a.py"),
        ("python3 -m determined.launch.deepspeed a.py", "a.py"),
        ("echo a.py", None),
    ],
)
def test_the_script_of_a_command_line(line: str, script: str | None) -> None:
    found = commands([word.value for word in words(line)], shell=True)
    assert [command.script for command in found] == ([] if script is None else [script])
