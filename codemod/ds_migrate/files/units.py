"""What is converted, written and decided together: the files of one trial, and of all that shares a file with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ds_migrate.findings import FileResult

Item = TypeVar("Item")


def together(items: Sequence[Item], file_of: Callable[[Item], FileResult]) -> list[list[Item]]:
    """``items`` grouped by the conversions that their files share; one that names none joins everything."""
    if any(not file_of(item).units for item in items):
        return [list(items)]
    groups: list[tuple[set[str], list[Item]]] = []
    for item in items:
        names, members = set(file_of(item).units), [item]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names |= group[0]
            members = group[1] + members
        groups.append((names, members))
    return [members for _, members in groups]


def conversions(files: Sequence[FileResult]) -> list[list[FileResult]]:
    """The files with changes, conversion by conversion."""
    return together([file for file in files if file.to_write], lambda file: file)
