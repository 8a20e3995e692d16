"""Preparation of a run: the options of ``ds-train``, a checked plan, an open run directory."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trial_runtime._atomic_file import write_whole
from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ClusterInfo, newest_checkpoint, newest_of_run
from trial_runtime._redaction import masked_text
from trial_runtime._storage.remote import Location, call, is_url
from trial_runtime.errors import CheckpointStorageError
from trial_runtime.train.config import unsupported_fields
from trial_runtime.train.config.context_directory import context_of
from trial_runtime.train.config.document import assign, load, split_assignment
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import RunPlan, make_plan
from trial_runtime.train.config.searcher import is_search
from trial_runtime.train.config.trackers import missing_trackers
from trial_runtime.train.requirements import missing_runtime
from trial_runtime.train.run.run_directory import (
    DEFAULT_BASE,
    RunDirectory,
    describe,
    make_checkpoint_directory,
    newest_directory,
    open_run,
)
from trial_runtime.train.search.assignment import Assignment

_IN_A_CHECKPOINT = ("manifest.json", "rank_0.pt", "metadata.json", "trial_state.pkl", "state_dict.pth", "model0")
"""Files that the runtime or Determined writes into each."""


def changed_document(options: argparse.Namespace) -> dict[str, Any]:
    """Return the experiment config that ``options`` name, with the fields that they change.

    Raises:
        ConfigError: the config cannot be read, or an option names a field that does not exist.
    """
    check_changes(options.settings)
    document = load(options.config)
    for text in options.settings:
        assign(document, *split_assignment("--config", text))
    if options.seed is not None:
        assign(document, "reproducibility.experiment_seed", options.seed)
    if options.stop_after_no_better is not None:
        assign(document, "early_stopping", options.stop_after_no_better)
    if options.log_grad_norm:
        assign(document, "log_grad_norm", True)
    if options.precision is not None:
        for block in ("bf16", "fp16", "torch_autocast"):
            field = f"hyperparameters.overwrite_deepspeed_args.{block}.enabled"
            assign(document, field, block == options.precision)
    if options.log_with is not None:
        assign(document, "log_with", options.log_with)
    return document


def is_search_run(options: argparse.Namespace, document: dict[str, Any]) -> bool:
    """Return whether the config's searcher runs several trials, and this is none of them."""
    searcher = document.get("searcher")
    return options.assignment is None and isinstance(searcher, Mapping) and is_search(searcher)


def plan_from(options: argparse.Namespace, document: dict[str, Any]) -> RunPlan:
    """Return the plan of a config.

    Args:
        options: of ``ds-train``.
        document: from :func:`changed_document`.

    Raises:
        ConfigError: the config or an option cannot be run.
    """
    if options.slots is not None:
        assign(document, "resources.slots_per_trial", options.slots)
    context = context_directory(options, document)
    picks = dict(split_assignment("--hparam", text) for text in options.hparam)
    return make_plan(
        document,
        str(options.config),
        context,
        picks=picks,
        test_mode=options.test,
        needs_length=options.validate is None,
        stop_on_nan=options.stop_on_nan,
        precision=options.precision,
        accelerator="cpu" if options.device == "cpu" else _accelerator(document),
        assignment=None if options.assignment is None else Assignment.read(options.assignment),
    )


def check_changes(settings: Sequence[str]) -> None:
    """Refuse fields of ``--config`` that do not exist: a misspelt one would train something else.

    Raises:
        ConfigError: one does not exist.
    """
    changes: dict[str, Any] = {}
    for text in settings:
        assign(changes, *split_assignment("--config", text))
    for field, note in unsupported_fields.unknown(changes):
        raise ConfigError(f"--config {field}: there is no such field{note}")


def context_directory(options: argparse.Namespace, document: dict[str, Any]) -> Path:
    """Return the folder with the trial's code, absolute.

    Raises:
        ConfigError: there is no such folder.
    """
    context: Path = options.context or context_of(options.config, document)
    if not context.is_dir():
        raise ConfigError(f"{context}: is not a folder; DIR is the folder with the trial's code")
    return context.resolve()


