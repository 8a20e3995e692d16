"""Texts that are made of the time, or of what differs from process to process as the time does."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import called_name, dotted, last_name, walk
from ds_migrate.syntax.source import SourceFile

_NOW = frozenset({"now", "today", "utcnow", "localtime", "gmtime"})
_CLOCKS = frozenset({"time.time", "time.time_ns", "uuid.uuid1", "uuid.uuid4", "os.getpid"})
# Texts of which each process has another, as they are.
_NAMES = ("tempfile.mkdtemp", "secrets.token_hex", "secrets.token_urlsafe")
_NUMBERS = frozenset({"int", "round"})
_TEXT = _NUMBERS | {
    "join",
    "Path",
    "str",
    "replace",
    "lower",
    "upper",
    "split",
    "strip",
    "zfill",
    "rjust",
}  # for a name


def has_time_stamp(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a value is a name made of the time."""
    return bool(find_stamps(value, file, flow))


def find_stamps(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> list[cst.BaseExpression]:
    """Return the texts in a value that are made of the time, where no more than names are made of them."""
    found = dict.fromkeys(_stamp(call, value, file, flow) for call in file.nodes(cst.Call, below=value))
    texts = [text for text in found if text is not None]
    now = None if texts else _text_of_now(value, file, flow)
    return texts if now is None else [now]


def _stamp(call: cst.Call, value: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.BaseExpression | None:
    """Return the text that a call of a clock becomes in a value."""
    around = between(call, value, file)
    rest = around[1:]
    if not all(_only_makes_text(outer) for outer in rest):
        return None
    if _is_time_as_text(call, file, flow) or flow.is_call_of(call, file, _NAMES):
        return call
    if not flow.is_call_of(call, file, _CLOCKS):
        return None
    text = next((outer for outer in rest if isinstance(outer, cst.FormattedString)), None)
    if text is not None or flow.is_call_of(call, file, ("os.getpid",)):
        return text
    made = next((outer for outer in rest if _is_text(outer)), None)
    if made is None or any(isinstance(outer, (cst.For, cst.While)) for outer in file.ancestors(made)):
        return None
    inside, outside = rest[: rest.index(made)], rest[rest.index(made) + 1 :]
    is_whole = not any(isinstance(outer, cst.BinaryOperation) for outer in inside)  # and not a time that has passed
    is_number = any(isinstance(outer, cst.Call) and last_name(outer.func) in _NUMBERS for outer in outside)
    return made if is_whole and not is_number and isinstance(made, cst.BaseExpression) else None


def _is_text(node: cst.CSTNode) -> bool:
    """Return whether a node makes text of what is in it: ``str(...)``, ``"...".format(...)``, ``"..." % ...``."""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.Modulo) and isinstance(
            node.left, (cst.SimpleString, cst.ConcatenatedString)
        )
    if isinstance(node, cst.Attribute):
        return node.attr.value == "hex"
    return isinstance(node, cst.Call) and (dotted(node.func) == "str" or _is_format(node))


def _text_of_now(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.BaseExpression | None:
    """Return the text into which a value puts parts of ``datetime.now()``, outside of loops, which report by it."""
    texts = file.nodes(cst.FormattedString, cst.Call, cst.BinaryOperation, below=value)
    for text in texts:
        if not isinstance(text, cst.FormattedString) and not _is_text(text):
            continue
        around = between(text, value, file)[1:]
        is_name = all(_only_makes_text(outer) for outer in around)
        names = (part for part in walk(text) if isinstance(part, (cst.Name, cst.Call)))
        if is_name and any(v.name.rpartition(".")[2] in _NOW for part in names for v in flow.values(part, file)):
            is_looped = any(isinstance(outer, (cst.For, cst.While)) for outer in file.ancestors(text))
            return None if is_looped else text
    return None


def _is_format(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "format"


def between(node: cst.CSTNode, value: cst.CSTNode, file: SourceFile) -> list[cst.CSTNode]:
    """Return a node and what is around it, up to the value that it is in."""
    found = [node]
    for outer in file.ancestors(node) if node is not value else ():
        found.append(outer)
        if outer is value:
            break
    return found


def _is_time_as_text(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call is ``time.strftime(...)``, or ``datetime.now().strftime(...)`` and the like."""
    if flow.is_call_of(call, file, ("time.strftime", "time.ctime", "time.asctime")):
        return len(call.args) < 2 or (dotted(getattr(call.args[1].value, "func", None)) or "").startswith("time.")
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("strftime", "isoformat"):
        return False
    return any(value.name.rpartition(".")[2] in _NOW for value in flow.values(call.func.value, file))


def _only_makes_text(node: cst.CSTNode) -> bool:
    """Return whether a node around the time makes a name of it, and nothing that only rank 0 may do."""
    if isinstance(node, cst.Call):
        return called_name(node) in _TEXT or _is_format(node)
    return not isinstance(node, (cst.Lambda, cst.IfExp, cst.BooleanOperation, cst.BaseComp))
