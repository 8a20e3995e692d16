"""Upgrade the old trials of a project: the new content of each of their files, or why a trial stays as it is."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Set
from pathlib import Path

from ds_migrate.findings import Finding, Severity
from ds_migrate.project.trial_class import TrialClass
from ds_migrate.project.trials import Project
from ds_migrate.rules.codes import Code
from ds_migrate.upgrade.family import Family, Key, OldClass
from ds_migrate.upgrade.functions import all_parameters
from ds_migrate.upgrade.imports import upgrade_imports
from ds_migrate.upgrade.module_edits import ModuleEdits
from ds_migrate.upgrade.problem import UpgradeError
from ds_migrate.upgrade.result import Upgrade, files_with_private_names
from ds_migrate.upgrade.transitional_names import upgrade_names
from ds_migrate.upgrade.wrapping import upgrade_family


def upgrade(project: Project, read: Callable[[Path], bytes | None], words: Set[str]) -> Upgrade:
    """Rewrite every old trial of the project for today's API.

    ``words``: the words of its experiment configs.
    """
    result = Upgrade()
    files: dict[Path, ModuleEdits] = {}
    imported: set[Path] = set()
    for members in _families([t for t in project.trials.values() if t.kind == "old-api"]):
        own = {path for t in members for path, _ in (t.key, *t.bases)}
        own |= set(_files_with_pedl(project, own, read))
        for path in own:
            files.setdefault(path, ModuleEdits(read(path) or b""))
        before = {path: edits.state for path, edits in files.items()}
        family = _family(members, files)
        try:
            upgrade_family(family, words)
            for path in sorted(own - imported):
                upgrade_imports(files[path], family.context or "context")
            for path in own:
                _check(files[path])
            imported |= own
        except UpgradeError as error:
            for path, state in before.items():
                files[path].state = state
            for trial in members:
                line = error.line if own == {trial.path} else trial.facts.line
                result.problems[trial.key] = Finding(
                    Code.OLD_API, Severity.BLOCKED, line, error.message, trial=trial.facts.name, help=error.help
                )
    for path in files_with_private_names(project, read):
        files.setdefault(path, ModuleEdits(read(path) or b""))
        upgrade_names(files[path], _contexts(files[path].tree))
    result.modules = {path: edits.result() for path, edits in files.items() if edits.is_changed}
    return result


def _files_with_pedl(project: Project, paths: Set[Path], read: Callable[[Path], bytes | None]) -> Iterator[Path]:
    """Yield the files that these import, directly or through others, and that import from ``pedl``."""
    queue, seen = list(paths), set(paths)
    while queue:
        path = queue.pop()
        facts = project.facts(path)
        for imported in facts.imports if facts is not None else ():
            target = project.imported_file(path, imported)
            if target is not None and target not in seen:
                seen.add(target)
                queue.append(target)
                found = project.facts(target)
                if b"pedl" in (read(target) or b"") and found is not None and found.imports_from("pedl"):
                    yield target


def _families(trials: list[TrialClass]) -> list[list[TrialClass]]:
    """Return the trials in groups that share classes."""
    groups: list[tuple[set[Key], list[TrialClass]]] = []
    for trial in trials:
        keys = {trial.key, *trial.bases}
        near = [group for group in groups if group[0] & keys]
        groups = [group for group in groups if group not in near]
        groups.append((keys.union(*(k for k, _ in near)), [*(t for _, ts in near for t in ts), trial]))
    return [members for _, members in groups]


def _family(members: list[TrialClass], files: dict[Path, ModuleEdits]) -> Family:
    lineages: dict[Key, tuple[Key, ...]] = {t.key: t.bases for t in members}
    for trial in members:
        for index, key in enumerate(trial.bases):
            lineages.setdefault(key, trial.bases[index + 1 :])
    classes = {}
    for (path, name), lineage in lineages.items():
        node = next(n for n in ast.walk(files[path].tree) if isinstance(n, ast.ClassDef) and n.name == name)
        classes[path, name] = OldClass((path, name), node, files[path], lineage)
    return Family(classes)


def _contexts(tree: ast.Module) -> frozenset[str]:
    """Return what the classes of a file call their context: the first parameter of ``__init__``, and ``context``."""
    inits = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    return frozenset({"context", *(all_parameters(init)[1].arg for init in inits if len(all_parameters(init)) == 2)})


def _check(edits: ModuleEdits) -> None:
    """Check that the upgraded module parses and has every comment.

    Raises:
        UpgradeError: it does not.
    """
    try:
        after = edits.result().data
        ast.parse(after)
    except (ValueError, SyntaxError) as error:
        raise UpgradeError(
            edits.tree, f"the upgraded file would not parse: {error}", "wrap model and optimizer by hand"
        ) from error
    lost = _comments(edits.data) - _comments(after)
    if lost:
        raise UpgradeError(
            edits.tree, f"a comment would be lost: {next(iter(lost))}", "move the comment above its method"
        )


def _comments(data: bytes) -> Counter[str]:
    found = tokenize.tokenize(io.BytesIO(data).readline)
    return Counter(token.string for token in found if token.type == tokenize.COMMENT)
