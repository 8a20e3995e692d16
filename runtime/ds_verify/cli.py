"""The command line of ``ds-verify``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.command_line import CommandParser, print_error
from trial_runtime.train.config.context_directory import context_of
from trial_runtime.train.config.document import load, split_assignment
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.requirements import missing_runtime

from ds_verify.exit_codes import NOT_RUN
from ds_verify.launchers import has_gpu_driver
from ds_verify.plain import cli as plain

if TYPE_CHECKING:
    from ds_verify.report import Verification
    from ds_verify.runs import Settings

_EPILOG = """\
exit codes: 0 same; 1 different; 2 could not run; 130 interrupted; 143 terminated
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``ds-verify``'s options."""
    made = CommandParser(
        prog="ds-verify",
        usage="%(prog)s PATH [OPTION...]\n       %(prog)s --plain SCRIPT [ARGS...]",
        description="Train a trial and its conversion side by side, from the same seed, data and weights, and show "
        "whether they are the same. Your files are not touched.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "path", type=Path, metavar="PATH", help="an experiment config, or the folder with the trial's code"
    )
    made.add_argument(
        "--plain", action="store_true", help="verify a script that holds no trial: ds-verify --plain SCRIPT [ARGS...]"
    )
    made.add_argument("--trial", metavar="NAME", help="the trial's class, where there are several")
    made.add_argument(
        "--config", type=Path, metavar="FILE", help="the experiment config to run (relative to the folder)"
    )
    made.add_argument("--hparam", action="append", default=[], metavar="NAME=VALUE", help="change a hyperparameter")
    made.add_argument("--precision", choices=("fp32", "bf16", "fp16", "autocast"), help="convert to this precision")
    made.add_argument("--offload", choices=("none", "optimizer", "parameters"), default="none", help="convert to this")
    made.add_argument("--zero-sweep", type=_numbers, default=[], metavar="0,1,2,3", help="compare these stages as well")
    made.add_argument(
        "--deepspeed",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the converted trial's DeepSpeed config: bf16.enabled=true",
    )
    made.add_argument(
        "--follow",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="convert a copy of a base class that the trial has in this package, as ds-migrate --follow does",
    )
    made.add_argument("--oracle", choices=("runtime", "determined"), default="runtime", help="what trains the original")
    made.add_argument("--no-resume", action="store_true", help="train in one go, without a checkpoint in the middle")
    _add_common(made, "batches", "TRIAL")
    return made


def plain_parser() -> argparse.ArgumentParser:
    """Return the parser of ``ds-verify --plain``'s options."""
    made = CommandParser(
        prog="ds-verify --plain",
        description=plain.DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    _add_common(made, "steps of optimizers", "SCRIPT")
    plain.add_arguments(made)
    return made


def _add_common(made: argparse.ArgumentParser, unit: str, name: str) -> None:
    """Add the options of both commands."""
    made.add_argument("--context", type=Path, metavar="DIR", help="the folder with the code")
    made.add_argument("--steps", type=_positive, default=50, metavar="N", help=f"{unit} to train (default: 50)")
    made.add_argument("--ranks", type=_counts, default=[1, 2], metavar="N,N", help="world sizes (default: 1,2)")
    made.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there are enough GPUs")
    made.add_argument(
        "--against",
        choices=("converted", "working-tree"),
        help="compare the original with a fresh conversion, or with the files on disk (default if they are converted "
        "already; the original then comes from git HEAD)",
    )
    made.add_argument("--original", metavar="DIR|REV", help="the original: a folder or a git revision (default: HEAD)")
    made.add_argument("--zero", type=int, choices=range(4), help="convert to this ZeRO stage")
    made.add_argument("--tolerance", type=float, metavar="X", help="in place of the one that a control run shows")
    made.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds without a batch (default: 600)"
    )
    made.add_argument("--report", type=Path, metavar="FILE", help=f"the HTML report (default: ds-verify-{name}.html)")
    made.add_argument("--no-report", action="store_true", help="write none")
    made.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one document for programs on stdout"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``ds-verify``; return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    options = (plain_parser() if "--plain" in given else parser()).parse_args(given)
    try:
        if missing := missing_runtime():
            raise ConfigError(missing)
        with _sigterm_raises():
            if options.plain:
                return plain.verify(options, _device(options.device, max(options.ranks)))
            return _verify(options)
    except ConfigError as error:
        return _ended(options, NOT_RUN, str(error))
    except KeyboardInterrupt:
        return _ended(options, 128 + signal.SIGINT, "interrupted; both sides are stopped")
    except _Terminated:
        return _ended(options, 128 + signal.SIGTERM, "terminated; both sides are stopped")


