"""Every message with which a conversion can be blocked is on the page of its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import ds_migrate
import pytest
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of

PACKAGE = Path(ds_migrate.__file__).parent
# Who blocks: where in its arguments the code and the message are.
BLOCKING = {
    "blocked": (0, 3), "report": (1, 5), "_problem": (1, 2), "blocked_by": (1, 2), "Finding": (0, 3),
    "RefusedError": (0, 2), "Refusal": (0, 3), "refuse": (0, 3), "blocked_loop": (0, 3),
}  # fmt: skip
# Who blocks with one code only: its name, where the message is, the code.
OF_ONE_CODE = {"Blocked": (3, Code.ENGINE), "UpgradeError": (1, Code.OLD_API),
               "InexactScalingError": (0, Code.PLAIN_PRECISION)}  # fmt: skip
LEFT = "; the config is left as it was"  # what every refused edit of a config ends with
VALUE = "…"


@dataclass(frozen=True)
class Module:
    path: Path
    tree: ast.Module

    def messages(self) -> Iterator[tuple[Code, str]]:
        """The code and the text of everything that blocks, with ``VALUE`` where a value stands."""
        nodes = list(ast.walk(self.tree))
        scopes = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.Lambda))]
        for call in nodes:
            if not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Name, ast.Attribute)):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
            code: Code | None
            if name in OF_ONE_CODE:
                at_message, code = OF_ONE_CODE[name]
            elif name in BLOCKING and (name not in ("Finding", "report") or "Severity.BLOCKED" in ast.unparse(call)):
                at_code, at_message = BLOCKING[name]
                code = self.code(call.args[at_code]) if len(call.args) > at_code else None
            else:
                continue
            if code is None:  # handed on from somebody who names it
                continue
            scope = next((s for s in scopes[::-1] if any(node is call for node in ast.walk(s))), self.tree)
            for text in self.texts(call.args[min(at_message, len(call.args) - 1)], scope):
                yield code, text.rstrip(",") + (LEFT if name == "RefusedError" else "")

    def code(self, node: ast.expr) -> Code | None:
        if isinstance(node, ast.Name) and node.id == "CODE":
            node = next(
                line.value
                for line in self.tree.body
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "CODE"
            )
        owner, _, member = ast.unparse(node).rpartition(".")
        return Code[member] if owner == "Code" else None

    def texts(self, node: ast.expr, scope: ast.AST) -> list[str]:
        """Every text that an expression may have."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Constant(value=None):
                return []
            case ast.JoinedStr(values=parts):
                return ["".join(text) for text in product(*(self.texts(part, scope) for part in parts))]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return ["".join(text) for text in product(self.texts(left, scope), self.texts(right, scope))]
            case ast.IfExp(body=body, orelse=orelse):
                return self.texts(body, scope) + self.texts(orelse, scope)
            case ast.Starred(value=value):
                return self.texts(value, scope)
            case ast.Tuple(elts=[first, *_]):
                return self.texts(first, scope)
            case ast.Name(id=name):
                given = [
                    n.value
                    for n in ast.walk(scope)
                    if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name and n.lineno < node.lineno
                ]
                given = given or [  # a constant of the module
                    n.value for n in self.tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name
                ]
                return self.texts(given[-1], scope) if given else [VALUE]
            case ast.Call(func=ast.Name(id=name)):
                for inner in ast.walk(self.tree):
                    if isinstance(inner, ast.FunctionDef) and inner.name == name:
                        returns = [
                            n.value for n in ast.walk(inner) if isinstance(n, ast.Return) and n.value is not None
                        ]
                        return [text for value in returns for text in self.texts(value, inner)]
        return [VALUE]


@cache
def modules() -> tuple[Module, ...]:
    return tuple(Module(path, ast.parse(path.read_text("utf-8"))) for path in sorted(PACKAGE.rglob("*.py")))


def outline(message: str) -> str:
    """The words of a message that are always the same."""
    return re.sub(rf"{VALUE}(\s*{VALUE})*", VALUE, re.sub(r"<[a-z ]+>", VALUE, message))


@cache
def found() -> dict[Code, set[str]]:
    messages: dict[Code, set[str]] = {}
    for module in modules():
        for code, text in module.messages():
            messages.setdefault(code, set()).add(outline(text))
    return messages


def test_the_messages_are_found() -> None:
    assert sum(map(len, found().values())) > 50
    assert found().keys() >= {Code.IMPORTS, Code.ENGINE, Code.BACKWARD, Code.MOVES_WITH_BLOCKED}
    # handed on: an old trial that stays, by the upgrade; one without engines, by the decisions; a use that only the
    # output shows, by the check of the output; a scaler, by the error that names why; a framework, by its module
    handed_on = [Code.OLD_API, Code.ENGINE, Code.CONTEXT_API, Code.PLAIN_PRECISION, Code.PLAIN_FRAMEWORK]
    assert sorted(code for code, texts in found().items() if VALUE in texts) == handed_on


@pytest.mark.parametrize("code", Code, ids=str)
def test_the_page_of_a_code_has_the_messages_that_block(code: Code) -> None:
    given = found().get(code, set()) - {VALUE}
    shown = {outline(blocked.message) for blocked in page_of(code).blocked}
    assert given - shown == set()
    assert shown - given <= {"a use of … that cannot be followed would be left"}
