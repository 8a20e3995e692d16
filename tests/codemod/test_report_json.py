"""The JSON report, and the schema that documents it."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ds_migrate.findings import FileKind, FileResult, FileStatus, Report, Severity, TrialResult, TrialStatus
from ds_migrate.report.formats.json import document, to_json
from shell_samples import changed, created, finding, report_of

SCHEMA = json.loads(files("ds_migrate.report").joinpath("schema.json").read_text("utf-8"))


def everything() -> Report:
    """A report with every kind, status and severity in it."""
    found = [finding(severity, help="do this", fix="that", trial="Trial") for severity in Severity]
    trials = [TrialResult(status.value, 7, status) for status in TrialStatus]
    return report_of(
        changed(Path("a.py"), b"a", b"b", *found),
        created(Path("ds_config.json"), b"{}"),
        FileResult(
            Path("n.ipynb"),
            FileKind.NOTEBOOK,
            FileStatus.BLOCKED,
            b"",
            None,
            trials,
            [finding(Severity.BLOCKED, cell=2)],
        ),
        FileResult(Path("const.yaml"), FileKind.EXPERIMENT, FileStatus.UNCHANGED, b""),
        FileResult(Path("bad\udcff.py"), status=FileStatus.ERROR, findings=[finding(Severity.ERROR, line=0, column=0)]),
        searched=40,
    )


def test_a_report_with_everything_in_it_fits_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(to_json(everything())), SCHEMA)


def test_the_schema_names_every_field_and_value_there_is() -> None:
    definitions = SCHEMA["$defs"]
    printed = document(everything())
    assert set(printed) == set(SCHEMA["properties"])
    assert set(printed["summary"]) == set(definitions["summary"]["properties"])
    assert set(printed["files"][0]) == set(definitions["file"]["properties"])
    assert set(printed["files"][0]["trials"][0]) == set(definitions["trial"]["properties"])
    assert set(printed["files"][0]["findings"][0]) == set(definitions["finding"]["properties"])
    assert definitions["file"]["properties"]["kind"]["enum"] == [kind.value for kind in FileKind]
    assert definitions["file"]["properties"]["status"]["enum"] == [status.value for status in FileStatus]
    assert definitions["trial"]["properties"]["status"]["enum"] == [status.value for status in TrialStatus]
    assert definitions["finding"]["properties"]["severity"]["enum"] == [severity.value for severity in Severity]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: report.update(schema=2),
        lambda report: report["summary"].pop("trials"),
        lambda report: report["files"][0].update(status="fine"),
        lambda report: report["files"][0]["findings"][0].update(line=None),
        lambda report: report["files"][0]["findings"][0].pop("fix"),
    ],
)
def test_the_schema_refuses_what_a_reader_could_not_rely_on(spoil: Any) -> None:
    printed = copy.deepcopy(document(everything()))
    spoil(printed)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(printed, SCHEMA)


def test_the_summary_counts_files_searched_trials_by_status_and_findings() -> None:
    assert document(everything())["summary"] == {
        "files": 40,
        "trials": 7,
        "converted": 2,
        "blocked": 1,
        "review": 1,
        "unsupported": 1,
        "errors": 2,
        "skipped": 1,
        "ignored": 0,
    }


def test_any_file_name_survives() -> None:
    printed = to_json(everything())
    assert printed.isascii()
    assert json.loads(printed)["files"][4]["path"] == "bad\udcff.py"
