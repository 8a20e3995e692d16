"""Mutations of Python source: of its tokens, of its lines, and of its layout."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Callable
from random import Random

Mutation = Callable[[str, Random], str]


def mutated(source: str, random: Random) -> str:
    """Return the source with one to four mutations."""
    for _ in range(random.choice([1, 1, 1, 2, 2, 3, 4])):
        source = random.choice(MUTATIONS)(source, random)
    return source


def _tokens(source: str) -> list[tokenize.TokenInfo]:
    try:
        return list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return []


def _spliced(source: str, token: tokenize.TokenInfo, text: str, after: bool = False) -> str:
    """Return the source with ``text`` in the place of a token, or behind it."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin = starts[token.start[0] - 1] + token.start[1]
    end = starts[token.end[0] - 1] + token.end[1]
    return source[: end if after else begin] + text + source[end:]


def _bracketed(source: str) -> list[tokenize.TokenInfo]:
    """Return the tokens inside of brackets, opening ones included."""
    depth, found = 0, []
    for token in _tokens(source):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        if depth > 0 and token.type in (tokenize.OP, tokenize.NAME, tokenize.NUMBER, tokenize.STRING):
            found.append(token)
    return found


def comment_in_brackets(source: str, random: Random) -> str:
    tokens = _bracketed(source)
    if not tokens:
        return source
    token = random.choice(tokens)
    indent = " " * random.choice([0, 4, 12, 20])
    text = random.choice([f"  # note {random.randrange(999)}\n", "\n", f"\n\n{indent}# note {random.randrange(999)}\n"])
    return _spliced(source, token, text + indent, after=True)


def lines_broken(source: str, random: Random) -> str:
    """Break lines in brackets, behind many tokens."""
    indent, share = " " * random.choice([4, 12, 20]), random.choice([0.2, 0.5, 1.0])
    only = random.choice([".", "=(,", "([{", ""])
    for token in reversed(_bracketed(source)):
        if token.string in only or (not only and random.random() < share):
            source = _spliced(source, token, "\n" + indent, after=True)
    return source


def parentheses(source: str, random: Random) -> str:
    tokens = [token for token in _tokens(source) if token.type == tokenize.NAME and not keyword.iskeyword(token.string)]
    token = random.choice(tokens) if tokens else None
    return source if token is None else _spliced(source, token, f"({token.string})")


def other_name(source: str, random: Random) -> str:
    names = [token for token in _tokens(source) if token.type == tokenize.NAME]
    if not names:
        return source
    return _spliced(source, random.choice(names), random.choice(names).string)


def renamed_everywhere(source: str, random: Random) -> str:
    names = sorted({token.string for token in _tokens(source) if token.type == tokenize.NAME})
    names = [name for name in names if not keyword.iskeyword(name)]
    if not names:
        return source
    old, new = random.choice(names), random.choice([*names, "ünïcode", "_", "x" * 90, "dataloader_iter", "engine"])
    tokens = [token for token in _tokens(source) if token.type == tokenize.NAME and token.string == old]
    for token in reversed(tokens):
        source = _spliced(source, token, new)
    return source


def token_gone(source: str, random: Random) -> str:
    tokens = [token for token in _tokens(source) if token.string.strip()]
    return _spliced(source, random.choice(tokens), "") if tokens else source


def statements_joined(source: str, random: Random) -> str:
    lines = source.split("\n")
    same = [
        i for i in range(len(lines) - 1)
        if lines[i].strip() and lines[i + 1].strip() and _depth(lines[i]) == _depth(lines[i + 1])
    ]  # fmt: skip
    if same:
        i = random.choice(same)
        lines[i : i + 2] = [f"{lines[i]}; {lines[i + 1].strip()}"]
    return "\n".join(lines)


def line_moved(source: str, random: Random) -> str:
    lines = source.split("\n")
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.choice(["gone", "twice", "swapped", "elsewhere"])
    if kind == "gone":
        del lines[i]
    elif kind == "twice":
        lines.insert(i, lines[i])
    elif kind == "swapped":
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines.insert(j, " " * _depth(lines[j]) + lines[i].strip())
    return "\n".join(lines)


HEADS = [
    "if True:", "if self.flag:  # why", "for _ in range(2):", "while self.more():", "with torch.no_grad():", "try:",
    "def inner():", "class Inner:", "async def inner():", "match self.kind:\n{indent}    case 1:",
]  # fmt: skip


def wrapped(source: str, random: Random) -> str:
    """Put one to three lines of a method below another statement."""
    lines = source.split("\n")
    deep = [i for i, line in enumerate(lines) if _depth(line) >= 8 and line.strip()]
    if not deep:
        return source
    i = random.choice(deep)
    indent = " " * _depth(lines[i])
    count = random.choice([1, 1, 2, 3])
    head = random.choice(HEADS)
    more = "        " if "case" in head else "    "
    body = [more + line for line in lines[i : i + count]]
    tail = [f"{indent}finally:\n{indent}    pass"] if head == "try:" else []
    lines[i : i + count] = [indent + head.replace("{indent}", indent), *body, *tail]
    return "\n".join(lines)


def extra_line(source: str, random: Random) -> str:
    lines = source.split("\n")
    i = random.randrange(len(lines))
    text = random.choice([
        "pass", "# ds-migrate: skip", "# ds-migrate: ignore[DSM350]", "# TODO(ds-migrate DSM301): x", "global x",
        "del self.model", "self.model = self.model", "self.context = None", "return", "yield", "await x", "lambda: 0",
        "import determined as det", "from determined.pytorch import *", "self.context.backward(loss)", "x: int",
        "self.context.step_optimizer(self.optimizer)", "self.optimizer.zero_grad()", "batch = next(iter(batch))",
        "print(self.context.get_hparam('x'), end=f'{self.model!r:>{10}}')", "(y := self.model)", "@property",
        "self.model.load_state_dict({})", "type X = int", "nonlocal y", "assert batch, 'é\\N{BULLET}'", "\f", "\\",
    ])  # fmt: skip
    lines.insert(i, " " * _depth(lines[i]) + text)
    return "\n".join(lines)


def layout(source: str, random: Random) -> str:
    kind = random.choice(["crlf", "cr", "tabs", "two", "cut", "blank", "bom", "cookie", "mixed"])
    if kind == "crlf":
        return source.replace("\n", "\r\n")
    if kind == "cr":
        return source.replace("\n", "\r")
    if kind == "tabs":
        return source.replace("    ", "\t")
    if kind == "two":
        return source.replace("    ", "  ")
    if kind == "cut":
        return source[: random.randrange(len(source) + 1)]
    if kind == "blank":
        return source.replace("\n", "\n\n" if random.random() < 0.5 else "   \n")
    if kind == "bom":
        return "\ufeff" + source
    if kind == "cookie":
        return f"# -*- coding: {random.choice(['latin-1', 'utf-8', 'idna', 'utf-7', 'cp1252', 'nope'])} -*-\n{source}"
    return "".join(line + random.choice(["\n", "\r\n"]) for line in source.split("\n"))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


MUTATIONS: list[Mutation] = [
    comment_in_brackets, comment_in_brackets, lines_broken, parentheses, other_name, renamed_everywhere, token_gone,
    statements_joined, line_moved, line_moved, wrapped, wrapped, extra_line, extra_line, layout,
]  # fmt: skip
