"""The command that adds the runtime to this installation: where the package came from decides it."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

_NAME = "ds-migrate[runtime]"


def install_command() -> str:
    """Return what to type for torch and DeepSpeed; pip recorded what the package was installed from."""
    try:
        recorded = json.loads(metadata.distribution("ds-migrate").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        recorded = {}
    return command_for(recorded)


def command_for(recorded: dict[str, object]) -> str:
    """Return the command for the record of an installation, ``direct_url.json`` (PEP 610); empty is a package index."""
    url = str(recorded.get("url", ""))
    if not url:
        return f"pip install {shlex.quote(_NAME)}"
    vcs = recorded.get("vcs_info")
    if isinstance(vcs, dict):
        source = f"{vcs.get('vcs')}+{url}@{vcs.get('commit_id')}"
        return f"pip install {shlex.quote(f'{_NAME} @ {source}')}"
    if "dir_info" not in recorded:
        return f"pip install {shlex.quote(f'{_NAME} @ {url}')}"
    clone = Path(unquote(urlsplit(url).path))
    constraints = f"-c {shlex.quote(str(clone / 'constraints.txt'))} " if (clone / "constraints.txt").is_file() else ""
    return f"pip install {constraints}{shlex.quote(f'{clone}[runtime]')}"
