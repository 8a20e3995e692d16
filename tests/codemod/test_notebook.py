"""Trials in the cells of notebooks: converted in place, everything else byte for byte as it was."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import examples
import pytest
from ds_migrate.files.notebook import Notebook, NotebookError
from ds_migrate.findings import FileKind, FileStatus, Severity, TrialStatus
from guarantees import assert_stable
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from idiom_case import assert_lines

TRIAL = examples.module()
IMPORTS, CLASS = TRIAL.split("\n\nclass MyTrial", 1)
CLASS = "class MyTrial" + CLASS
same_every_time = settings(
    max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def cell(source: str | list[str], kind: str = "code", **more: Any) -> dict[str, Any]:
    own = {"execution_count": 3, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, **own, **more}


def lines(source: str) -> list[str]:
    return source.splitlines(keepends=True)


def notebook(*cells: dict[str, Any], **layout: Any) -> bytes:
    kernel = {"kernelspec": {"name": "python3"}}
    document = {"cells": list(cells), "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(document, **({"indent": 1} | layout)) + "\n").encode()


def sources(data: bytes) -> list[str]:
    return ["".join(c["source"]) for c in json.loads(data)["cells"]]


def stripped(data: bytes) -> Any:
    """The notebook without the sources of its code cells."""
    document = json.loads(data)
    for c in document["cells"]:
        if c["cell_type"] == "code":
            c["source"] = None
    return document


LAYOUTS = [
    pytest.param({}, id="as Jupyter writes it"),
    pytest.param({"indent": None}, id="on one line"),
    pytest.param({"indent": None, "separators": (",", ":")}, id="without spaces"),
    pytest.param({"indent": 4, "ensure_ascii": False}, id="indented by four"),
    pytest.param({"indent": "\t", "sort_keys": True}, id="sorted, with tabs"),
]


@pytest.mark.parametrize("split", [str, lines])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_trial_in_cells_is_converted_and_nothing_else_changes(layout: Any, split: Any, tmp_path: Path) -> None:
    before = notebook(
        cell(lines("# Title\n\nwith wrap_model, \u00e9\n"), "markdown"),
        cell(split("print('a cell of no concern')\n")),
        cell(split(IMPORTS.rstrip("\n"))),
        cell(split(CLASS.rstrip("\n"))),
        cell("raw PyTorchTrial", "raw"),
        **layout,
    )
    result = examples.convert(tmp_path, before, "trial.ipynb")
    assert result.kind is FileKind.NOTEBOOK
    assert [t.status for t in result.trials] == [TrialStatus.CONVERTED]
    assert result.after is not None
    assert stripped(result.after) == stripped(before)
    old, new = sources(before), sources(result.after)
    assert [new[i] for i in (0, 1, 4)] == [old[i] for i in (0, 1, 4)]
    assert_lines(new[2], ("import deepspeed", "from trial_runtime.pytorch import DataLoader, LRScheduler, TorchData"))
    assert_lines(new[3], ("class MyTrial(DeepSpeedTrial):", "self.model.backward(loss)", "self.model.step()"))
    assert "__file__" not in new[3]
    ast.parse("\n".join(new[1:4]))
    assert json.dumps(json.loads(result.after), **({"indent": 1} | layout)) + "\n" == result.after.decode()
    (tmp_path / "trial.ipynb").write_bytes(result.after)
    assert_stable(tmp_path, "trial.ipynb")


def test_lines_that_only_ipython_understands_stay(tmp_path: Path) -> None:
    magics = ["%matplotlib inline", "!pip install determined  # PyTorchTrial", "%%bash\necho hello\nif then",
              "files = !ls", "?print", "print?", "%%time\nx = 1",
              "for _ in range(2):\n    %timeit -n1 print(1)  # twice",
              "!pip install \\\n    torch \\\n  determined\nx = 1", "if x:\n    !ls \\\n  -l"]  # fmt: skip
    before = notebook(*(cell(lines(m)) for m in magics), cell(lines("%load_ext x\n" + IMPORTS)), cell(lines(CLASS)))
    result = examples.convert(tmp_path, before, "trial.ipynb")
    assert examples.problems(result) == []
    assert result.after is not None
    new = sources(result.after)
    assert new[: len(magics)] == magics
    assert new[len(magics)].startswith("%load_ext x\n")


def test_cells_may_await(tmp_path: Path) -> None:
    waits = "import asyncio\nawait asyncio.sleep(0)"
    result = examples.convert(tmp_path, notebook(cell(lines(TRIAL)), cell(lines(waits))), "trial.ipynb")
    assert [t.status for t in result.trials] == [TrialStatus.CONVERTED]
    assert result.after is not None
    assert sources(result.after)[1] == waits


@pytest.mark.parametrize("others", [[], [cell(lines(IMPORTS)), cell(lines(CLASS))]])
def test_a_trial_that_a_cell_writes_to_a_file_is_left_and_reported(others: list[Any], tmp_path: Path) -> None:
    writes = "%%writefile model_def.py\n" + TRIAL
    result = examples.convert(tmp_path, notebook(cell("# Title", "markdown"), *others, cell(writes)), "trial.ipynb")
    [found] = [f for f in result.findings if f.code == "DSM017"]
    assert (found.severity, found.cell, found.line) == (Severity.REVIEW, 2 + len(others), 1)
    assert "%%writefile" in found.message
    assert result.after is None or sources(result.after)[-1] == writes


def test_findings_name_the_cell_and_its_line(tmp_path: Path) -> None:
    broken = CLASS.replace("step_optimizer(self.optimizer)", "step_optimizer(self.optimizer, **{})")
    trial = cell(lines("\n" + broken))
    before = notebook(cell("# Title", "markdown"), cell(lines(IMPORTS)), cell("text", "raw"), trial)
    result = examples.convert(tmp_path, before, "trial.ipynb")
    assert result.status is FileStatus.BLOCKED
    assert result.after is None
    found = next(f for f in result.findings if f.severity is Severity.BLOCKED)
    assert found.cell == 4
    assert "step_optimizer" in sources(before)[found.cell - 1].splitlines()[found.line - 1]


def test_a_notebook_that_uses_a_trial_of_a_module_is_converted_with_it(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(TRIAL)
    launch = "from determined import pytorch\nfrom model_def import MyTrial\nwith pytorch.init() as context:\n    pass"
    result = examples.convert(tmp_path, notebook(cell("hello", "markdown"), cell(launch)), "train.ipynb")
    assert examples.problems(result) == []
    assert result.after is not None
    assert_lines(sources(result.after)[1], ("from model_def import MyTrial", "with det_ds.init() as context:"))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"cells": 3}', b'{"cells": [{}]}', b"\xff", b'{"cells": [1'])
def test_what_is_no_notebook_is_reported(data: bytes) -> None:
    with pytest.raises(NotebookError, match="is not a notebook"):
        Notebook.parse(data)


code_lines = st.one_of(
    st.sampled_from(["x = 1", "", "    y", "%magic", "!ls -l", "print?", "z = %who", "# %% cell", "# ds-migrate",
                     "%%bash", "    !ls", "  %x  # y", "pass  # z",
                     "s = '\\u00e9\u00e9'", "!ls \\", 'a = "quoted\\\\"', "[{}],:", "\u2028", "\x0c"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=12),
)  # fmt: skip
texts = st.lists(code_lines, max_size=5).map("\n".join)
cells = st.builds(
    lambda text, as_list, kind, extra: cell(lines(text) if as_list else text, kind, **extra),
    texts,
    st.booleans(),
    st.sampled_from(["code", "code", "markdown", "raw"]),
    st.sampled_from([{}, {"id": "source"}, {"attachments": {"source": ["no", {"cells": [{"source": "x"}]}]}}]),
)
layouts = st.fixed_dictionaries(
    {"indent": st.sampled_from([None, 0, 1, 4, "\t"]), "ensure_ascii": st.booleans(), "sort_keys": st.booleans()}
)


@same_every_time
@example(found=[cell([]), cell("")], layout={})
@given(found=st.lists(cells, max_size=4), layout=layouts)
def test_a_module_that_nothing_changed_gives_the_notebook_back(found: list[dict[str, Any]], layout: Any) -> None:
    data = notebook(*found, **layout)
    parsed = Notebook.parse(data)
    assert parsed.with_module(parsed.module()) == data


@same_every_time
@given(found=st.lists(cells, min_size=1, max_size=4), layout=layouts, number=st.integers(0, 3))
def test_a_change_stays_in_its_cell(found: list[dict[str, Any]], layout: Any, number: int) -> None:
    changed = cell(lines("before = 1\nvalue = 2"))
    found.insert(number % (len(found) + 1), changed)
    data = notebook(*found, **layout)
    parsed = Notebook.parse(data)
    after = parsed.with_module(parsed.module().replace(b"before = 1\nvalue = 2\n", b"one = 1\ntwo = 2\nthree = 3\n"))
    expected = json.loads(data)
    changed_at = next(i for i, c in enumerate(found) if c is changed)
    expected["cells"][changed_at]["source"] = ["one = 1\n", "two = 2\n", "three = 3"]
    assert json.loads(after) == expected
    assert json.dumps(json.loads(after), **({"indent": 1} | layout)) + "\n" == after.decode()


@same_every_time
@given(found=st.lists(cells, min_size=1, max_size=4))
def test_every_line_of_the_module_is_found_in_its_cell(found: list[dict[str, Any]]) -> None:
    parsed = Notebook.parse(notebook(*found))
    at = 0
    for own in parsed.cells:
        for index in range(own.source.count("\n") + 1):
            assert parsed.locate(at + 2 + index) == (own.index + 1, index + 1)
        at += own.source.count("\n") + 2
