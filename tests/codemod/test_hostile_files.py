"""Files that nobody writes on purpose: names that are no text, odd encodings, comments in odd places."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import examples
import libcst as cst
import pytest
from ds_migrate.findings import Severity, TrialStatus
from ds_migrate.options import Options
from ds_migrate.report import plain_text
from ds_migrate.report.escaping import visible
from ds_migrate.report.formats.github import to_github
from ds_migrate.report.formats.json import to_json
from ds_migrate.report.formats.sarif import to_sarif
from ds_migrate.report.patch import patch
from ds_migrate.report.summary import Mode
from ds_migrate.syntax.one_line import expression_text
from guarantees import assert_guaranteed, assert_stable

WRAP = "        self.model = self.context.wrap_model(Net())\n"
CONFIG = "entrypoint: model_def:MyTrial\nhyperparameters:\n  global_batch_size: 4\n"


def with_model(lines: str) -> str:
    """A trial that makes its model with these lines."""
    source = examples.module()
    assert WRAP in source
    return source.replace(WRAP, textwrap.indent(lines, 8 * " "))


@pytest.mark.parametrize(
    "lines",
    [
        "self.model = Net()\nself.model = self.context.wrap_model(  # kept\n    self.model\n)\nself.model.to(device)\n",
        "self.model = Net()\nself.context.wrap_model(  # kept\n    self.model  # kept\n)\nself.model.to(device)\n",
        "net = self.context.wrap_model(\n    # kept\n    Net()\n    # kept\n)\nself.model = net.to(device)\n",
        "self.model = (\n    # kept\n    self.context  # kept\n    .wrap_model(Net())  # kept\n)\n",
        "self.model = self.context.wrap_model(\n    Net(),  # kept\n    # kept\n).to(device)  # kept\n",
    ],
)
def test_a_comment_in_a_call_that_goes_stays(lines: str, tmp_path: Path) -> None:
    result = examples.convert(tmp_path, with_model(lines))
    assert examples.problems(result) == []
    assert result.after is not None
    assert result.after.count(b"# kept") == lines.count("# kept")
    assert_guaranteed(result.before or b"", result.after)


@pytest.mark.parametrize(
    "lines",
    [
        "self.model = self.context.wrap_model(make.\n    a.Net())\n",
        "self.model = self.context.wrap_model(\n    make\n    .a\n    .Net()  # kept\n)\n",
        "self.model = self.context.wrap_model(make \\\n    .a.Net())\n",
        "self.model = self.context.wrap_model((make.\n    a).Net())\n",
        "self.model = self.context.wrap_model(Net() if\n    True else Other())\n",
    ],
)
def test_an_argument_whose_lines_break_outside_of_its_brackets_keeps_those_of_its_call(
    lines: str, tmp_path: Path
) -> None:
    result = examples.convert(tmp_path, with_model(lines))
    assert examples.problems(result) == []
    assert_guaranteed(result.before or b"", result.after or b"")


EXPRESSIONS = {
    "self.opt": "self\n  .opt",
    "f(a, b=1)": "f(  # note\n  a,\n  b=1,\n)",
    "x['a  b'][0]": "x[\n  'a  b'  # note\n][\n0]",
    "a + b or {'x': (1, 2)}": "a + \\\n b or {\n  'x': (\n1,\n\n # note\n 2)}",
    "[i for i in x if i]": "[i\n for i in x\n if i\n]",
    "('a  b' 'c')": "('a  b'\n  'c')",
    "f(a)(b)": "f(a)(\n b\n)",
}


@pytest.mark.parametrize("one_line", EXPRESSIONS)
def test_an_expression_is_quoted_on_one_line(one_line: str) -> None:
    node = cst.parse_expression(f"({EXPRESSIONS[one_line]})").with_changes(lpar=[], rpar=[])
    if one_line.startswith("("):
        node = cst.parse_expression(EXPRESSIONS[one_line])
    assert expression_text(node) == one_line


def test_strings_of_an_expression_that_moves_stay(tmp_path: Path) -> None:
    source = examples.module().replace("lr=0.1", "lr=LR['a  b']")
    result = examples.convert(tmp_path, source, options=Options(optimizer_in_config=True))
    assert b"a  b" in (result.after or b"")


def test_a_comment_in_the_header_of_a_statement_stays(tmp_path: Path) -> None:
    source = examples.module().replace(
        "def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int)",
        "def train_batch(\n        self,  # kept 1\n        batch: TorchData,  # kept 2\n        # kept 3\n"
        "        epoch_idx: int,\n        batch_idx: int,  # kept 4\n    )",
    )
    result = examples.convert(tmp_path, source)
    assert examples.problems(result) == []
    assert_guaranteed(source.encode(), result.after or b"")


@pytest.mark.parametrize("name", [b"model_\xff.py", b"\xfe\xff.py", b"a\nb.py", b"\x1b[31m.py", b"x" * 200 + b".py"])
def test_a_name_of_any_bytes_is_converted_and_the_others_too(name: bytes, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(name))
    (tmp_path / odd).write_text(examples.module())
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/model_def.py").write_text(examples.module())
    (tmp_path / "plain/const.yaml").write_text(CONFIG)
    report = examples.run(tmp_path)
    assert {trial.status for _, trial in report.trials()} == {TrialStatus.CONVERTED}
    assert len(list(report.trials())) == 2


def test_a_folder_of_any_bytes_is_converted_with_its_config(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"n\xff")
    folder.mkdir()
    (folder / "model_def.py").write_text(examples.module())
    (folder / "const.yaml").write_text(CONFIG)
    report = examples.run(tmp_path)
    assert sorted(file.path.name for file in report.files if file.to_write) == [
        "const.yaml",
        "ds_config.json",
        "model_def.py",
    ]


@pytest.mark.parametrize("encoding", ["idna", "punycode", "rot13", "hex", "undefined", "unicode_escape", "utf-16"])
def test_an_encoding_that_cannot_be_written_is_a_finding_about_the_file(encoding: str, tmp_path: Path) -> None:
    result = examples.convert(tmp_path, f"# coding: {encoding}\n{examples.module()}")
    assert result.after is None
    assert {finding.code for finding in result.findings} <= {"DSM001", "DSM002"}
    assert result.findings


@pytest.mark.parametrize("encoding", ["latin-1", "utf-7", "big5", "iso2022_jp", "raw_unicode_escape", "utf_8_sig"])
def test_an_encoding_that_can_be_written_is_kept(encoding: str, tmp_path: Path) -> None:
    source = f"# coding: {encoding}\n{examples.module()}"
    result = examples.convert(tmp_path, source)
    assert examples.problems(result) == []
    assert_guaranteed(source.encode(), result.after or b"")


GAN_INIT = """def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.generator = self.context.wrap_model(Generator())
    self.discriminator = self.context.wrap_model(Discriminator())
    self.opt_g = self.context.wrap_optimizer(torch.optim.Adam(self.generator.parameters()))
    self.opt_d = self.context.wrap_optimizer(torch.optim.Adam(self.discriminator.parameters()))
