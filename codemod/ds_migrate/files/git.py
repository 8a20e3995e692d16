"""The few questions this tool asks git. Where there is no git, or it refuses, the answers are empty; nothing raises."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable

# Set by git around its hooks: they would make git answer for the hook's repository whatever folder is asked about.
_HOOK_VARIABLES = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}
)


def work_tree(folder: str) -> str | None:
    """Return the nearest folder at or above ``folder`` (absolute) that holds a ``.git``, or None."""
    if os.path.lexists(f"{folder}/.git"):
        return folder
    parent = os.path.dirname(folder)
    return work_tree(parent) if parent != folder else None


def listed_files(folder: str) -> list[str] | None:
    """Return the files below ``folder`` that git tracks or would track, relative to it; None when git fails.

    Nested repositories end in a slash.
    """
    answer = _git(folder, "ls-files", "-co", "--exclude-standard", "-z")
    return None if answer is None else [os.fsdecode(name) for name in answer.split(b"\0") if name]


def ignores(folder: str) -> bool:
    """Return whether git ignores ``folder`` itself."""
    return _git(folder, "check-ignore", "-q", ".") is not None


def uncommitted(folder: str, files: Iterable[str]) -> list[str]:
    """Return those of ``files`` (absolute, in the work tree ``folder``) whose content no commit holds, sorted."""
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored")
    answer = _git(folder, "--literal-pathspecs", "status", *options, "--", *files)
    entries = answer.split(b"\0") if answer else []
    return sorted(os.path.join(folder, os.fsdecode(entry[3:])) for entry in entries if entry)


def _git(folder: str, *arguments: str) -> bytes | None:
    """Return what ``git`` prints in ``folder``; None when it fails."""
    environment = {key: value for key, value in os.environ.items() if key not in _HOOK_VARIABLES}
    command = ("git", "-C", folder, "-c", "core.fsmonitor=false", *arguments)
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
