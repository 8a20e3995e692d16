"""The edits of one file, claimed by rules and applied in one libcst transform.

Rules never rewrite a tree themselves: they order "this expression becomes that", "this statement goes", "these lines
come before it", and one transformer does it all. Comments of a statement that goes move to the next one, so that no
comment is ever lost. Those of expressions that go move above their statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, TypeAlias

import libcst as cst

from ds_migrate.syntax.nodes import comments, own_comments, walk

Change = Callable[[cst.CSTNode], "cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]"]
Text: TypeAlias = str | Callable[[cst.CSTNode], str]
Line: TypeAlias = cst.SimpleStatementLine | cst.SimpleStatementSuite
Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement


Lengths: TypeAlias = dict[tuple[int, cst.CSTNode], int]


class Edits:
    def __init__(self, module: cst.Module) -> None:
        self.module = module
        self._changes: dict[cst.CSTNode, list[Change]] = {}
        self._before: dict[cst.CSTNode, list[str]] = {}
        self._above: dict[cst.CSTNode, list[str]] = {}
        self._after: dict[cst.CSTNode, list[str]] = {}
        self._expanded: dict[cst.CSTNode, dict[str, Text]] = {}
        self._kept_comments: dict[cst.CSTNode, list[str]] = {}
        self._gone: set[cst.CSTNode] = set()
        self._touched: set[cst.CSTNode] = set()
        self._done: set[tuple[cst.CSTNode, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._changes or self._before or self._above or self._after or self._expanded or self._gone)

    @property
    def lengths(self) -> Lengths:
        """The number of changes, and of lines beside it, that are claimed for each node."""
        held: tuple[Mapping[cst.CSTNode, Sized], ...] = (
            self._changes,
            self._before,
            self._above,
            self._after,
            self._kept_comments,
            self._expanded,
        )
        found = {(number, node): len(claimed) for number, of in enumerate(held) for node, claimed in of.items()}
        return found | {(len(held), node): 1 for node in self._gone}

    def drop_repeated(self, known: Lengths) -> None:
        """Take back what was claimed since then and does once more what had been claimed before."""
        for number, lines in enumerate((self._before, self._above, self._after, self._kept_comments), 1):
            for node, texts in lines.items():
                old = texts[: known.get((number, node), 0)]
                texts[len(old) :] = [text for text in texts[len(old) :] if text not in old]
        for node, changes in self._changes.items():
            count = known.get((0, node), 0)
            old_result, new_result = _result(node, changes[:count]), _result(node, changes[count:])
            if count and old_result is not None and old_result == new_result:
                del changes[count:]

    def changed(self, known: Lengths) -> tuple[set[cst.CSTNode], set[cst.CSTNode]]:
        """Return the nodes that had changed, or gone, by then, and those that have been changed since."""
        inserted = (1, 2, 3, 4)
        before = {node for number, node in known if number not in inserted}
        now = self.lengths
        return before, {place[1] for place in now if place[0] not in inserted and now[place] != known.get(place, 0)}

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that takes back everything claimed from now on."""
        lists = [
            (held, {node: list(found) for node, found in held.items()})
            for held in (self._changes, self._before, self._above, self._after, self._kept_comments)
        ]
        sets: list[tuple[set[Any], set[Any]]] = [(held, set(held)) for held in (self._gone, self._touched, self._done)]
        expanded = {line: dict(marks) for line, marks in self._expanded.items()}

        def undo() -> None:
            held: Any
            saved: Any
            for held, saved in lists:
                held.clear()
                held.update({node: list(found) for node, found in saved.items()})
            for held, saved in sets:
                held.intersection_update(saved)
            for line in self._expanded.keys() - expanded.keys():
                del self._expanded[line]
            for line, marks in expanded.items():  # changes refer to these dicts
                self._expanded[line].clear()
                self._expanded[line].update(marks)

        return undo

    def touch(self, node: cst.CSTNode, ancestors: Iterable[cst.CSTNode]) -> None:
        """Tell the transform that something changes at ``node``: it only descends where something does."""
        self._touched.add(node)
        for ancestor in ancestors:
            if ancestor in self._touched:
                break
            self._touched.add(ancestor)

    def is_touched(self, node: cst.CSTNode) -> bool:
        """Return whether something changes at the node or below it."""
        return node in self._touched

    def once(self, node: cst.CSTNode, what: str) -> bool:
        """Return True on the first call for a node and a code: trials may share a base class."""
        if (node, what) in self._done:
            return False
        self._done.add((node, what))
        return True

    def is_done(self, node: cst.CSTNode, what: str) -> bool:
        """Return whether ``once`` was called for a node and a code."""
        return (node, what) in self._done

    def change(self, node: cst.CSTNode, change: Change) -> None:
        """Apply ``change`` to the node once everything below it has been rewritten."""
        self._changes.setdefault(node, []).append(change)

    def replace(self, node: cst.CSTNode, new: cst.CSTNode) -> None:
        self.change(node, lambda _: new)

    def remove(self, statement: cst.CSTNode) -> None:
        """Drop a statement (a line, or one small statement of a line); its comments stay."""
        self._gone.add(statement)

    def before(
        self, statement: cst.BaseStatement, code: str, above_comments: bool = False, instead_of: str = ""
    ) -> None:
        """Insert lines before a statement, between it and its comments or above those; ``instead_of`` lines that were
        inserted there already."""
        into = self._above if above_comments else self._before
        lines = into.setdefault(statement, [])
        if instead_of in lines:
            lines[lines.index(instead_of)] = code
        else:
            lines.append(code)

    def after(self, statement: cst.BaseStatement, code: str) -> None:
        self._after.setdefault(statement, []).append(code)

    def keep_comments(self, statement: cst.CSTNode, found: list[str]) -> None:
        """Put comments of code that goes above the statement that it was a part of."""
        self._kept_comments.setdefault(statement, []).extend(found)

    def expand(self, line: Line, small: cst.BaseSmallStatement, code: Text) -> None:
        """Put whole statements in the place of one small statement; others on its line get separate lines.

        ``code`` may be a function of the small statement once everything below it has been rewritten.
        """
        marks = self._expanded.setdefault(line, {})
        mark = f"_ds_migrate_{len(marks)}"
        marks[mark] = code

        def put_mark(updated: cst.CSTNode) -> cst.CSTNode:
            if not isinstance(code, str):
                marks[mark] = code(updated)
            return cst.Expr(cst.Name(mark))

        self.change(small, put_mark)

    def _expand(self, line: Line, marks: dict[str, Text]) -> list[Statement]:
        statements: list[Statement] = []
        for small in line.body:
            value = small.value if isinstance(small, cst.Expr) else None
            text = marks.get(value.value) if isinstance(value, cst.Name) else None
            if isinstance(text, str):
                statements += self.parse(text)
            else:
                statements.append(cst.SimpleStatementLine([small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]))
        comment = line.trailing_whitespace.comment
        above = list(line.leading_lines) if isinstance(line, cst.SimpleStatementLine) else []
        if comment is not None and len(statements) == 1 and isinstance(statements[0], cst.SimpleStatementLine):
            statements[0] = statements[0].with_changes(trailing_whitespace=line.trailing_whitespace)
        elif comment is not None:
            above.append(cst.EmptyLine(comment=comment))
        statements[0] = statements[0].with_changes(leading_lines=above)
        return statements

    def parse(self, code: str) -> list[Statement]:
        """Parse statements written with ``\\n`` and four spaces into the file's newline and indent."""
        text = "".join(line + self.module.default_newline for line in self._reindented(code))
        return list(cst.parse_module(text, config=self.module.config_for_parsing).body)

    def lines(self, code: str) -> cst.SimpleStatementLine:
        """Return whole statements, likewise, that nothing looks into: they need no tree. Empty lines before the first
        are kept."""
        blank = len(code) - len(code.lstrip("\n"))
        lines: Any = _Lines(self._reindented(code))
        return cst.SimpleStatementLine([lines], leading_lines=[cst.EmptyLine(indent=False)] * blank)

    def _reindented(self, code: str) -> list[str]:
        return [_reindent(line, self.module.default_indent) for line in code.strip("\n").split("\n")]

    def expression(self, code: str) -> cst.BaseExpression:
        """Return an expression (it may span lines, written as for ``parse``)."""
        if "\n" not in code:
            return cst.parse_expression(code)
        statement = self.parse(f"({code}\n)")[0]
        assert isinstance(statement, cst.SimpleStatementLine)
        value = statement.body[0]
        assert isinstance(value, cst.Expr)
        return value.value

    def apply(self) -> cst.Module:
        return self.module.visit(_Rewriter(self)) if self else self.module


