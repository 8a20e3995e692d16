"""The reasons for which a trial cannot be rewritten for today's API."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(eq=False)
class UpgradeError(Exception):
    """A trial cannot be rewritten: ``message`` names the reason, ``help`` the smallest change that would let it."""

    node: ast.AST
    message: str
    help: str

    @property
    def line(self) -> int:
        """The line of the original."""
        return getattr(self.node, "lineno", 1)
