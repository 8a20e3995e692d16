"""Loaders as items of a dict: ``loaders["train"]``, which can be divided behind the statement that makes the dict."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.containers.mappings import is_mapping_call, literal_index, named_items
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.batches.loader_rounds import LoaderName
from ds_migrate.plain.recognition.batches.phases import phase_around
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.nodes import code, dotted, elements, indices_of, parameter, targets, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 4  # functions that a dict is passed to


def item_name(node: cst.Subscript, file: SourceFile, inner: cst.CSTNode, facts: LoopFacts) -> LoaderName | None:
    """Return the item of a dict by its name, behind the one statement that makes the dict; None where several may.

    Args:
        inner: what runs for each batch of the item.
    """
    key = _key(node, inner, file)
    return _item_of(node.value, key, file, inner, facts, _DEPTH) if key else None


def _item_of(
    held: cst.BaseExpression, key: str, file: SourceFile, inner: cst.CSTNode, facts: LoopFacts, depth: int
) -> LoaderName | None:
    """Return the item of a dict that a name holds, which may be an argument of its function."""
    mappings = facts.flow.values(held, file)
    if not isinstance(held, (cst.Name, cst.Attribute)) or of_kind(mappings, Kind.MAPPING) != mappings or not depth:
        return None
    scope = facts.flow.scopes(file).owner(held.value, held) if isinstance(held, cst.Name) else None
    assigned = list(assignments(held, scope, file, facts))
    if isinstance(scope, cst.FunctionDef) and parameter(scope, dotted(held)) is not None:
        calls = facts.flow.callers.of(scope)
        given = facts.flow.given(calls[0][1], scope, str(dotted(held)), calls[0][0]) if len(calls) == 1 else None
        is_given = given is not None and not given.star and not assigned
        return _item_of(given.value, key, *calls[0], facts, depth - 1) if given is not None and is_given else None
    if len(assigned) != 1:
        return None
    ((other, assign, text),) = assigned
    statement = other.parent(assign)
    filling = _filling_loop(assign, text, key, other, facts)
    if filling is not None and phase_around(inner, file) is None:  # else the loop divides that of the phase itself
        return LoaderName(other, filling, f'{text}["{key}"]')
    if isinstance(assign.value, cst.Dict):
        statement = _setting(assign, text, key, other)
    is_whole = isinstance(assign.value, (cst.Call, cst.Dict, cst.DictComp)) and dotted(assign.targets[0].target) == text
    if not is_whole or not isinstance(statement, cst.SimpleStatementLine):
        return None
    return LoaderName(other, statement, f'{text}["{key}"]')


def _setting(assign: cst.Assign, text: str, key: str, file: SourceFile) -> cst.CSTNode | None:
    """Return the one statement that sets an item of a dict, which makes the dict or follows it in the same block."""
    items = [node for node in file.nodes(cst.Subscript) if dotted(node.value) == text and literal_index(node) == key]
    setting = [file.statement(item) for item in items if isinstance(file.parent(item), cst.AssignTarget)]
    own = named_items(assign.value) or {}
    made = [file.statement(assign)] if key in own else []
    block = file.parent(file.statement(assign))
    found = [*made, *setting]
    return found[0] if len(found) == 1 and file.parent(found[0]) is block else None


def _filling_loop(assign: cst.Assign, text: str, key: str, file: SourceFile, facts: LoopFacts) -> cst.For | None:
    """Return the loop over texts that fills an empty dict, an item for each: ``loaders[split] = DataLoader(...)``.

    None where it uses the dict besides, or asks for the length of a loader, which is not divided there yet.
    """
    is_empty = (isinstance(assign.value, cst.Dict) and not assign.value.elements) or (
        isinstance(assign.value, cst.Call) and is_mapping_call(assign.value) and not assign.value.args
    )
    if not is_empty:
        return None
    scope, block = file.function(assign), file.parent(file.statement(assign))
    uses = file.spelled(text, below=scope or file.module)
    loops = [
        loop
        for loop in file.nodes(cst.For, below=block)
        if file.parent(loop) is block and _fills(loop, text, key, file)
    ]
    if len(loops) != 1 or sum(_is_item_set(use, file) for use in uses) != 1:
        return None
    inside = file.spelled(text, below=loops[0])
    lengths = [call for call in file.nodes(cst.Call, below=loops[0]) if dotted(call.func) == "len" and call.args]
    is_counted = any(of_kind(facts.flow.values(call.args[0].value, file), Kind.LOADER) for call in lengths)
    return None if len(inside) != 1 or is_counted else loops[0]


def _fills(loop: cst.For, text: str, key: str, file: SourceFile) -> bool:
    """Return whether each round of a loop over texts sets the item of its text, one of which is the key."""
    texts = loop.iter.elements if isinstance(loop.iter, (cst.List, cst.Tuple)) and are_texts(loop.iter) else ()
    if key not in [code(element.value).strip("\"'") for element in texts]:
        return False
    sets = [line for line in file.nodes(cst.Assign, below=loop.body) if file.parent(file.statement(line)) is loop.body]
    items = [target for line in sets for target in targets(line) if isinstance(target, cst.Subscript)]
    return any(
        dotted(item.value) == text and [dotted(index) for index in indices_of(item)] == [dotted(loop.target)]
        for item in items
    )


def _is_item_set(use: cst.CSTNode, file: SourceFile) -> bool:
    item = file.parent(use)
    return isinstance(item, cst.Subscript) and item.value is use and isinstance(file.parent(item), cst.AssignTarget)


def _key(node: cst.Subscript, inner: cst.CSTNode, file: SourceFile) -> str:
    """Return the text by which an item is named: of ``loaders["train"]``, and where ``phase`` is that in
    ``loaders[phase]``."""
    index = next(iter(indices_of(node)), None)
    phase = phase_around(inner, file)
    if phase is None or dotted(index) != phase[0]:
        return str(index.evaluated_value) if isinstance(index, cst.SimpleString) else ""
    loops = (outer for outer in file.ancestors(inner) if isinstance(outer, cst.For))
    phases = [loop.iter for loop in loops if dotted(loop.target) == phase[0] and are_texts(loop.iter)]
    return phase[1] if any(code(part).strip("\"'") == phase[1] for over in phases for part in walk(over)) else ""


def are_texts(node: cst.BaseExpression) -> bool:
    """Return whether a node is a list of texts, as they are written."""
    elements = node.elements if isinstance(node, (cst.List, cst.Tuple)) else ()
    return bool(elements) and all(isinstance(element.value, cst.SimpleString) for element in elements)


def assignments(
    node: cst.Name | cst.Attribute, scope: cst.CSTNode | None, file: SourceFile, facts: LoopFacts
) -> Iterator[tuple[SourceFile, cst.Assign, str]]:
    """Yield the assignments of a name or attribute, alone or in a tuple, with the name as it is written there."""
    variable = facts.flow.variable(node, file)
    for other in [file] if isinstance(node, cst.Name) else facts.flow.files.values():
        for assign in other.nodes(cst.Assign, below=scope if scope is not None else other.module):
            for target in targets(assign):
                for each in elements(target):
                    if isinstance(each, type(node)) and facts.flow.variable(each, other) == variable is not None:
                        yield other, assign, str(dotted(each))
