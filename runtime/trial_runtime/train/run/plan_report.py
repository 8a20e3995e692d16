"""Output of ``ds-train --dry-run``: the run that it would start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trial_runtime._cluster_info import Length
from trial_runtime._redaction import masked_command, masked_hparams
from trial_runtime.train.config.run_plan import RunPlan
from trial_runtime.train.search.slots import visible_gpus

_DEFAULT_REPORTS = Length(100, "batches")


def as_json(plan: RunPlan) -> str:
    """Return the plan as one JSON object; its schema is in docs/runtime/ds-train.md."""
    return json.dumps(plan_facts(plan), indent=2, default=str)


def plan_facts(plan: RunPlan) -> dict[str, Any]:
    """Return the facts of a plan as values of JSON, secrets masked."""
    fit, entry = plan.fit, plan.entrypoint
    return {
        "entrypoint": " ".join(masked_command([entry.target, *entry.args])),
        "context": str(plan.context),
        "ranks": plan.slots,
        "device": "cuda" if visible_gpus() else "cpu",
        "length": _as_dict(fit.max_length),
        "validation_period": _as_dict(fit.validation_period),
        "checkpoint_period": _as_dict(fit.checkpoint_period),
        "reporting_period": _as_dict(fit.reporting_period or _DEFAULT_REPORTS),
        "checkpoint_policy": fit.checkpoint_policy or "best",
        "searcher_metric": plan.searcher_metric,
        "smaller_is_better": plan.smaller_is_better,
        "global_batch_size": _global_batch_size(plan),
        "batch_size_per_rank": _batch_size_per_rank(plan),
        "checkpoint_storage": _storage(plan),
        "seed": plan.seed,
        "max_restarts": plan.max_restarts,
        "log_with": list(plan.log_with),
        "hparams": masked_hparams(plan.hparams),
        "notices": [{"field": field, "note": note} for field, note in plan.notices],
    }


def as_lines(plan: RunPlan) -> Iterator[str]:
    """Yield the plan's lengths, batch, device and storage, a line each."""
    fit, facts = plan.fit, plan_facts(plan)
    yield f"length: {_in_words(fit.max_length) or 'that of the program'}"
    validated = f"every {_in_words(fit.validation_period)} and at the end" if fit.validation_period else "at the end"
    yield f"validation: {validated}; reports: every {_in_words(fit.reporting_period or _DEFAULT_REPORTS)}"
    saved = {
        "best": f"when {plan.searcher_metric} improved" if plan.searcher_metric else "after each validation",
        "all": "after each validation",
        "none": "at the end",
    }[facts["checkpoint_policy"]]
    period = f", every {_in_words(fit.checkpoint_period)}" if fit.checkpoint_period else ""
    end = "" if saved == "at the end" else " and at the end"
    yield f"checkpoints: {saved}{period}{end}, in {facts['checkpoint_storage']}"
    if facts["batch_size_per_rank"] is not None:
        share = "" if plan.slots == 1 else f", {facts['batch_size_per_rank']} on each of {plan.slots} ranks"
        yield f"batch: {facts['global_batch_size']} samples{share}"
    yield f"device: {facts['device']}; seed: {'drawn' if plan.seed is None else plan.seed}"


def _storage(plan: RunPlan) -> str:
    if plan.storage.remote is not None:
        return plan.storage.remote.url
    return "the run directory" if plan.storage.root is None else str(plan.storage.root)


def _global_batch_size(plan: RunPlan) -> int | None:
    size = _batch_size_per_rank(plan)
    return None if size is None else size * plan.slots


def _batch_size_per_rank(plan: RunPlan) -> int | None:
    size = plan.hparams.get("global_batch_size")
    return size // plan.slots if isinstance(size, int) else None


def _as_dict(length: Length | None) -> dict[str, int] | None:
    return None if length is None else {length.unit: length.value}


def _in_words(length: Length | None) -> str:
    if length is None:
        return ""
    singular = {"batches": "batch", "epochs": "epoch"}[length.unit]
    return f"{length.value:,} {length.unit if length.value != 1 else singular}"
