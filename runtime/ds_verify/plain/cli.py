"""``ds-verify --plain``: the command line for scripts that hold no trial."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trial_runtime.train.config.errors import ConfigError

from ds_verify.plain.file_isolation import is_installed

_OPTIONS = frozenset(
    {"--steps", "--ranks", "--tolerance", "--timeout", "--zero", "--against", "--original", "--device"}
)
_LOADS_OPTIMIZER = re.compile(rb"opt\w*(\[.*\])?\.load_state_dict\(|load_optimizer_state\(", re.IGNORECASE)
DESCRIPTION = """\
Train a script with a plain PyTorch loop and its conversion side by side, from the same seed, data and weights, and show
whether they are the same. The script is not edited, and your files are not touched. Options stand before SCRIPT; what
follows it is the script's.
"""


def add_arguments(made: argparse.ArgumentParser) -> None:
    """Add what only scripts take."""
    made.add_argument("script", type=Path, metavar="SCRIPT", help="a Python file, relative to the current folder")
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's arguments")
    made.add_argument(
        "--resume-with",
        metavar="'ARGS'",
        default="",
        help="further arguments with which the script resumes from a checkpoint that it has written",
    )


def verify(options: argparse.Namespace, device: str) -> int:
    """Verify a script; return the exit code.

    Raises:
        ConfigError: there is no such script, it does not convert, or there is nothing to compare it with.
    """
    from ds_migrate.options import Options
    from rich.console import Console

    from ds_verify import console
    from ds_verify.job import HANG
    from ds_verify.launchers import launcher_for
    from ds_verify.output import present
    from ds_verify.plain.report import PlainVerification
    from ds_verify.plain.runs import ScriptRuns
    from ds_verify.plain.sides import open_sides
    from ds_verify.runs import Settings
    from ds_verify.select_trial import TrialSelection

    context, script = _place(options)
    settings = Settings(
        steps=options.steps,
        ranks=sorted(set(options.ranks)),
        device=device,
        tolerance=options.tolerance,
        idle=options.timeout,
        hang=min(HANG, options.timeout / 2),
    )
    resume = shlex.split(options.resume_with)
    launcher = launcher_for(device)
    talk = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with tempfile.TemporaryDirectory(prefix="ds-verify-") as folder:
        work = Path(folder).resolve()
        sides = open_sides(context, script, work, options.against, options.original, Options(zero=options.zero))
        command = shlex.join([str(script), *options.arguments])
        found = PlainVerification(sides, TrialSelection(None, {}, {}, {}, command), settings, is_resumed=bool(resume))
        with console.progress_bar(talk, found.unit) as bar:
            report = console.progress_reporter(bar, found.unit)
            path = python_path_in(context)
            runs = ScriptRuns(sides, script, options.arguments, resume, settings, work, report, launcher, path, context)
            runs.notes += misplaced_options(options.arguments, options.script)
            if not resume and _LOADS_OPTIMIZER.search(options.script.read_bytes()):
                runs.notes.append("the script loads an optimizer's state: --resume-with 'ARGS' compares resuming, too")
            found.replaces_cuda, found.remarks = runs.replaces_cuda, runs.notes
            for trained in runs.rounds():
                found.add(trained)
        step = ["ds-migrate", "--plain", "--write", str(options.script)] if sides.waiting else []
        return present(found, options, script.stem, step, talk)


def misplaced_options(arguments: Sequence[str], script: Path) -> list[str]:
    """Return a note for each option of ds-verify that stands behind a script which does not name it itself."""
    text = script.read_text(errors="replace")
    names = [each.partition("=")[0] for each in arguments]
    return [
        f"{name} behind {script.name} was given to the script; the options of ds-verify stand before it"
        for name in names
        if name in _OPTIONS and name not in text
    ]


def python_path_in(context: Path) -> list[str]:
    """Return the folders that modules are imported from below a folder, relative to it: each side has its own ones.

    PYTHONPATH names them, or a package that is installed as it lies there (``pip install -e``).
    """
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    entries = [Path(entry).resolve() for entry in (*named, *sys.path) if entry]
    below = [each for each in entries if each.is_relative_to(context) and not is_installed(each)]
    return list(dict.fromkeys(str(each.relative_to(context)) for each in below))


def _place(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the folder that the script is started in, and the script relative to it."""
    script: Path = options.script.resolve()
    if not script.is_file():
        raise ConfigError(f"{options.script}: there is no such script")
    here = Path.cwd()
    context = (options.context or (here if script.is_relative_to(here) else script.parent)).resolve()
    if not script.is_relative_to(context):
        raise ConfigError(f"{options.script}: is not below {context}; name the folder with --context")
    return context, script.relative_to(context)
