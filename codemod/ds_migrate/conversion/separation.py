"""Trials that stay as they are beside those of their group that are converted: where neither needs what changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import libcst as cst

from ds_migrate.conversion.values import ConversionUnit
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.builder import class_node
from ds_migrate.trial.top_level import TopLevel


def shared_change(files: Collection[SourceFile]) -> str:
    """Return the name of the first code that changed and is not free to; "" when there is none."""
    for file in files:
        for statement in file.module.body:
            if file.edits.is_touched(statement) and not (file.may_change(statement) or _is_import(statement)):
                return _name(file, statement)
    return ""


def names_left(file: SourceFile) -> set[str]:
    """Return the names of the classes and functions of a file that are left as they are."""
    return {node.name.value for node in file.left if isinstance(node, (cst.ClassDef, cst.FunctionDef))}


def can_separate(unit: ConversionUnit) -> bool:
    """Return whether trials of the unit may stay beside others: all its code is Python files as the user wrote them."""
    written = all(path.suffix == ".py" for path in unit.sources)
    return written and not unit.upgraded and not unit.library and unit.sources.keys() <= unit.writable


def separate(files: Mapping[Path, SourceFile], unit: ConversionUnit, staying: Sequence[TrialClass]) -> None:
    """Leave what only the staying trials need as it is, and let nothing change but what only those of the unit need."""
    if not staying:
        return
    code_of = TopLevel(files.values())
    to_convert, to_stay = _classes(files, unit.trials), _classes(files, staying)
    # What a trial needs, and what runs it with all that needs, but for the other trials themselves.
    for_converted = code_of.needed_by(code_of.users_of(to_convert, to_stay), to_stay)
    for_staying = code_of.needed_by(code_of.users_of(to_stay, to_convert), to_convert)
    # A trial that another one is built on, and what either may need without a name for it, or through other files.
    shared = code_of.needed_by(to_convert) & code_of.needed_by(to_stay)
    hidden = code_of.found_by_others() | code_of.definitions(unit.used_beside)
    shared |= code_of.needed_by(hidden, {*to_convert, *to_stay})
    free = for_converted - for_staying - shared
    for file in files.values():
        left = {node for node in for_staying - for_converted - shared if code_of.file_of[node] is file}
        file.leave(left, code_of.words_outside(free, file), free)


def _classes(files: Mapping[Path, SourceFile], trials: Sequence[TrialClass]) -> set[cst.CSTNode]:
    found = (class_node(files[trial.path], trial.facts.name, trial.facts.line) for trial in trials)
    return {node for node in found if node is not None}


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
    )


def _name(file: SourceFile, statement: cst.CSTNode) -> str:
    if isinstance(statement, (cst.ClassDef, cst.FunctionDef)):
        return statement.name.value
    return f"{file.path.name}, line {file.position(statement)[0]}"
