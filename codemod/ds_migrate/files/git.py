"""The few questions this tool asks git. Where there is no git, or it refuses, the answers say so; nothing raises."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Set by git around its hooks: they would make git answer for the hook's repository whatever folder is asked about.
_HOOK_VARIABLES = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}
)


def work_tree(folder: str) -> str | None:
    """The nearest folder at or above ``folder`` (absolute) that holds a ``.git``, or None."""
    if os.path.lexists(f"{folder}/.git"):
        return folder
    parent = os.path.dirname(folder)
    return work_tree(parent) if parent != folder else None


def listed_files(folder: str) -> list[str] | None:
    """Files below ``folder`` that git tracks or would track, relative to it; nested repositories end in a slash."""
    answer = _git(folder, "ls-files", "-co", "--exclude-standard", "-z")
    return None if answer is None else [os.fsdecode(name) for name in answer.split(b"\0") if name]


def ignores(folder: str) -> bool:
    """Whether git ignores ``folder`` itself."""
    return _git(folder, "check-ignore", "-q", ".") is not None


def uncommitted(folder: str, files: Iterable[str]) -> list[str]:
    """Those of ``files`` (absolute, in the work tree ``folder``) whose content no commit holds, sorted."""
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored")
    answer = _git(folder, "--literal-pathspecs", "status", *options, "--", *files)
    entries = answer.split(b"\0") if answer else []
    return sorted(os.path.join(folder, os.fsdecode(entry[3:])) for entry in entries if entry)


def _git(folder: str, *arguments: str) -> bytes | None:
    """What ``git`` prints in ``folder``; None when it fails. ``subprocess`` takes longer to import than git to run."""
    environment = {key: value for key, value in os.environ.items() if key not in _HOOK_VARIABLES}
    command = ("git", "-C", folder, "-c", "core.fsmonitor=false", *arguments)
    source, sink = os.pipe()
    try:
        process = _spawn(command, environment, sink)
    except OSError:
        os.close(source)
        return None
    finally:
        os.close(sink)
    with open(source, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(process, 0)
    return answer if status == 0 else None


def _spawn(command: tuple[str, ...], environment: dict[str, str], sink: int) -> int:
    silence = os.open(os.devnull, os.O_RDWR)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, silence, 0), (os.POSIX_SPAWN_DUP2, sink, 1), (os.POSIX_SPAWN_DUP2, silence, 2)]
        return os.posix_spawnp(command[0], command, environment, file_actions=actions)
    finally:
        os.close(silence)