def _ended(options: argparse.Namespace, code: int, reason: str) -> int:
    """Report why there is no verdict; return the exit code."""
    print_error("ds-verify", reason)
    if options.format == "json":
        from ds_verify.json_report import refusal

        print(refusal(code, reason))
    return code


class _Terminated(BaseException):
    """SIGTERM, which then ends the ranks and removes the working copies as Ctrl-C does."""


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    def terminate(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _verify(options: argparse.Namespace) -> int:
    from ds_migrate.options import Options
    from rich.console import Console

    from ds_verify import console
    from ds_verify.launchers import launcher_for
    from ds_verify.output import present
    from ds_verify.report import Verification
    from ds_verify.runs import VerificationRuns
    from ds_verify.select_trial import select_trial
    from ds_verify.working_copies import open_sides

    context, config = _place(options)
    settings = _settings(options)
    launcher = launcher_for(settings.device)  # its imports continue while the sides are made
    talk = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with tempfile.TemporaryDirectory(prefix="ds-verify-") as folder:
        work = Path(folder).resolve()
        conversion = Options(
            zero=options.zero, precision=options.precision, offload=options.offload, follow=tuple(options.follow)
        )
        sides = open_sides(context, work, options.against, options.original, conversion)
        picks = dict(split_assignment("--hparam", text) for text in options.hparam)
        selection = select_trial(sides.original, config, options.trial, picks, conversion)
        if reason := sides.left.get(selection.trial.partition(":")[2]):
            raise ConfigError(reason)
        found = Verification(sides, selection, settings)
        with console.progress_bar(talk, found.unit) as bar:
            report = console.progress_reporter(bar, found.unit)
            runs = VerificationRuns(sides, found.selection, settings, work, report, launcher)
            found.replaces_cuda = runs.replaces_cuda
            for trained in runs.rounds():
                found.add(trained)
        name = found.selection.trial.rpartition(":")[2].replace("/", "-")
        return present(found, options, name, _next(options, context, found), talk)


def _settings(options: argparse.Namespace) -> Settings:
    from ds_verify.job import HANG
    from ds_verify.runs import Settings

    return Settings(
        steps=options.steps,
        ranks=options.ranks,
        device=_device(options.device, max(options.ranks)),
        zero_sweep=options.zero_sweep,
        oracle=options.oracle == "determined",
        resumes=not options.no_resume,
        tolerance=options.tolerance,
        idle=options.timeout,
        hang=min(HANG, options.timeout / 2),
        deepspeed=dict(split_assignment("--deepspeed", text) for text in options.deepspeed),
    )


def _next(options: argparse.Namespace, context: Path, found: Verification) -> list[str]:
    """Return the next command to type where the sides are the same, as words."""
    if found.sides.waiting:
        follow = [f"--follow={package}" for package in options.follow]
        return ["ds-migrate", "--write", *follow, os.path.relpath(options.path if options.path.is_dir() else context)]
    config = options.path if options.path.is_file() else found.selection.config and context / found.selection.config
    return ["ds-train", os.path.relpath(config)] if config else []


def _place(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """Return the context directory, and the config relative to it when one was named.

    Raises:
        ConfigError: there is no such path, or the config lies elsewhere.
    """
    path: Path = options.path
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file or folder")
    config = path if path.suffix in (".yaml", ".yml") else options.config
    context = (options.context or _folder_of(path)).resolve()
    if config is None:
        return context, None
    place = (config if config.exists() else context / config).resolve()
    if not place.is_file() or not place.is_relative_to(context):
        raise ConfigError(f"{config}: is not a file below {context}; name the folder with --context")
    return context, place.relative_to(context)


def _folder_of(path: Path) -> Path:
    if path.suffix in (".yaml", ".yml"):
        return context_of(path, load(path))
    return path if path.is_dir() else path.parent


def _device(asked: str | None, ranks: int) -> str:
    if asked == "cpu" or (asked is None and not has_gpu_driver()):
        return "cpu"
    import torch

    there = torch.cuda.device_count()
    if asked == "cuda" and there < ranks:
        advice = f"use --ranks {there}, or --device cpu" if there else "use --device cpu"
        raise ConfigError(f"--device cuda: {ranks} ranks need as many GPUs, this machine shows {there}; {advice}")
    return asked or ("cuda" if there >= ranks else "cpu")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _counts(text: str) -> list[int]:
    found = _numbers(text)
    if 0 in found:
        raise argparse.ArgumentTypeError("must be at least 1")
    return found


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers with commas between them") from None
    if not found or min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers with commas between them")
    return found
