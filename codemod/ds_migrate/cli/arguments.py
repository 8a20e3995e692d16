"""The arguments of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ds_migrate.files.ignored_codes import IgnoredCodes

STDIN = "-"


@dataclass
class Arguments:
    """The arguments of a run, with their defaults.

    ``repeated`` are the options that the next command must repeat, ``patterns`` triples (base, include, exclude) that
    limit the run, ``ignored`` what ``select``, ``ignore`` and ``per_file_ignores`` mean.
    """

    paths: Sequence[str] = ()
    write: bool = False
    interactive: bool = False
    diff: bool = False
    check: bool = False
    undo: bool = False
    list_rules: bool = False
    explain: str | None = None
    completion: str | None = None
    plain: bool = False
    target: str = "runtime"
    zero: int | None = None
    precision: str | None = None
    offload: str = "none"
    optimizer_in_config: bool = False
    config_style: str = "inline"
    runtime: bool = True
    include: list[str] | None = None
    exclude: list[str] | None = None
    follow: list[str] | None = None
    select: list[str] | None = None
    ignore: list[str] | None = None
    per_file_ignores: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ignored: IgnoredCodes = field(default_factory=IgnoredCodes)
    stdin_filename: str | None = None
    jobs: int | None = None
    format: str = "text"
    verbose: bool = False
    memory: bool = False
    view: str = "auto"
    color: str = "auto"
    theme: str = "auto"
    patterns: Sequence[tuple[str, Sequence[str] | None, Sequence[str] | None]] = field(default_factory=list)
    repeated: Sequence[str] = field(default_factory=list)

    @property
    def reads_stdin(self) -> bool:
        return STDIN in self.paths

    @property
    def only_prints(self) -> bool:
        """Return whether the run has nothing to do with a conversion."""
        return bool(self.undo or self.list_rules or self.explain or self.completion)
