"""The rules that rewrite Python: one module each, found by being here, applied in the order of their codes.

A rule module has ``CODE`` and ``apply(ctx)``, called once a trial, or ``apply_file(file, contexts)``, called once
a file of a family after every trial of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ds_migrate import rules
from ds_migrate.rules.codes import Code


@dataclass(frozen=True)
class Rule:
    """A rule that rewrites Python."""

    code: Code
    apply: Callable[[Any], None] | None = None
    apply_file: Callable[[Any, Sequence[Any]], None] | None = None


@cache
def conversion_rules() -> tuple[Rule, ...]:
    """Return the rules that rewrite Python, in the order in which they are applied."""
    found = []
    for info in pkgutil.iter_modules(rules.__path__):
        if info.name.startswith("dsm"):
            module = importlib.import_module(f"{rules.__name__}.{info.name}")
            found.append(Rule(module.CODE, getattr(module, "apply", None), getattr(module, "apply_file", None)))
    return tuple(sorted(found, key=lambda rule: rule.code))