def _result(node: cst.CSTNode, changes: Iterable[Change]) -> str | None:
    """Return the code that changes make of a node as it was parsed; None where that is not one node."""
    changed: Any = node
    for change in changes:
        changed = change(changed)
        if not isinstance(changed, cst.CSTNode):
            return None
    return cst.Module([]).code_for_node(changed)


def _reindent(line: str, indent: str) -> str:
    body = line.lstrip(" ")
    depth, rest = divmod(len(line) - len(body), 4)
    return indent * depth + " " * rest + body


class _Lines:
    """A placeholder for the small statement of a line, which prints whole lines at the depth where they are put."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def _codegen(self, state: Any, **_: Any) -> None:
        first, *others = self._lines
        state.add_token(first)
        for line in others:
            state.add_token(state.default_newline)
            if line:
                state.add_indent_tokens()
                state.add_token(line)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self.edits = edits

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self.edits._touched

    def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
        edits = self.edits
        if original_node not in edits._touched:
            return updated_node
        node = updated_node
        for change in edits._changes.get(original_node, ()):
            node = change(node)
        node = _with_comments(node, edits._kept_comments.get(original_node, []))
        if original_node in edits._gone:
            if isinstance(original_node, cst.BaseSmallStatement):
                return cst.RemoveFromParent()
            node = _emptied(node)
        if isinstance(original_node, cst.SimpleStatementLine) and isinstance(node, cst.SimpleStatementLine):
            node = _ended(node, original_node.body[-1])
        if original_node in edits._expanded and isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            statements = edits._expand(node, edits._expanded[original_node])
            in_line = isinstance(node, cst.SimpleStatementLine)
            node = cst.FlattenSentinel(statements) if in_line else cst.IndentedBlock(statements)
        if isinstance(original_node, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            node = _with_comments(node, _lost(original_node, node))
        above, before, after = (
            [edits.lines(code) for code in found.get(original_node, ())]
            for found in (edits._above, edits._before, edits._after)
        )
        if before or after:
            node = _surround(node, before, after)
        if above:
            node = cst.FlattenSentinel([*above, *(node if isinstance(node, cst.FlattenSentinel) else [node])])
        if isinstance(original_node, (cst.IndentedBlock, cst.Module)):
            return _settle(node)
        return node


def _with_comments(node: Any, texts: list[str]) -> Any:
    """Return a statement, or the first of those that replace it, with comments above it."""
    if not texts:
        return node
    lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]
    if isinstance(node, cst.FlattenSentinel):
        first, *others = node
        return cst.FlattenSentinel([first.with_changes(leading_lines=[*lines, *first.leading_lines]), *others])
    return node.with_changes(leading_lines=[*node.leading_lines, *lines])


def _lost(before: cst.CSTNode, after: Any) -> list[str]:
    """Return the comments of a statement, those of its blocks left out, that it no longer has."""
    own = own_comments(before)
    if not own:
        return []
    statements = after if isinstance(after, cst.FlattenSentinel) else [after]
    there = Counter(text for statement in statements for text in own_comments(statement))
    lost = []
    for text in own:
        there[text] -= 1
        if there[text] < 0:
            lost.append(text)
    return lost


# Replaces a removed statement until its block is settled: libcst itself would drop an empty line, comments too.
_GONE = cst.Pass()
_EMPTY = cst.Pass()  # all that is left of a block
# Calls that a condition may make and still go.
_PURE_CALLS = frozenset({"get_hparam", "get_hparams", "get", "isinstance", "hasattr", "getattr", "len", "bool"})


def _is_gone(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 and statement.body[0] is _GONE


def _emptied(line: cst.CSTNode) -> cst.CSTNode:
    """Return a line without its statement: a carrier for its comments until the block is settled."""
    if not isinstance(line, cst.SimpleStatementLine):
        raise TypeError(f"only simple statements are removed, not {type(line).__name__}")
    return line.with_changes(body=[_GONE])


def _ended(line: cst.SimpleStatementLine, last: cst.BaseSmallStatement) -> cst.SimpleStatementLine:
    """Return the line, ending as it ended where its last statement went: without a semicolon, unless it had one."""
    if (
        not line.body
        or isinstance(last.semicolon, cst.Semicolon)
        or not isinstance(line.body[-1].semicolon, cst.Semicolon)
    ):
        return line
    return line.with_changes(body=[*line.body[:-1], line.body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def _surround(node: object, before: list[Any], after: list[Any]) -> cst.FlattenSentinel[cst.CSTNode]:
    """Put lines around a statement; the comment above it stays above what now comes first."""
    middle: list[Any] = list(node) if isinstance(node, cst.FlattenSentinel) else [node]
    if before and middle and isinstance(middle[0], (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
        leading = middle[0].leading_lines
        middle[0] = middle[0].with_changes(leading_lines=before[0].leading_lines)
        before = [before[0].with_changes(leading_lines=leading), *before[1:]]
    return cst.FlattenSentinel([*before, *middle, *after])


def _settle(block: cst.IndentedBlock | cst.Module) -> cst.IndentedBlock | cst.Module:
    """Give the comments of removed lines to the next statement (or the block's foot) and keep the block non-empty."""
    kept: list[cst.CSTNode] = []
    carried: list[cst.EmptyLine] = []
    for statement in block.body:
        if isinstance(statement, cst.If) and _has_no_effect(statement):
            carried.extend((*statement.leading_lines, *_comment_lines(statement)))
            continue
        if _is_gone(statement):
            assert isinstance(statement, cst.SimpleStatementLine)
            carried.extend(statement.leading_lines)
            carried.extend(_comment_lines(statement.trailing_whitespace))
            continue
        if carried and isinstance(statement, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            above, below = _tidy(carried), statement.leading_lines
            if above and below and not (above[-1].comment or below[0].comment):
                above = above[:-1]  # one blank line separates what is left
            statement = statement.with_changes(leading_lines=[*above, *below])
            carried = []
        before = kept[-1] if kept else None
        if isinstance(statement, cst.If) and isinstance(before, cst.If) and statement.test is before.test:
            kept[-1] = _joined(before, statement)
            continue
        kept.append(statement)
    if carried:
        block = block.with_changes(footer=[*_tidy(carried), *block.footer])
    if not kept and isinstance(block, cst.IndentedBlock):
        kept = [cst.SimpleStatementLine([_EMPTY])]
    return block.with_changes(body=kept)


def _joined(first: cst.If, second: cst.If) -> cst.If:
    """Return neighbours that edits have put under the very same condition, under it together."""
    above = [line if line.comment else line.with_changes(indent=False) for line in second.leading_lines]
    statement, *others = second.body.body
    body = [*first.body.body, statement.with_changes(leading_lines=above), *others]
    return first.with_changes(body=first.body.with_changes(body=body))


def _has_no_effect(node: cst.If | cst.Else) -> bool:
    """Return whether every branch went, and nothing is missed when the conditions are not asked."""
    line = node.body.body[0] if isinstance(node.body, cst.IndentedBlock) else None
    emptied = isinstance(line, cst.SimpleStatementLine) and line.body[0] is _EMPTY
    if not emptied or isinstance(node, cst.Else):
        return emptied
    return all(map(_is_pure, walk(node.test))) and (node.orelse is None or _has_no_effect(node.orelse))


def _is_pure(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call):
        name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        return isinstance(name, cst.Name) and name.value in _PURE_CALLS
    return not isinstance(node, (cst.NamedExpr, cst.Await, cst.Yield))


def _comment_lines(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """Return the comments of what goes, each on a separate line (those above an ``if`` stay lines already)."""
    if isinstance(node, cst.If):
        node = node.with_changes(leading_lines=[])
    return [cst.EmptyLine(comment=cst.Comment(text)) for text in comments(node)]


def _tidy(lines: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Keep comments, and drop blank lines without a comment beside them: they separated removed statements."""
    if any(line.comment for line in lines):
        return lines
    return lines[:1]
