"""Codes whose *review* findings a run accepts: everywhere, or in the files that match a pattern."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ds_migrate.findings import FileResult, Finding, Severity
from ds_migrate.rules.codes import Code

Accepted = list[tuple[Path, Finding]]


@dataclass(frozen=True)
class IgnoredCodes:
    """``--ignore``, ``--select`` and ``per-file-ignores``.

    A *blocked* finding or an error cannot be ignored, and a rule cannot be left out of a conversion: each would make it
    wrong without a sign.

    Attributes:
        everywhere: accepted in all files; such a finding leaves no marker, as with an ``ignore`` comment.
        in_files: (folder, pattern relative to it, codes accepted in files that match).
        shown: the only codes whose findings are shown, but for leftover markers; None for all. What is not shown
            leaves its marker.
    """

    everywhere: frozenset[str] = frozenset()
    in_files: tuple[tuple[str, str, frozenset[str]], ...] = ()
    shown: frozenset[str] | None = None

    def of(self, path: Path) -> frozenset[str]:
        """Return the codes that are accepted in a file (absolute, links resolved)."""
        if not self.in_files:
            return self.everywhere
        from ds_migrate.files.patterns import Selection

        matching = (codes for base, pattern, codes in self.in_files if Selection(base, [pattern])(str(path)))
        return self.everywhere.union(*matching)

    def take_from(self, results: Iterable[FileResult]) -> Accepted:
        """Remove ignored findings from results, whose paths are real ones, and return them with their files."""
        taken: Accepted = []
        for file in results:
            ignored = self.of(file.path)
            found = [finding for finding in file.findings if self._is_ignored(finding, ignored)]
            if found:
                file.findings = [finding for finding in file.findings if finding not in found]
                taken += [(file.path, finding) for finding in found]
        return taken

    def _is_ignored(self, finding: Finding, ignored: Collection[str]) -> bool:
        if finding.severity is not Severity.REVIEW:
            return False
        hidden = self.shown is not None and finding.code not in (*self.shown, Code.LEFTOVER_MARKER)
        return hidden or finding.code in ignored