"""


@pytest.mark.parametrize("around", ["class Outer:", "class Outer:\n    class Inner:", "class Outer(object):  # why"])
def test_a_nested_trial_sees_the_helpers_that_are_written_for_it(around: str, tmp_path: Path) -> None:
    """A method does not see the names of a class around its own."""
    head, _, trial = examples.module(GAN_INIT).partition("class MyTrial")
    depth = 4 * len(around.splitlines())
    source = f"{head}{around}\n{textwrap.indent('class MyTrial' + trial, depth * ' ')}"
    result = examples.convert(tmp_path, source, options=Options(target="determined"))
    assert examples.problems(result) == []
    tree = ast.parse(result.after or b"")
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assert names == ["EngineModule", "Outer"]


@pytest.mark.parametrize("arguments", [[], ["--format", "json"], ["--check"], ["--color", "always"]])
def test_a_full_disk_under_stdout_is_one_clear_line(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(examples.module())
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "ds_migrate", *arguments, str(tmp_path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "the output cannot be written: no space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "fault" not in done.stderr


def test_a_full_disk_under_stdout_does_not_undo_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(examples.module())
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "ds_migrate", "--write", str(tmp_path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert (tmp_path / "ds_config.json").exists()
    assert_stable(tmp_path)


@pytest.mark.parametrize("line", ["return", "x = await y", "yield from ()"])
def test_a_source_that_parses_and_does_not_compile_is_reported_as_such(line: str, tmp_path: Path) -> None:
    result = examples.convert(tmp_path, examples.module() + f"\nclass Broken:\n    {line}\n")
    assert result.after is None
    (finding,) = [finding for finding in result.findings if finding.severity.value == "error"]
    assert finding.code == "DSM001"
    assert finding.message.startswith("does not compile: ")
    assert (result.before or b"").splitlines()[finding.line - 1].strip() == line.encode()


def test_a_source_that_python_parses_and_libcst_does_not_is_reported_without_a_place(tmp_path: Path) -> None:
    result = examples.convert(tmp_path, examples.module() + "\n    \\\n    def last(self):\n        pass\n")
    assert result.after is None
    (finding,) = result.findings
    assert (finding.code, finding.line, finding.column) == ("DSM001", 0, 0)
    assert "cannot parse this file, though Python can" in finding.message


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b"{", b"[]"])
def test_a_deepspeed_config_of_any_quality_is_a_finding(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_bytes(data)
    (tmp_path / "model_def.py").write_text(examples.module())
    report = examples.run(tmp_path)
    assert [finding.code for _, finding in report.findings(Severity.ERROR)] == ["DSM505"]


@pytest.mark.parametrize(
    "lines",
    [
        "environment: {environment_variables: [A=KEY-1], registry_auth: {password: KEY-1}, pod_spec: {token: KEY-1}}",
        "environment: KEY-1",
        "data: KEY-1",
        "wandb_api_key: KEY-1",
        "checkpoint_storage: {type: s3, access_key: KEY-1, secret_key: [KEY-1]}",
        "records_per_epoch: 5\nbind_mounts: [{host_path: KEY-1, container_path: [KEY-1]}]",
        "resources: {slots_per_trial: KEY-1}\nmin_validation_period: KEY-1",
        "data: {password: KEY-1",
        "data: {password: !!python/object KEY-1}",
    ],
)
def test_no_finding_shows_a_secret_of_a_config(lines: str, tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(examples.module())
    (tmp_path / "c.yaml").write_text(CONFIG.replace("  global", "  api_key: KEY-1\n  global") + lines + "\n")
    report = examples.run(tmp_path)
    assert list(report.trials())
    shown = [*to_github(report, Mode.CHECK), *plain_text.finding_lines(report), *plain_text.waiting_lines(report)]
    assert "KEY-1" not in "\n".join([*shown, to_json(report), to_sarif(report, Mode.CHECK)])


HOSTILE_NAME = b"a\x1b[31m\x07\xc2\x9b\xe2\x80\xae::warning::b\nc\x9b.py"


def test_nothing_in_a_name_reaches_a_terminal_raw(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(HOSTILE_NAME)).write_text(examples.module())
    report = examples.run(tmp_path)
    shown = [*to_github(report, Mode.CHECK), *plain_text.finding_lines(report), *plain_text.waiting_lines(report)]
    assert len(shown) > 5
    assert all(line == visible(line) for line in shown)
    lines = patch(report, tmp_path.resolve()).splitlines()
    header = b"\n".join(line for line in lines if line.startswith((b"--- ", b"+++ ")))
    assert b"\x1b" not in header and b"\x9b" not in header and b"\xe2\x80\xae" not in header


def test_a_patch_of_a_hostile_name_applies(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(HOSTILE_NAME)
    path.write_text(examples.module())
    report = examples.run(tmp_path)
    (result,) = (file for file in report.files if file.kind.value == "python")
    subprocess.run(["git", "apply", "-"], input=patch(report, tmp_path.resolve()), cwd=tmp_path, check=True, timeout=60)
    assert path.read_bytes() == result.after


@pytest.mark.parametrize(
    "head", ["if TYPE_CHECKING:", "if sys.version_info < (3, 9):", "if typing.TYPE_CHECKING:", "def f():", "class A:"]
)
@pytest.mark.parametrize(
    "line", ["from typing import Tuple", "from typing import Iterator", "from collections.abc import Iterator",
             "from pathlib import Path", "import deepspeed"]
)  # fmt: skip
def test_a_name_that_is_imported_for_type_checkers_or_one_function_is_imported_again(
    head: str, line: str, tmp_path: Path
) -> None:
    """Otherwise the module would end in a NameError."""
    source = examples.module().replace("from typing import Any, Dict, Tuple, cast\n", "import typing\n")
    source = source.replace("Dict[str, Any]", "dict").replace(
        "import torch\n", f"TYPE_CHECKING = False\n{head}\n    {line}\nimport torch\n", 1
    )
    result = examples.convert(tmp_path, source)
    assert examples.problems(result) == []
    tree = ast.parse(result.after or b"")
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    outside = {alias.asname or alias.name for node in imports for alias in node.names}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {name for name in used if name.startswith(("Iterator", "Path", "deepspeed"))} <= outside
    assert f"{head}\n    {line}\n".encode() in (result.after or b"")
