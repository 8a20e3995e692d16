"""The outcomes of findings of each code, and the groups that codes are listed in."""

from __future__ import annotations

from collections.abc import Iterator

from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of

# Digit of the hundreds -> title, what the codes are about.
GROUPS = {
    "0": ("Files and trials", "What is recognised, refused, or left alone"),
    "1": ("Imports", "Names that move"),
    "2": ("The engine", "Models, optimizers, schedules, clipping"),
    "3": ("Training and evaluation", "What happens to each batch"),
    "4": ("Experiment configs", "The YAML beside the code"),
    "5": ("DeepSpeed configs", "The JSON that is written"),
    "6": ("Plain training loops", "Programs without a trial, with --plain"),
}
# Pages with blocked messages mean "blocked" too.
_OUTCOMES = {
    Severity.CONVERTED: """
        DSM011 DSM101 DSM201 DSM202 DSM203 DSM204 DSM205 DSM301 DSM302 DSM303 DSM306 DSM310 DSM312 DSM320 DSM330 DSM345
        DSM351 DSM353 DSM390 DSM401 DSM402 DSM403 DSM404 DSM405 DSM407 DSM501 DSM502 DSM507 DSM508 DSM512
        DSM601 DSM602 DSM603 DSM604 DSM605 DSM606 DSM607 DSM610 DSM611 DSM612 DSM613 DSM614 DSM615
        DSM616""",
    Severity.REVIEW: """
        DSM005 DSM006 DSM011 DSM012 DSM013 DSM015 DSM016 DSM017 DSM018 DSM101 DSM201 DSM202 DSM205 DSM301 DSM303 DSM306
        DSM310 DSM330 DSM340 DSM350 DSM352 DSM353 DSM390 DSM401 DSM402 DSM404 DSM405 DSM406 DSM407 DSM408 DSM409
        DSM410 DSM411 DSM412 DSM413 DSM415 DSM416 DSM503 DSM504 DSM510 DSM511 DSM512 DSM601 DSM602 DSM603 DSM604 DSM607
        DSM610 DSM611 DSM612 DSM613 DSM614 DSM615 DSM616""",
    Severity.ERROR: "DSM001 DSM002 DSM003 DSM004 DSM411 DSM505 DSM508",
}
REVIEWED = frozenset(_OUTCOMES[Severity.REVIEW].split())


def outcomes_of(code: Code) -> list[Severity]:
    """Return what a finding with this code can be; nothing for a code that only machine formats show."""
    found = [severity for severity, codes in _OUTCOMES.items() if code.value in codes.split()]
    return [*found, Severity.BLOCKED] if page_of(code).blocked else found


def grouped_codes() -> Iterator[tuple[str, str, list[Code]]]:
    """Yield the title of each group, what it is about, and its codes."""
    for digit, (title, about) in GROUPS.items():
        yield title, about, [code for code in Code if code.group == digit]