def given_directory(options: argparse.Namespace, name: str) -> Path | None:
    """Return the run directory that ``--run-dir`` or ``--resume`` names; None: a new one.

    Raises:
        ConfigError: both are given, or there is no run to resume.
    """
    given: Path | None = options.run_dir
    if not options.resume:
        return given
    if given is not None:
        raise ConfigError("--resume: continues the newest run; leave it out beside --run-dir, which names one")
    newest = newest_directory(name)
    if newest is None:
        raise ConfigError(f"--resume: there is no run of {name!r} in {DEFAULT_BASE}/; start one without it")
    return newest


def open_directory(options: argparse.Namespace, plan: RunPlan) -> RunDirectory:
    """Create or open the run directory, after everything that a rank needs has been checked.

    Raises:
        ConfigError: something is not right.
    """
    _checkpoint(options.latest_checkpoint)
    if missing := missing_runtime() or missing_trackers(plan.log_with) or missing_device(options.device):
        raise ConfigError(missing)
    run, continued = open_run(given_directory(options, plan.name), plan.name, plan.seed)
    if not continued:
        text = options.config.read_text(encoding="utf-8-sig")
        (run.path / "config.yaml").write_text(masked_text(text, load(options.config)), encoding="utf-8")
    elif plan.seed not in (None, run.seed):
        raise ConfigError(
            f"reproducibility.experiment_seed: the run in {run.path} has the seed {run.seed}, not {plan.seed}; "
            f"a run continues with its own seed"
        )
    make_checkpoint_directory(describe(plan, run, None))
    return run


def write_info(options: argparse.Namespace, plan: RunPlan, run: RunDirectory) -> ClusterInfo:
    """Describe the run as it is now, with the newest checkpoint, for the ranks that are about to start.

    Raises:
        ConfigError: the remote storage does not answer.
    """
    given = _checkpoint(options.latest_checkpoint)
    info = describe(plan, run, given)
    if info.run.storage is not None and plan.storage.remote is not None:
        own = newest_checkpoint(Path(info.run.checkpoint_directory))
        there = _newer_in_storage(Location(info.run.storage, plan.storage.remote.options), own)
        if there is not None:
            info = dataclasses.replace(info, latest_checkpoint=there)
    write_whole(run.path / CLUSTER_INFO_FILE, info.to_json())
    return info


def missing_device(device: str | None) -> str:
    """Return one line that a GPU is asked for where there is none; empty otherwise."""
    if device != "cuda":
        return ""
    import torch

    if torch.cuda.is_available():
        return ""
    return "--device cuda: torch shows no GPU on this machine; ds-train --check reports why, --device cpu trains here"


def _newer_in_storage(location: Location, own: str | None) -> str | None:
    """Return the URL of the newest checkpoint in the storage, where the run has none here or resumed from it
    elsewhere."""
    try:
        name = call(location, "beyond", name=None if own is None else Path(own).name)
    except CheckpointStorageError as error:
        raise ConfigError(f"checkpoint_storage: {error}") from error
    return None if name is None else location.below(name).url


def _checkpoint(given: str | None) -> str | None:
    if given is None or is_url(given):
        return given
    path = Path(given)
    if not path.is_dir():
        raise ConfigError(f"--latest-checkpoint {path}: there is no such folder")
    if any((path / name).exists() for name in _IN_A_CHECKPOINT):
        return str(path.resolve())
    newest = newest_of_run(path)
    if newest is None:
        below = sorted(str(found.parent) for found in path.glob("*/latest"))[:5]
        hint = f"; name one of {', '.join(below)}" if below else ""
        raise ConfigError(f"--latest-checkpoint {path}: is no checkpoint, and no run directory that has one{hint}")
    return newest


def _accelerator(document: dict[str, Any]) -> str:
    environment = document.get("environment")
    variables = environment.get("environment_variables") if isinstance(environment, dict) else None
    if not isinstance(variables, dict) or importlib.util.find_spec("torch") is None:
        return "cpu"  # nothing depends on it, so torch stays unimported
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
