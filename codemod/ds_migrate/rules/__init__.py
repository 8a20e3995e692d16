"""The rules: one module each, found by being here, applied in the order of their codes.

A rule module has ``CODE``, ``NAME`` and either ``apply(ctx)`` (called once a trial) or ``apply_file(file, contexts)``
(called once a file of a family, after every trial of it). Its docstring is its documentation.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Rule:
    """``doc`` is the module's docstring: one summary line, then the headings of the rule pages."""

    code: str
    name: str
    doc: str
    apply: Callable[[Any], None] | None = None
    apply_file: Callable[[Any, Sequence[Any]], None] | None = None

    @property
    def summary(self) -> str:
        return self.doc.strip().partition("\n")[0]


@cache
def conversion_rules() -> tuple[Rule, ...]:
    """The rules that rewrite Python, in the order in which they are applied."""
    found = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "CODE"):
            found.append(
                Rule(
                    module.CODE,
                    module.NAME,
                    module.__doc__ or "",
                    getattr(module, "apply", None),
                    getattr(module, "apply_file", None),
                )
            )
    return tuple(sorted(found, key=lambda rule: rule.code))


def all_rules() -> tuple[Rule, ...]:
    """Every code a report can hold, those of files, experiment configs and DeepSpeed configs included."""
    from ds_migrate.rules import config_codes
    from ds_migrate.rules.file_codes import FILE_CODES

    others = [Rule(r.code, r.name, r.doc) for r in FILE_CODES] + [
        Rule(r.code, r.name, r.doc) for r in config_codes.RULES
    ]
    return tuple(sorted((*conversion_rules(), *others), key=lambda rule: rule.code))
