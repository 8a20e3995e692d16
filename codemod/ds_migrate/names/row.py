"""A row of the table of names: the conversion of one name that trials took from Determined's library."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace


class Verdict(enum.Enum):
    """The treatment of a name when a trial is converted to ``trial_runtime``."""

    PROVIDE = "provided"
    """The target has it: the import's prefix is replaced, and the name behaves as it did."""
    CONVERT = "converted"
    """A rule of the codemod rewrites its uses."""
    REVIEW = "left with a review"
    """Nothing replaces it locally: the import stays, or moves into the function that uses it. No trial is blocked."""
    REFUSE = "refused at the call"
    """The target has it, so that the import works, and its use is an error that explains what to do instead."""


@dataclass(frozen=True)
class Row:
    """One name.

    Attributes:
        name: as Determined had it, dotted: ``determined.util.download_gcs_blob_with_backoff``.
        verdict: how it is converted.
        served: where the target has it, dotted; None when it does not.
        advice: what to do instead, as an instruction; empty where the name is provided.
        test: the test file that covers it, from the root of the repository.
        covers: whether the row is also that of every name below it that has no nearer row. A module whose names are
            provided one by one covers none.
    """

    name: str
    verdict: Verdict
    served: str | None
    advice: str
    test: str
    covers: bool = True


def provided(module: str, names: str, test: str) -> Iterator[Row]:
    """Yield rows of a module and of ``names`` (separated by spaces) in it, which the target has at the same path."""
    yield Row(module, Verdict.PROVIDE, target_path(module), "", test, covers=False)
    for name in names.split():
        path = f"{module}.{name}"
        yield Row(path, Verdict.PROVIDE, target_path(path), "", test)


def refused(module: str, names: str, test: str, advice: str) -> Iterator[Row]:
    """Yield rows of ``names`` in a module that the target has and that raise an error with ``advice`` when used."""
    for row in left(module, names, test, advice):
        yield replace(row, verdict=Verdict.REFUSE, served=target_path(row.name))


def left(module: str, names: str, test: str, advice: str) -> Iterator[Row]:
    """Yield rows of ``names`` in a module that the target lacks; without names, of the module and all that it has."""
    for path in [f"{module}.{name}" for name in names.split()] or [module]:
        yield Row(path, Verdict.REVIEW, None, advice, test)


def converted(name: str, served: str | None, test: str, advice: str) -> Row:
    """Return the row of a name whose uses the codemod rewrites, to ``served`` where another name takes its place."""
    return Row(name, Verdict.CONVERT, served, advice, test)


def target_path(name: str) -> str:
    """Return where the target has what Determined had at ``name``."""
    head, dot, rest = name.partition(".")
    return f"trial_runtime{dot}{rest}" if head == "determined" else f"trial_runtime.{name}"
