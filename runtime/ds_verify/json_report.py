"""The verification as JSON, schema 1 (``schema.json`` beside this file): fields may be added, never changed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds_verify.failure import Failure
from ds_verify.report import Verification
from ds_verify.verdict import Outcome

SCHEMA = 1
_VERDICTS = ("same", "different", "not_run")


def to_json(found: Verification, report: Path | None, step: Sequence[str]) -> str:
    """Return one JSON document in ASCII.

    Args:
        found: the verification.
        report: the HTML report, where one is written.
        step: the next command to type, as words; none where there is none.
    """
    return json.dumps(
        {
            **_head(found.exit_code, found.headline),
            "trial": found.selection.trial,
            "config": None if found.selection.config is None else str(found.selection.config),
            "hparams": found.selection.picks,
            "sides": found.sides.how,
            "device": found.settings.device,
            "batches": found.settings.steps,
            "unit": found.unit,
            "comparisons": [_comparison(each) for each in found.outcomes],
            "original_failure": _original_failure(found),
            "runs": [_run(*cost) for cost in found.costs()],
            "explanations": [
                {"file": name, "line": finding.line, "code": finding.code, "message": finding.message}
                for name, finding in found.explanations
            ],
            "not_verified": found.not_verified,
            "notes": list(found.notes),
            "versions": found.versions,
            "report": None if report is None else str(report),
            "next": list(step),
        },
        indent=2,
        default=str,
    )


def refusal(code: int, reason: str) -> str:
    """Return the document of a verification that could not begin."""
    return json.dumps(_head(code, reason), indent=2)


def _head(code: int, headline: str) -> dict[str, Any]:
    return {"schema": SCHEMA, "verdict": _VERDICTS[min(code, 2)], "exit_code": code, "headline": headline}


def _comparison(outcome: Outcome) -> dict[str, Any]:
    gap, key, limit = outcome.largest or (None, None, None)
    return {
        "ranks": outcome.ranks,
        "zero_stage": outcome.stage,
        "same": outcome.same,
        "values": outcome.values,
        "largest_gap": _number(gap),
        "limit": _number(limit),
        "where": None if key is None else str(key),
        "weak_from": outcome.weak_from,
        "failure": None if outcome.failure is None else _failure(outcome.failure),
        "differences": [
            {
                "batch": each.key.step,
                "kind": each.key.kind,
                "name": each.key.name,
                "rank": each.key.rank,
                "gap": _number(each.gap),
                "limit": _number(each.limit),
                "reason": each.reason,
            }
            for each in outcome.differences
        ],
    }


def _run(label: str, figures: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "label": label,
        "failure": reason or None,
        "peak_bytes": figures.get("peak_bytes"),
        "seconds_a_batch": figures.get("seconds_a_batch"),
        "samples_a_batch": figures.get("samples"),
        "zero_stages": figures.get("zero_stages", []),
    }


def _original_failure(found: Verification) -> dict[str, Any] | None:
    if found.failure is None:
        return None
    ranks, failure = found.failure
    return {"ranks": ranks, **_failure(failure)}


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "batch": failure.step + 1,
        "resuming": failure.resuming,
        "reason": failure.reason,
        "traceback": failure.text.strip(),
    }


def _number(value: float | None) -> float | None:
    """Return a number that JSON can hold: no infinity, no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None
