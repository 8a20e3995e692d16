"""The end of a verification: the HTML report, the verdict on stdout as text or JSON, and the next command."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ds_verify import console, html
from ds_verify.json_report import to_json
from ds_verify.report import Verification


def present(found: Verification, options: argparse.Namespace, name: str, step: Sequence[str], talk: Console) -> int:
    """Write the report and print the verdict; return the exit code.

    Args:
        found: the verification.
        options: of the command line: ``format``, ``report`` and ``no_report``.
        name: of the trial or script, for the file name of the report.
        step: the next command to type where both sides are the same, as words.
        talk: the console on stderr.
    """
    path = None
    if not options.no_report:
        path = options.report or Path(f"ds-verify-{name}.html")
        path.write_text(html.render(found), encoding="utf-8")
    following = list(step) if found.same else _explain(found)
    if options.format == "json":
        print(to_json(found, path, following))
    else:
        console.show(Console(highlight=False, markup=False, emoji=False), found)
    if path is not None:
        talk.print(f"report: {path}", soft_wrap=True)
    if following:
        talk.print(f"next: {shlex.join(following)}", soft_wrap=True)
    return found.exit_code


def _explain(found: Verification) -> list[str]:
    """Return the command that explains a difference; none where it has no known reason."""
    codes = sorted({finding.code for _, finding in found.explanations})
    return ["ds-migrate", "--explain", str(codes[0])] if codes else []
