"""Files that rank 0 alone writes, as their output is guarded: ranks wait before they read them."""

from __future__ import annotations

from collections.abc import Iterable

from ds_migrate.plain.dataflow.by_rank.rank_conditions import runs_in_turn
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.files.file_readers import FileReaders, Write
from ds_migrate.plain.ranks.files.path_users import users_of, users_of_folder
from ds_migrate.plain.ranks.files.waits import loads_weights
from ds_migrate.plain.ranks.rank_guards import NOWHERE, is_guarded
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code


def wait_for_written(writes: Iterable[Write], readers: FileReaders, facts: LoopFacts) -> list[Note]:
    """Let ranks wait before they read what rank 0 alone writes; return where they cannot."""
    notes: list[Note] = []
    listing = set[int]()
    for file, call, path in writes:
        if runs_in_turn(call, file):
            continue  # the others come when it is written
        is_rank_0s = is_guarded(call, file)
        write = file, call, path
        users = users_of(write, readers, facts.flow)
        for read in [*readers.of(call, path, file), *users] if is_rank_0s else ():
            if loads_weights(read[1], read[0], facts.flow):
                continue  # files/waits.py looks at these
            if readers.can_wait(read):
                readers.wait(read)
            elif not readers.wait_above(read, (file, call)):
                message = "a rank may read this file before rank 0 has written it"
                advice = "let all ranks wait before they read it: wait_for_all_ranks()"
                notes.append(Note(Code.PLAIN_RANK_ZERO, *read, message, advice))
        is_rank_0s |= file.edits.is_done(call, NOWHERE)
        likely = [*users, *readers.likely_of(write), *users_of_folder(write, readers, facts.flow)]
        for read in likely if is_rank_0s else ():
            if readers.can_wait(read) and not loads_weights(read[1], read[0], facts.flow):
                readers.wait(read)
        for read in readers.lists_of(write) if is_rank_0s else ():
            if readers.can_wait(read):
                readers.wait(read)
            elif (function := id(read[0].function(read[1]) or read[0])) not in listing and not readers.wait_above(
                read, (file, call)
            ):
                listing.add(function)
                message = "a rank may list this folder before rank 0 has written its files"
                advice = "let all ranks wait before they list it: wait_for_all_ranks()"
                notes.append(Note(Code.PLAIN_RANK_ZERO, *read, message, advice))
    return notes
