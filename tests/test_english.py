"""Messages, pages and documentation are in the English that readers of torch's documentation expect."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Words of private idiom, with what to write instead.
IDIOM = {
    r"cannot be told|cannot tell": "cannot determine",
    r"\b(is|are) (told|said)\b": "is reported, logged or warned about",
    r"\bsays so\b": "reports it",
    r"\bgoes on\b|\bgo on\b|\bwent on\b": "continues, resumes",
    r"\bstands in\b": "replaces, is in",
    r"\bof (its|their|one's) own\b": "separate",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bwhat becomes of\b": "the result of",
    r"\bwhat it is given\b": "its arguments",
    r"\btake (it|that|the \w+) (out|back)\b": "remove, undo",
}
WORST = re.compile("|".join(f"(?:{pattern})" for pattern in IDIOM), re.IGNORECASE)
SPEECH = re.compile(r"\b(say|says|said|tell|tells|told)\b", re.IGNORECASE)  # report, warn, log, name, record
OPENING = re.compile(r"(What|Whether|Where|How|When|Which|Who)\b")
PYTHON = ("codemod", "runtime")
TEXTS = ("codemod/ds_migrate/rules/catalog/*.md", "docs/**/*.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The definitions and strings of a module; several tests look at each."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Expr, ast.Constant)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings."""
    nodes = nodes_of(path)
    docstrings = {id(n.value) for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The text of a Markdown file paragraph by paragraph, without its blocks of code."""
    text = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), path.read_text("utf-8"), flags=re.M | re.S)
    line = 1
    for paragraph in text.split("\n\n"):
        yield line, paragraph
        line += paragraph.count("\n") + 2


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in nodes_of(path):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def offenders(path: Path) -> list[str]:
    found = messages(path) if path.suffix == ".py" else prose(path)
    name = path.relative_to(ROOT).as_posix()
    return [f"{name}:{line}: {m[0]!r}" for line, text in found for m in WORST.finditer(" ".join(text.split()))]


def files() -> list[Path]:
    python = [path for folder in PYTHON for path in sorted((ROOT / folder).rglob("*.py"))]
    return python + [path for pattern in TEXTS for path in sorted(ROOT.glob(pattern))]


def test_messages_and_documents_hold_no_private_idiom() -> None:
    found = [offender for path in files() for offender in offenders(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("sentence", ["which one cannot be told", "this is said once", "a file of its own", "Mend it."])
def test_the_worst_words_are_found(sentence: str) -> None:
    assert WORST.search(sentence)


def test_messages_are_of_programs_that_do_not_speak() -> None:
    python = [path for path in files() if path.suffix == ".py"]
    assert not [(path.name, line, text) for path in python for line, text in messages(path) if SPEECH.search(text)]


def test_docstrings_begin_with_an_imperative_or_a_noun() -> None:
    python = [path for path in files() if path.suffix == ".py"]
    assert not [(path.name, line, text) for path in python for line, text in docstrings(path) if OPENING.match(text)]


@pytest.mark.parametrize("text", ["The config says 2.", "It was told.", "nobody Said so"])
def test_speech_is_found(text: str) -> None:
    assert SPEECH.search(text)


def test_an_opening_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('"""Whether it rains."""\n\ndef two():\n    """Return how much."""\n')
    assert [bool(OPENING.match(text)) for _, text in docstrings(tmp_path / "one.py")] == [True, False]
