"""Calls that read what rank 0 writes, where no code of the program leads from one to the other, but a caller may."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.files.file_readers import Read
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code

_ADVICE = "let all ranks wait between the two: wait_for_all_ranks()"


def note_of_callers(message: str, reads: Iterable[Read], facts: LoopFacts) -> Iterator[Note]:
    """Yield one note for all these calls, less those that never run, which names the others beside the first.

    Args:
        message: of each of them.
    """
    found = [(file, call) for file, call in dict.fromkeys(reads) if not is_idle(call, file, facts)]
    if not found:
        return
    places = [f"{file.path.name}:{file.reported_position(call)[0]}" for file, call in found[1:]]
    also = f"; so in {', '.join(places)}" if places else ""
    yield Note(Code.PLAIN_RANK_ZERO, *found[0], f"{message}{also}", _ADVICE)
