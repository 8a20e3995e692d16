"""The cost of following values through programs in which many unknown objects meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import libcst as cst
import pytest
from ds_migrate.findings import TrialStatus
from ds_migrate.plain.dataflow.by_rank.rank_statements import RankStatements
from ds_migrate.plain.dataflow.values import Kind, Value, Variable
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.plain.ranks.data.losses.sample_sums import SampleSums
from ds_migrate.syntax.source import SourceFile
from plain_loops import HEADER, LOOP, convert, run


def test_a_variable_does_not_take_over_hundreds_of_parts_at_once() -> None:
    variables = Variables()
    parts = frozenset(Value(Kind.PART, key, "meta[]") for key in range(400))
    whole = Value(Kind.MODULE, 1)

    variables.add((0, "few"), parts_of(parts, 50))
    variables.add((0, "many"), parts | {whole})

    assert len(variables.held((0, "few"))) == 50
    assert variables.held((0, "many")) == {whole}


def test_an_answer_is_found_again_only_where_a_variable_that_it_reads_has_changed() -> None:
    variables = Variables()
    read, other = (0, "read"), (0, "other")
    asked: list[int] = []

    def answer() -> int:
        asked.append(len(variables.held(read)))
        return asked[-1]

    assert variables.derived(("size", 0), answer) == 0
    variables.add(other, frozenset({Value(Kind.OBJECT, 1)}))
    assert variables.derived(("size", 0), answer) == 0
    variables.add(read, frozenset({Value(Kind.OBJECT, 1)}))
    assert variables.derived(("size", 0), answer) == 1
    assert asked == [0, 1]


def test_a_statement_is_looked_at_once_for_all_loops_where_nothing_it_reads_differs_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[object] = []
    assigned = RankStatements._assigned

    def counted(statements: RankStatements, node: cst.Assign, file: SourceFile) -> Iterator[Variable]:
        looked_at.append(node)
        return assigned(statements, node, file)

    monkeypatch.setattr(RankStatements, "_assigned", counted)
    lines = "".join(f"number{n + 1} = number{n} + 1\n" for n in range(50))
    shared = f"import torch\n\nnumber0 = 0\n{lines}\n\ndef passes_backward(loss):\n    loss.backward()\n"
    script = (
        HEADER + "from shared import passes_backward\n\n" + LOOP.replace("loss.backward()", "passes_backward(loss)")
    )
    report = run(tmp_path, shared=shared, one=script, two=script, three=script)
    assert [trial.status for file in report.files for trial in file.trials] == [TrialStatus.CONVERTED] * 3
    assert len(set(looked_at)) > 50
    assert len(looked_at) < 2 * len(set(looked_at))


def test_a_name_of_a_sum_over_samples_that_many_lines_set_is_followed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[object] = []
    find_samples = SampleSums._find_samples

    def counted(sums: SampleSums, node: cst.BaseExpression, file: SourceFile, depth: int, is_changed: bool) -> bool:
        looked_at.append(node)
        return find_samples(sums, node, file, depth, is_changed)

    monkeypatch.setattr(SampleSums, "_find_samples", counted)
    lines = "".join(f"    made = made.view({n}, -1) + torch.cat([made, made])\n" for n in range(12))
    loss = f"    made = model(x)\n{lines}    loss = made.view(-1).sum()\n"
    run(tmp_path, train=HEADER + LOOP.replace("    loss = F.mse_loss(model(x), y)\n", loss))
    assert 0 < len(looked_at) < 2000


def parts_of(values: frozenset[Value], count: int) -> frozenset[Value]:
    return frozenset(sorted(values, key=lambda value: value.key)[:count])


def test_each_call_that_may_have_made_an_object_is_looked_at_once(tmp_path: Path) -> None:
    lines = "".join(f"image = image.step_{number}()\n" for number in range(60)) + "image.save('a.png')\n"
    text = HEADER + LOOP + "from PIL import Image\nimage = Image.open('b.png')\n" + lines
    assert "if is_main_rank():\n    image.save('a.png')" in convert(tmp_path, text)
