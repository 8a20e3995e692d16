"""Properties over generated configs: every other byte stays, and the meaning is the one intended."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ds_migrate.findings import FileStatus
from experiment_project import Project, project
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return project(tmp_path_factory.mktemp("project"))


@dataclass(frozen=True)
class Part:
    """Some lines of a config, and what they have to become."""

    before: tuple[str, ...]
    after: tuple[str, ...]


def same(*lines: str) -> Part:
    return Part(lines, lines)


COMMENTS = st.sampled_from(["", "  # note", " #\ttab", "   # a: b, {c} [d] 'e'", " # entrypoint: other:MyTrial"])
NOISE = st.sampled_from([
    same("name: 'a # b'  # c"),
    same("description: |", "  entrypoint: a:MyTrial", "  # optimizations:", "", "  aggregation_frequency: 9", "x: y"),
    same("labels: [x, \"y\", 'z # w', {a: b}]"),
    same("data:", "    url: http://x/y#z", "    list:", "    - 1e-4", "    - 0x1F"),
    same("anchors: &a {p: 1}", "alias: *a", "merged: {<<: *a, q: 2}"),
    same("resources: {slots_per_trial: 1}"),
    same("# a comment between", "", "   # indented\twith a tab"),
    same("max_restarts:    5", "bind_mounts:", "  - host_path: /a", "    container_path: /b"),
    same('text: "folded', '  over lines: {x}', '  end"'),
    same("environment:", "    environment_variables:", "        - A=b  # c", "    image: >-", "        x/y:z"),
    same("records_per_epoch: 60000"),
])  # fmt: skip


@st.composite
def entries(draw: st.DrawFn) -> Part:
    comment = draw(COMMENTS)
    layer = "python3 -m determined.launch.torch_distributed"
    quoted = f'entrypoint: "model_def:MyTrial"{comment}'
    done = f"entrypoint: model_def:MyTrial{comment}"
    items = "python3, -m, determined.launch.torch_distributed, --trial, 'model_def:MyTrial'"
    return draw(st.sampled_from([
        same(done),
        same(f"entrypoint: 'model_def:MyTrial'{comment}"),
        same(f'"entrypoint":   "model_def:MyTrial"{comment}'),
        Part((f"entrypoint: {layer} --trial model_def:MyTrial{comment}",), (done,)),
        Part((f'entrypoint: "{layer} -- --trial model_def:MyTrial"{comment}',), (quoted,)),
        Part((f"entrypoint: [{items}]{comment}",), (done,)),
    ]))  # fmt: skip


@st.composite
def hyperparameters(draw: st.DrawFn, k: int, kept_comment: str) -> Part:
    names = [
        "global_batch_size: 64",
        "lr: 1e-4",
        '"quoted": "x: y"',
        "space: {type: log, minval: -4, maxval: -1}",
        "'single': '# no'",
    ]
    pairs = draw(st.permutations(names))[: draw(st.integers(1, 5))]
    if draw(st.booleans()):
        added = ", deepspeed_config: ds_config.json"
        if k > 1:
            added += f", overwrite_deepspeed_args: {{gradient_accumulation_steps: {k}}}"
        comment = draw(COMMENTS)
        flow = ", ".join(["a: 1", *pairs])  # keys all in double quotes would get a quoted neighbour
        close = draw(st.sampled_from(["}", " }", ", }"]))
        return Part(
            (f"hyperparameters: {{{flow}{close}{comment}",), (f"hyperparameters: {{{flow}{added}{close}{comment}",)
        )
    indent = draw(st.sampled_from(["  ", "    ", " "]))
    lines = [f"hyperparameters:{draw(COMMENTS)}"]
    for pair in pairs:
        if draw(st.booleans()):
            lines.append(f"{indent}# above")
        lines.append(f"{indent}{pair}{draw(COMMENTS)}")
    if draw(st.booleans()):
        lines += [f"{indent}nested:", f"{indent}  deep: [1,", f"{indent}    2]{draw(COMMENTS)}"]
    new = [f"{indent}deepspeed_config: ds_config.json"]
    if k > 1:
        new += [f"{indent}overwrite_deepspeed_args:", f"{indent}{indent}gradient_accumulation_steps: {k}{kept_comment}"]
    tail = draw(st.sampled_from([[], [f"{indent}# below"], ["", "# far below"]]))
    return Part((*lines, *tail), (*lines, *new, *tail))


@st.composite
def lengths(draw: st.DrawFn, k: int) -> Part:
    comment = draw(COMMENTS)
    batches = draw(st.integers(0, 3000))
    steps = batches if k == 1 or batches == 0 else max(batches // k, 1)
    shape = draw(st.sampled_from([
        "searcher: {name: single, max_length: {batches: %s}, metric: loss}",
        "searcher:\n  name: single\n  max_length:\n    batches: %s",
        "min_validation_period:\n   batches: %s",
        "min_checkpoint_period: { 'batches':   %s}",
        "scheduling_unit: %s",
        'profiling: {"enabled": true, end_after_batch: %s}',
        "searcher: {max_length: {epochs: 3}} # %s",
    ]))  # fmt: skip
    if "end_after" in shape:
        steps = -(-batches // k)
    if "epochs" in shape:
        steps = batches
    return Part(tuple((shape % batches + comment).split("\n")), tuple((shape % steps + comment).split("\n")))


@st.composite
def optimizations(draw: st.DrawFn, k: int, comment: str) -> Part:
    gone = ["mixed_precision: O0", "average_training_metrics: true", "gradient_compression: false"]
    kept = ["unknown: 5", "'other': \"x, y\""]
    pairs = draw(st.lists(st.sampled_from([*gone, *kept]), unique=True))
    pairs.insert(draw(st.integers(0, len(pairs))), f"aggregation_frequency: {k}")
    left = [pair for pair in pairs if pair in kept]
    if not comment and draw(st.booleans()):
        after = (f"optimizations: {{{', '.join(left)}}}",) if left else ()
        return Part((f"optimizations: {{{', '.join(pairs)}}}",), after)
    lines = ["optimizations:"]
    rest = ["optimizations:"] if left else []
    for pair in pairs:
        if draw(st.booleans()):
            lines.append("  # above")
            rest.append("  # above")
        line = "  " + pair + (comment if pair.startswith("aggregation") else "")
        lines.append(line)
        if pair in left:
            rest.append(line)
    return Part(tuple(lines), tuple(rest))


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """The lines of a config, and what they have to become."""
    k = draw(st.sampled_from([1, 2, 4, 7]))
    comment = draw(st.sampled_from(["", "  # fits"]))
    hparams = draw(hyperparameters(k, comment))
    parts = [draw(entries()), hparams, draw(lengths(k)), draw(optimizations(k, comment))]
    parts += draw(st.lists(NOISE, unique=True))
    parts = draw(st.permutations(parts))
    return [line for part in parts for line in part.before], [line for part in parts for line in part.after]


@st.composite
def configs(draw: st.DrawFn, most: int = 1) -> tuple[bytes, bytes]:
    """A file of up to so many configs, and what it has to become."""
    found = draw(st.lists(documents(), min_size=1, max_size=most))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    head = draw(st.sampled_from(["", "---\n", "# head\n\n", "%YAML 1.2\n---\n"]))
    bom = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    end = "\n" if draw(st.booleans()) else ""
    between = draw(st.sampled_from(["\n---\n", "\n...\n---\n", "\n--- # the next\n", "\n\n---\n# above\n"]))
    sides = (between.join("\n".join(lines[side]) for lines in found) for side in (0, 1))
    before, after = (bom + (head + side + end).replace("\n", newline).encode() for side in sides)
    return before, after


@settings(max_examples=80, deadline=None)
@given(texts=configs())
def test_every_byte_is_the_one_intended(here: Project, texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    result = here.result(before)
    assert result.status is FileStatus.CHANGED, result.findings
    assert result.after == after
    assert not any(again.to_write for again in here.results(after))


@settings(max_examples=40, deadline=None)
@given(texts=configs(most=3))
def test_every_byte_of_every_document_is_the_one_intended(here: Project, texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    assert here.result(before).after == after
    assert not any(again.to_write for again in here.results(after))


@settings(max_examples=50, deadline=None)
@given(texts=configs(), key=st.sampled_from(["entrypoint", "hyperparameters", "'entrypoint'"]))
def test_a_key_that_stands_twice_is_an_error_and_every_byte_stays(
    here: Project, texts: tuple[bytes, bytes], key: str
) -> None:
    text = texts[0].rstrip(b"\r\n") + b"\n" + key.encode() + b": {a: 1}\n"
    result = here.result(text)
    assert (result.status, result.after) == (FileStatus.ERROR, None)
    assert "stands twice" in result.findings[0].message


def load(data: bytes) -> Any:
    return YAML(typ="safe", pure=True).load(data)


def converted(config: dict[str, Any]) -> dict[str, Any]:
    """What the data of a config has to become."""
    k = config.get("optimizations", {}).get("aggregation_frequency", 1)
    result = {key: value for key, value in config.items() if key != "optimizations"}
    result["hyperparameters"] = {**config["hyperparameters"], "deepspeed_config": "ds_config.json"}
    if k > 1:
        result["hyperparameters"]["overwrite_deepspeed_args"] = {"gradient_accumulation_steps": k}
        for key in ("scheduling_unit", "min_validation_period"):
            if key in result:
                value = result[key]
                if key == "scheduling_unit":
                    result[key] = max(value // k, 1)
                elif isinstance(value, dict):  # a bare number has no unit and stays, with a review
                    result[key] = {"batches": max(value["batches"] // k, 1)}
    return result


SHARED = st.permutations([
    ("base: &base {global_batch_size: 8, lr: 1e-3}", "base: &base\n  global_batch_size: 8\n  lr: 1e-3"),
    (
        "hyperparameters: *base",
        "hyperparameters: {<<: *base, x: 1}",
        "hyperparameters:\n  <<: *base\n  x: 1",
        "hyperparameters: &h {x: 1}",
        "hyperparameters:\n  x: &x 1\n  y: *x",
    ),
    ("n: &n 100", "n: &n {batches: 100}"),
    ("scheduling_unit: 60", "scheduling_unit: *n", "scheduling_unit: &u 60\nother: *u", "scheduling_unit: &u 60"),
    (
        "min_validation_period: {batches: 30}",
        "min_validation_period: *n",
        "min_validation_period: {batches: *n}",
        "min_validation_period: &p {batches: 8}\nmin_checkpoint: *p",
    ),
    (
        "optimizations: {aggregation_frequency: 2}",
        "opt: &opt {aggregation_frequency: 2}\noptimizations: *opt",
        "opt: &opt {aggregation_frequency: 1}\noptimizations: {<<: *opt}",
        "optimizations: &o {aggregation_frequency: 2}",
        "optimizations: {aggregation_frequency: &k 2}\nkk: *k",
    ),
    ("entrypoint: model_def:MyTrial", "entrypoint: &e model_def:MyTrial\nname: *e"),
]).flatmap(lambda parts: st.tuples(*map(st.sampled_from, parts)))  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(parts=SHARED)
def test_shared_parts_are_edited_rightly_or_not_at_all(here: Project, parts: tuple[str, ...]) -> None:
    before = ("\n".join(parts) + "\n").encode()
    results = here.results(before)
    after = results[0].after if results else None
    if after is None:
        assert results[0].findings  # never left alone without a word
        return
    expected = converted(load(before))
    now = load(after)
    if "deepspeed_config" not in now["hyperparameters"]:  # shared: left out with a review
        assert any(finding.code == "DSM413" for finding in results[0].findings)
        expected["hyperparameters"].pop("deepspeed_config")
    if "optimizations" in now:
        assert any(finding.code == "DSM413" for finding in results[0].findings)
        assert now.pop("optimizations").get("aggregation_frequency", 1) == 1
    assert now == expected


@settings(max_examples=80, deadline=None)
@given(data=st.binary(max_size=60), where=st.integers(0, 60))
def test_no_bytes_make_it_crash(data: bytes, where: int) -> None:
    text = b"entrypoint: model_def:MyTrial\nhyperparameters: {a: 1}\nx: [1]\n"
    with tempfile.TemporaryDirectory() as folder:
        for result in project(Path(folder)).results(text[:where] + data + text[where:]):
            assert result.findings
