"""The command line of ``ds-train runs``."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds_migrate.command_line import CommandParser, print_error
from ds_migrate.report.escaping import visible

from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.history.records import Run, find_runs, read_run
from trial_runtime.train.run.paths import shown_path
from trial_runtime.train.run.run_directory import DEFAULT_BASE, lock


def parser() -> argparse.ArgumentParser:
    """Build the argument parser of ``ds-train runs``."""
    made = CommandParser(
        prog="ds-train runs", description="List, compare, export and remove the runs that ds-train left."
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    listed = commands.add_parser("list", help="a line for each run")
    listed.add_argument("folder", type=Path, nargs="?", default=DEFAULT_BASE, metavar="DIR", help="(default: runs)")
    shown = commands.add_parser("show", help="all about one run: hyperparameters, metrics, checkpoints")
    shown.add_argument("run", type=Path, metavar="RUN")
    best = commands.add_parser("best", help="the run with the best validation metric")
    best.add_argument("folder", type=Path, nargs="?", default=DEFAULT_BASE, metavar="DIR", help="(default: runs)")
    compared = commands.add_parser("compare", help="what differs between runs, as a table and as plots")
    compared.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    compared.add_argument("--html", type=Path, metavar="FILE", help="write the curves of all metrics to one page")
    for each in (best, compared):
        each.add_argument("--metric", metavar="NAME", help="(default: searcher.metric of the config)")
    exported = commands.add_parser("export", help="write the weights of a run's best checkpoint to a safetensors file")
    exported.add_argument("run", type=Path, metavar="RUN")
    exported.add_argument("file", type=Path, nargs="?", default=Path("model.safetensors"), metavar="FILE")
    pruned = commands.add_parser("prune", help="remove runs that ended without any checkpoint")
    pruned.add_argument("folder", type=Path, nargs="?", default=DEFAULT_BASE, metavar="DIR", help="(default: runs)")
    pruned.add_argument("--yes", action="store_true", help="remove them; without it they are only listed")
    for each in (listed, shown, best):
        each.add_argument("--format", choices=("text", "json"), default="text")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``ds-train runs``; the exit code: 0 done, 1 there is no such run, 2 wrong usage."""
    options = parser().parse_args(arguments)
    try:
        return int(_COMMANDS[options.command](options))
    except ConfigError as error:
        print_error("ds-train runs", str(error))
        return 2


def as_json(run: Run) -> dict[str, Any]:
    """Return a run as values of JSON."""
    best = run.best()
    return {
        "path": str(run.path),
        "status": run.status,
        "seed": run.seed,
        "batches": run.batches,
        "metric": run.metric,
        "smaller_is_better": run.smaller_is_better,
        "best": None if best is None else {"value": best.number(run.metric or ""), "batches": best.batches},
        "hparams": run.hparams,
        "checkpoints": [
            {"path": str(each.path), "batches": each.batches, "bytes": each.size} for each in run.checkpoints
        ],
    }


def _list(options: argparse.Namespace) -> int:
    runs = _all(options.folder)
    if options.format == "json":
        print(json.dumps([as_json(run) for run in runs], indent=2))
    elif runs:
        from trial_runtime.train.history.tables import print_runs

        print_runs(runs)
    else:
        print_error("ds-train runs", f"no run in {options.folder}")
    return 0


def _show(options: argparse.Namespace) -> int:
    run = _one(options.run)
    if options.format == "json":
        print(json.dumps(as_json(run), indent=2))
        return 0
    from trial_runtime.train.history.tables import print_run

    print_run(run)
    return 0


def _best(options: argparse.Namespace) -> int:
    runs = _all(options.folder)
    metric = _metric(runs, options.metric)
    judged = [(best, run) for run in runs if (best := run.best(metric)) is not None]
    if not judged:
        print_error("ds-train runs", f"no run in {options.folder} reported {metric}")
        return 1
    if len({run.smaller_is_better for _, run in judged}) > 1:
        raise ConfigError(f"the runs in {options.folder} do not agree whether a smaller {metric} is better")
    sign = 1 if judged[0][1].smaller_is_better else -1
    best, run = min(judged, key=lambda pair: sign * (pair[0].number(metric) or 0.0))
    if options.format == "json":
        print(json.dumps(as_json(run), indent=2))
        return 0
    print(f"{shown_path(run.path)}: {visible(metric)} {best.number(metric):.6g} after {best.batches:,} batches")
    if (checkpoint := run.best_checkpoint(metric)) is not None:
        print(f"checkpoint: {shown_path(checkpoint.path)}")
        print(f"export: ds-train runs export {shown_path(run.path)}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from trial_runtime.train.history.tables import print_comparison

    runs = [_one(path) for path in options.runs]
    metric = _metric(runs, options.metric)
    print_comparison(runs, metric)
    if options.html is not None:
        from trial_runtime.train.history.comparison_page import render

        options.html.write_text(render(runs, metric), encoding="utf-8", errors="backslashreplace")
        print(f"curves: {options.html}")
    return 0


def _export(options: argparse.Namespace) -> int:
    run = _one(options.run)
    checkpoint = run.best_checkpoint()
    if checkpoint is None:
        raise ConfigError(f"{options.run}: has no checkpoint on this machine")
    from trial_runtime import export

    print(f"checkpoint: {shown_path(checkpoint.path)}")
    return export.main([str(checkpoint.path), str(options.file)])


def _prune(options: argparse.Namespace) -> int:
    base = options.folder.resolve()
    own = [run for run in _all(options.folder) if not run.path.is_symlink() and run.path.resolve().is_relative_to(base)]
    empty = [run for run in own if not run.checkpoints and not _has_remote(run) and _is_idle(run)]
    for run in empty:
        done = "removed" if options.yes else "would remove"
        print(f"{done} {shown_path(run.path)}: {visible(run.status)}, no checkpoint")
        if options.yes:
            shutil.rmtree(run.path)
    if not empty:
        print(f"nothing to remove: each run in {options.folder} has a checkpoint")
    elif not options.yes:
        print("remove them with --yes")
    return 0


_COMMANDS = {
    "list": _list,
    "show": _show,
    "best": _best,
    "compare": _compare,
    "export": _export,
    "prune": _prune,
}


def _all(folder: Path) -> list[Run]:
    if not folder.is_dir() and folder != DEFAULT_BASE:
        raise ConfigError(f"{folder}: there is no such folder")
    return list(find_runs(folder))


def _one(path: Path) -> Run:
    run = read_run(path)
    if run is None:
        raise ConfigError(f"{path}: is no run directory (it has no run.json); `ds-train runs list` names them")
    return run


def _metric(runs: Sequence[Run], given: str | None) -> str:
    metrics = dict.fromkeys(run.metric for run in runs if run.metric is not None)
    if given is None and len(metrics) != 1:
        found = f"the runs have {', '.join(metrics)}" if metrics else "no run has a searcher.metric"
        raise ConfigError(f"which metric? {found}: write --metric NAME")
    return given or next(iter(metrics))


def _has_remote(run: Run) -> bool:
    return run.info is not None and run.info.run.storage is not None


def _is_idle(run: Run) -> bool:
    try:
        lock(run.path).close()
    except ConfigError:  # a process trains there
        return False
    return True
