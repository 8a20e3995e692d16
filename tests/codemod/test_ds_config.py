"""ds_config.json: created, completed, or left with a word on it."""

from __future__ import annotations

import json
from pathlib import Path

import examples
import pytest
from ds_migrate import ds_config
from ds_migrate.deepspeed_facts import REMOVED_CONFIG_KEYS
from ds_migrate.experiment import TrialFacts
from ds_migrate.findings import FileKind, FileResult, FileStatus, TrialStatus
from ds_migrate.options import Options

EXACT = {"zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 1}, "gradient_clipping": 0.0}


def facts(
    folder: Path, config: dict[str, object], name: str = "MyTrial", status: TrialStatus = TrialStatus.CONVERTED
) -> TrialFacts:
    return TrialFacts(name, folder / "model_def.py", status, config, folder / "ds_config.json")


def planned(folder: Path, existing: str | bytes | None = None, config: dict[str, object] = EXACT) -> FileResult:
    if existing is not None:
        (folder / "ds_config.json").write_bytes(existing if isinstance(existing, bytes) else existing.encode())
    [result] = ds_config.plan([facts(folder, config)])
    return result


def codes(result: FileResult) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity.value) for finding in result.findings]


def test_a_new_file_has_a_fixed_layout_and_a_reason_for_each_key(tmp_path: Path) -> None:
    result = planned(tmp_path)
    assert (result.path, result.kind, result.status) == (
        tmp_path / "ds_config.json",
        FileKind.DS_CONFIG,
        FileStatus.CREATED,
    )
    assert result.before is None
    assert result.after == (
        b'{\n  "gradient_clipping": 0.0,\n  "zero_optimization": {\n    "stage": 1\n  },\n'
        b'  "zero_allow_untested_optimizer": true\n}\n'
    )
    assert [(f.line, f.message.partition(":")[0]) for f in result.findings] == [
        (2, "gradient_clipping"),
        (4, "zero_optimization.stage"),
        (6, "zero_allow_untested_optimizer"),
    ]


def test_a_second_run_leaves_it(tmp_path: Path) -> None:
    again = planned(tmp_path, ds_config.render(EXACT))
    assert (again.status, again.after, again.findings) == (FileStatus.UNCHANGED, None, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\n\t"steps_per_print": 10\n}', '{\n\t"steps_per_print": 10,\n\t"gradient_clipping": 0.0\n}'),
        ('{\r\n  "a": {"b": []}\r\n}\r\n', '{\r\n  "a": {"b": []},\r\n  "gradient_clipping": 0.0\r\n}\r\n'),
        ('{"a": 1, "b": "}"}\n', '{"a": 1, "b": "}", "gradient_clipping": 0.0}\n'),
        ("{}", '{\n  "gradient_clipping": 0.0\n}'),
        ("\ufeff{}\n", '\ufeff{\n  "gradient_clipping": 0.0\n}\n'),
    ],
)
def test_missing_keys_are_added_and_every_other_byte_stays(tmp_path: Path, before: str, after: str) -> None:
    result = planned(tmp_path, before)
    assert (result.status, codes(result)) == (FileStatus.CHANGED, [("DSM502", "converted")])
    assert result.after == after.encode()
    assert json.loads(after.removeprefix("\ufeff"))["gradient_clipping"] == 0.0


def test_an_absent_stage_stays_absent_and_an_untested_optimizer_is_allowed_where_a_stage_is(tmp_path: Path) -> None:
    result = planned(tmp_path, '{"gradient_clipping": 0.0, "zero_optimization": {"stage": 1}}')
    assert result.after == (
        b'{"gradient_clipping": 0.0, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": true}'
    )
    assert planned(tmp_path, '{"gradient_clipping": 0.0}').status is FileStatus.UNCHANGED


