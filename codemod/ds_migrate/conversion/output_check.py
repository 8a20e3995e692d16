"""Checks of a converted file before anyone sees it: it parses, keeps its comments and has no PyTorchTrial."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ds_migrate.project import module_index
from ds_migrate.rules.codes import Code

# Asked of a PyTorchTrialContext only; wrap_lr_scheduler is not among them, the runtime keeps it.
_LEFTOVERS = re.compile(rb"\b(?:wrap_model|wrap_optimizer|step_optimizer|wrap_scaler|configure_apex_amp)\b")


@dataclass(frozen=True)
class Problem:
    """A reason not to use a converted file.

    ``code``: FAILED_CHECK when the tool itself failed, CONTEXT_API when something of PyTorchTrial would remain that a
    person can take out, UNREADABLE_SOURCE when the original does not compile either.
    """

    message: str
    line: int = 1
    code: Code = Code.FAILED_CHECK


def check(before: bytes, after: bytes, left: Collection[str] = ()) -> Problem | None:
    """Return what is wrong with the converted file, None when nothing is. ``left``: names of the classes and functions
    that keep what is PyTorchTrial's."""
    error = _compile_error(after)
    if error is not None:
        own = _compile_error(before)  # as a return outside of a function, which parsing does not find
        if own is not None:
            return Problem(f"does not compile: {own.msg}", own.lineno or 1, Code.UNREADABLE_SOURCE)
        return Problem(f"the converted file does not compile: {error}")
    # Each of these looks at the bytes first: nearly always that settles it, at a hundredth of the cost.
    if b"PyTorchTrial" in after:
        classes = [c for c in module_index.module_facts(after).classes if c.name not in left]
        same = [c for c in classes if module_index.PYTORCH_TRIAL in c.bases]
        if same:
            return Problem(f"{same[0].name} would still be a PyTorchTrial", same[0].line)
    words = {word.decode() for word in _LEFTOVERS.findall(after)}
    for attr in _attributes(after, left) if words else ():
        if attr.attr in words:
            line = next((a.lineno for a in _attributes(before, left) if a.attr == attr.attr), 1)
            return Problem(f"a use of {attr.attr} that cannot be followed would be left", line, Code.CONTEXT_API)
    lost = _line_ends(before) - _line_ends(after) and _comments(before) - _comments(after)
    if lost:
        return Problem(f"a comment would be lost: {next(iter(lost))}")
    return None


def _compile_error(data: bytes) -> SyntaxError | None:
    """Return what keeps the module from compiling, such as a keyword given twice, which parsing does not find."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            # Cells of a notebook may await.
            compile(data, "converted", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxError(str(error))
    return None


def _attributes(data: bytes, left: Collection[str]) -> Iterator[ast.Attribute]:
    """Yield the attributes that are read; one that is set belongs to a stand-in for the context."""
    for statement in ast.parse(data).body:
        if not (isinstance(statement, (ast.ClassDef, ast.FunctionDef)) and statement.name in left):
            nodes = ast.walk(statement)
            yield from (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))


def _line_ends(data: bytes) -> Counter[bytes]:
    """Return what follows the first ``#`` of each line: every comment, with luck nothing else."""
    return Counter(line.partition(b"#")[2].strip() for line in data.splitlines() if b"#" in line)


def _comments(data: bytes) -> Counter[str]:
    try:
        return Counter(t.string for t in tokenize.tokenize(io.BytesIO(data).readline) if t.type == tokenize.COMMENT)
    except (SyntaxError, tokenize.TokenError):
        return Counter()
