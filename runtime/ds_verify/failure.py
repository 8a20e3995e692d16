"""Why a training run has no record."""

from __future__ import annotations

import json
import os
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LENGTH = 400
_CAUSES = {
    "Application timeout caused pair closure": "a rank waited in a collective that another one never joined",
    "Connection closed by peer": "another rank ended while this one waited for it",
}
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|HP|Raised|Warning)(:|$)")


@dataclass(frozen=True)
class Failure:
    """The end of a run that failed.

    Attributes:
        step: micro-batches trained before. text: the traceback, or the end of the output.
        resuming: whether it ended where it was resumed from the checkpoint in the middle.
        varies: whether it trained, but otherwise than another run of the same.
        is_script: whether it is a plain script, which is resumed only on request.
    """

    step: int
    text: str
    resuming: bool = False
    varies: bool = False
    is_script: bool = False

    @property
    def verb(self) -> str:
        """The end of a sentence that begins with the run."""
        return "trains otherwise each time it runs" if self.varies else "does not train"

    @property
    def reason(self) -> str:
        """The error on one line; without a traceback the last line of the output."""
        lines = [line.strip() for line in self.text.strip().splitlines()]
        errors = [index for index, line in enumerate(self.text.strip().splitlines()) if _ERROR.match(line)]
        if not errors:
            return next((line for line in reversed(lines) if line), "ended without output")
        words = " ".join(lines[errors[-1] :])
        words += "".join(f": {cause}" for shown, cause in _CAUSES.items() if shown in words)
        return words if len(words) <= _LENGTH else f"{words[:_LENGTH]}..."

    @property
    def occasion(self) -> str:
        """Return what it was doing where training itself works, for a sentence that ends there; else empty."""
        if not self.resuming:
            return ""
        if self.is_script:
            return f" once it is resumed after {self.step} steps (without --resume-with it is trained in one go)"
        return f" once it is resumed after {self.step} batches (--no-resume compares without that)"


def user_traceback(error: BaseException, home: str) -> str:
    """Return the error's traceback from the user's first frame on, with the paths that the user knows."""
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith(home):
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames or error.__traceback__)
    return "".join(lines).replace(f"{home}{os.sep}", "")


def report_hang(files: Path, rank: int, text: str) -> None:
    """Leave a failure in place of a rank's record, where ranks wait for each other forever."""
    progress = files.with_name(f"{files.name}.rank0.progress")
    step = int(progress.read_text() or 0) if progress.is_file() else 0
    write_failure(files, rank, {"text": f"TimeoutError: {text}", "step": step, "resuming": False})


def write_failure(files: Path, rank: int, failure: dict[str, Any]) -> None:
    """Leave a failure in place of a rank's record; `files` is the folder of records with the name of the run.

    It is there as a whole or not at all: the other ranks fail when one is killed, and are killed while they write this.
    """
    partial = files.with_name(f"{files.name}.rank{rank}.partial")
    partial.write_text(json.dumps(failure))
    partial.replace(partial.with_suffix(".error"))