@pytest.mark.parametrize(
    ("existing", "code"),
    [
        ('{"gradient_clipping": 1.0}', "DSM503"),
        (
            '{"gradient_clipping": 0, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": true}',
            "DSM503",
        ),
        ('{"gradient_clipping": 0, "train_batch_size": 64}', "DSM503"),
        ('{"gradient_clipping": 0, "scheduler": {"type": "WarmupLR"}}', "DSM503"),
        ('{"gradient_clipping": 0, "amp": {"enabled": false}}', "DSM504"),
    ],
)
def test_what_contradicts_the_trial_stays_with_a_review(tmp_path: Path, existing: str, code: str) -> None:
    result = planned(tmp_path, existing)
    assert (result.after, codes(result)) == (None, [(code, "review")])


@pytest.mark.parametrize("existing", [b"{,}", b"[]", b"\xff", b'{"a": 1} // no'])
def test_a_file_that_cannot_be_read_is_an_error_and_stays(tmp_path: Path, existing: bytes) -> None:
    result = planned(tmp_path, existing)
    assert (result.after, result.status, codes(result)) == (None, FileStatus.ERROR, [("DSM505", "error")])


def test_only_converted_trials_get_one(tmp_path: Path) -> None:
    assert ds_config.plan([facts(tmp_path, EXACT, status=TrialStatus.BLOCKED)]) == []
    assert ds_config.plan([facts(tmp_path, {})]) == []


def test_trials_that_share_a_file_must_need_the_same(tmp_path: Path) -> None:
    same = [facts(tmp_path, EXACT, "A"), facts(tmp_path, dict(reversed(EXACT.items())), "B")]
    assert [result.status for result in ds_config.plan(same)] == [FileStatus.CREATED]
    [blocked] = ds_config.plan([facts(tmp_path, EXACT, "A"), facts(tmp_path, {"gradient_clipping": 1.0}, "B")])
    assert (blocked.after, blocked.status, codes(blocked)) == (None, FileStatus.BLOCKED, [("DSM506", "blocked")])


def test_paths_are_shared_only_by_equal_configs(tmp_path: Path) -> None:
    one, two = tmp_path / "a.py", tmp_path / "b.py"
    clipped: dict[str, object] = {"gradient_clipping": 1.0}
    trials = [(two, "B", EXACT), (one, "A", EXACT), (two, "C", clipped), (tmp_path / "sub" / "c.py", "D", clipped)]
    expected = {
        (one, "A"): tmp_path / "ds_config.json",
        (two, "B"): tmp_path / "ds_config.json",
        (two, "C"): tmp_path / "ds_config_C.json",
        (tmp_path / "sub" / "c.py", "D"): tmp_path / "sub" / "ds_config.json",
    }
    assert ds_config.choose_paths(trials) == ds_config.choose_paths(reversed(trials)) == expected


@pytest.mark.parametrize("precision", [None, "fp32", "bf16", "fp16", "autocast"])
@pytest.mark.parametrize("offload", ["none", "optimizer", "parameters"])
@pytest.mark.parametrize("optimizer_in_config", [False, True])
def test_every_key_that_a_conversion_writes_is_explained_and_deepspeed_has_it(
    precision: str | None, offload: str, optimizer_in_config: bool, tmp_path: Path
) -> None:
    (tmp_path / "model_def.py").write_text(examples.module())
    options = Options(zero=3, precision=precision, offload=offload, optimizer_in_config=optimizer_in_config)
    (data,) = [f.after for f in examples.run(tmp_path, options=options).files if f.path.name == ds_config.NAME]
    config = json.loads(data or b"")

    reasons = dict(ds_config.explain(config))
    for key, value in config.items():
        assert key in reasons or all(f"{key}.{inner}" in reasons for inner in value), key
    assert not config.keys() & REMOVED_CONFIG_KEYS


def test_nothing_that_deepspeed_removed_is_explained() -> None:
    assert ds_config.explain({"amp": {"enabled": True}, "unknown": 1}) == []
    assert [key for key, _ in ds_config.explain({"bf16": {"enabled": True}, "gradient_clipping": 1.0})] == [
        "gradient_clipping",
        "bf16",
    ]
