"""What a converted file must be before anyone sees it: parsed, commented as before, and without a PyTorchTrial."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections import Counter
from dataclasses import dataclass

from ds_migrate import detect

# Asked of a PyTorchTrialContext only; wrap_lr_scheduler is not among them, the runtime keeps it.
_LEFTOVERS = frozenset({"wrap_model", "wrap_optimizer", "step_optimizer", "wrap_scaler", "configure_apex_amp"})


@dataclass(frozen=True)
class Problem:
    """``left``: something of PyTorchTrial would remain, which a person can take out; else the tool itself failed."""

    message: str
    line: int = 1
    left: bool = False


def check(before: bytes, after: bytes) -> Problem | None:
    """What is wrong with the converted file, None when nothing is."""
    try:
        tree = ast.parse(after)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            compile(tree, "converted", "exec", dont_inherit=True)  # finds what parsing does not: a keyword given twice
    except (SyntaxError, ValueError) as error:
        return Problem(f"the converted file does not compile: {error}")
    facts = detect.module_facts(after)
    left = [c for c in facts.classes if detect.PYTORCH_TRIAL in c.bases]
    if left:
        return Problem(f"{left[0].name} would still be a PyTorchTrial", left[0].line)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _LEFTOVERS:
            line = _line_before(before, node.attr)
            return Problem(f"a use of {node.attr} that cannot be followed would be left", line, left=True)
    # Tokenizing costs as much as all the rest, and nearly always no line with a comment has changed at all.
    lost = _commented_lines(before) - _commented_lines(after) and _comments(before) - _comments(after)
    if lost:
        return Problem(f"a comment would be lost: {next(iter(lost))}")
    return None


def _line_before(before: bytes, attr: str) -> int:
    """The first line of the original that uses the attribute."""
    for node in ast.walk(ast.parse(before)):
        if isinstance(node, ast.Attribute) and node.attr == attr:
            return node.lineno
    return 1


def _commented_lines(data: bytes) -> Counter[bytes]:
    return Counter(line.strip() for line in data.splitlines() if b"#" in line)


def _comments(data: bytes) -> Counter[str]:
    try:
        return Counter(t.string for t in tokenize.tokenize(io.BytesIO(data).readline) if t.type == tokenize.COMMENT)
    except (SyntaxError, tokenize.TokenError):
        return Counter()
