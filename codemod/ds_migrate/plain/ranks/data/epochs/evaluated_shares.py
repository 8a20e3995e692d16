"""Loops that evaluate what a loader gives that trains too, or write it: each rank has its share alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.library_calls import is_of_library
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.agreement.buffer_writes import UPDATES
from ds_migrate.plain.ranks.data.epochs.share_statistics import comprehensions, sums_up, uses
from ds_migrate.plain.ranks.rank_zero.output_calls import OutputCalls
from ds_migrate.plain.recognition.batches.loader_names import names_in_loop
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, iterator_argument, last_statement, walk
from ds_migrate.syntax.source import SourceFile

_EVALUATED = "this evaluates a rank's share alone: the loader trains too, and shard() divides it"
_REDUCE = "loop over a separate loader of all data here, or reduce the metrics over ranks"
_GIVEN = "this gives a library the loader that trains: it gets a rank's share alone, as shard() divides it"
_RECORDS = frozenset({"executemany", "insert_many", "insert_one", "to_sql"})
_CHANGES = re.compile(r"\s*(INSERT|REPLACE|UPDATE)\b", re.IGNORECASE)


def evaluated_shares(
    makers: Collection[int], names: Collection[tuple[int, str]], files: list[SourceFile], plan: ProgramPlan
) -> Iterator[Note]:
    """Yield a note for each loop that sums up or writes what a trained model gives for a share, and trains nothing.

    Args:
        makers: the calls whose loaders are divided, by identity.
        names: those by which other loaders are divided, with the identity of the statement that sets each.
        files: those that may run with the loops that train.
        plan: of the program.
    """
    facts, calls = plan.facts, OutputCalls(plan)
    modules = frozenset(value for site in facts.sites for value in site.of)
    training = training_nodes(facts) if makers or names else set()
    drawn_from = _drawn_from(facts.flow) if makers else set()
    for file in files if makers or names else ():
        for loop in file.nodes(cst.For):
            loaders = [facts.flow.node(v) for v in loaders_of(loop.iter, file, facts.flow)]
            if not any(id(maker) in makers or _has_name(loop, file, maker, names, facts) for maker in loaders):
                continue
            if any(id(part) in training for part in walk(loop.body)) or not uses(modules, loop.body, file, facts.flow):
                continue
            if sums_up(loop, file):
                message, advice = _EVALUATED, _REDUCE
            elif not _looks_at_one_batch(loop) and _writes(loop.body, file, calls, facts.flow):
                message = "this writes what a rank's share gives: the loader trains too, and shard() divides it"
                advice = "loop over a separate loader of all data here"
            else:
                continue
            yield Note(Code.PLAIN_SAMPLER, file, loop, message, advice)
        for comp in comprehensions(file):
            drawn = [facts.flow.node(v) for v in loaders_of(comp.for_in.iter, file, facts.flow)]
            if not any(id(maker) in makers for maker in drawn) or any(id(part) in training for part in walk(comp)):
                continue
            if uses(modules, comp, file, facts.flow):
                yield Note(Code.PLAIN_SAMPLER, file, comp, _EVALUATED, _REDUCE)
        for call in file.nodes(cst.Call):
            given = {v.key for arg in call.args for v in of_kind(facts.flow.values(arg.value, file), Kind.LOADER)}
            is_other = facts.flow.is_call_of(call, file, UPDATES) or id(call) in drawn_from
            if given & set(makers) and not is_other and is_of_library(call, file, facts.flow):
                yield Note(Code.PLAIN_SAMPLER, file, call, _GIVEN, "give it a separate loader of all data here")


def _looks_at_one_batch(loop: cst.For) -> bool:
    return isinstance(last_statement(loop.body), cst.Break)


def _drawn_from(flow: Flow) -> set[int]:
    """Return what a program makes to run over it or to draw from it, by identity: ``tqdm(loader)``."""
    drawn = [(file, node.iter) for file, node in flow.nodes(cst.For, cst.CompFor)]
    drawn += [(file, part) for file, call in flow.nodes(cst.Call) if (part := iterator_argument(call, "next"))]
    parts = [(file, part) for file, node in drawn for part in walk(node) if isinstance(part, cst.BaseExpression)]
    return {value.key for file, part in parts for value in of_kind(flow.values(part, file), Kind.OBJECT)}


def _writes(body: cst.CSTNode, file: SourceFile, calls: OutputCalls, flow: Flow, depth: int = 2) -> bool:
    """Return whether code, or a function that it calls, writes files, lines of one, or rows of a database."""
    found: list[cst.Call] = file.nodes(cst.Call, below=body)
    return any(calls.writes(call, file) or _records(call, file) for call in found) or (
        depth > 0
        and any(
            _writes(flow.node(function), flow.file(function), calls, flow, depth - 1)
            for call in found
            for function in of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
        )
    )


def _records(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a call adds rows to a database, or changes some: ``cursor.execute("INSERT INTO ...")``."""
    name = called_name(call)
    texts = file.nodes(cst.SimpleString, below=call.args[0]) if name == "execute" and call.args else ()
    return name in _RECORDS or any(_CHANGES.match(text.raw_value) for text in texts)


def _has_name(
    loop: cst.For, file: SourceFile, maker: cst.CSTNode, names: Collection[tuple[int, str]], facts: LoopFacts
) -> bool:
    """Return whether a loop has loaders of a call by one of these names."""
    found = names_in_loop(loop, file, maker, facts) if names and isinstance(maker, cst.Call) else ()
    return any((id(one.statement), one.text) in names for one in found)


def training_nodes(facts: LoopFacts) -> set[int]:
    """Return the backward passes and steps, and the calls that lead to one, by identity."""
    places = (*facts.operations.steps, *facts.operations.backwards)
    found = {id(place.node) for place in places}
    functions = [place.function for place in places if place.function is not None]
    seen = {id(function) for function in functions}
    for function in functions:  # grows: the functions around the calls
        for file, call in facts.flow.callers.of(function):
            found.add(id(call))
            caller = file.function(call)
            if caller is not None and id(caller) not in seen:
                seen.add(id(caller))
                functions.append(caller)
    return found
