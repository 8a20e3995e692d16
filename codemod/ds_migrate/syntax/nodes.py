"""Walk and query a libcst tree.

``libcst.matchers``, ``libcst.codemod`` and the metadata providers answer the same questions at ten times the start-up
and run time, so nothing here uses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import libcst as cst

from ds_migrate.syntax.codegen import PlainState

# Fields that never hold an expression or a statement.
_LAYOUT = (
    "whitespace",
    "leading_lines",
    "lines_after",
    "trailing_whitespace",
    "comma",
    "lpar",
    "rpar",
    "lbracket",
    "rbracket",
    "lbrace",
    "rbrace",
    "semicolon",
    "equal",
    "dot",
    "header",
    "footer",
    "colon",
    "first_line",
    "last_line",
    "operator",
    "leading_whitespace",
)
_fields: dict[type, tuple[str, ...]] = {}
_nodes: dict[type, bool] = {}


def _node_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    names = tuple(f.name for f in dataclasses.fields(kind) if not f.name.startswith(_LAYOUT) or f.name == "operators")
    _fields[kind] = names
    return names


def _is_node(kind: type) -> bool:
    """Return whether instances of the class are nodes; asked of each class once (CSTNode's own check is an ABC's)."""
    _nodes[kind] = issubclass(kind, cst.CSTNode)
    return _nodes[kind]


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the nodes directly below, in source order, without white space and punctuation."""
    kind = type(node)
    found: list[cst.CSTNode] = []
    for name in _fields.get(kind) or _node_fields(kind):
        value = getattr(node, name)
        of = type(value)
        if of is tuple or of is list:
            found.extend(item for item in value if _nodes.get(type(item)) or _is_node(type(item)))
        elif value is not None and of is not str and (_nodes[of] if of in _nodes else _is_node(of)):
            found.append(value)
    return found


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the node and everything below it, in source order."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        below = children(current)
        below.reverse()
        stack += below


def dotted(node: cst.CSTNode | None) -> str | None:
    """Return ``a.b.c`` for a name or a chain of attributes of one, else None."""
    parts: list[str] = []
    while type(node) is cst.Attribute:  # asked of nearly every node: isinstance() runs ABCMeta's Python code each time
        parts.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name:
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


def last_name(node: cst.CSTNode | None) -> str:
    """Return ``c`` for ``a.b.c``; "" for what ``dotted()`` returns None for."""
    return (dotted(node) or "").rpartition(".")[2]


def called_name(call: cst.Call) -> str:
    """Return the name of the function or method that a call is of, whatever has the method; "" where it has none."""
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func) or ""


def receiver(node: cst.CSTNode | None, *names: str) -> cst.BaseExpression | None:
    """Return the object whose method of one of these names a node calls; None for everything else."""
    func = node.func if isinstance(node, cst.Call) else None
    return func.value if isinstance(func, cst.Attribute) and func.attr.value in names else None


def operands(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what a call works on: the object whose method it is, and its arguments."""
    owner = [call.func.value] if isinstance(call.func, cst.Attribute) else []
    return [*owner, *(arg.value for arg in call.args)]


def elements(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the elements of a tuple or list as it is written; what is neither, as the only one."""
    if isinstance(node, (cst.Tuple, cst.List)):
        return [element.value for element in node.elements]
    return [node] if isinstance(node, cst.BaseExpression) else []


def without_index(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what an expression takes an item of, as ``a.b`` of ``a.b[0]["c"]``; itself where it takes none."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return node


def single_index(node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return ``i`` of ``a[i]``; None for slices, several indices and other nodes."""
    part = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
    return part.value if isinstance(part, cst.Index) else None


def indices_of(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what says which part of something is meant: ``i`` and ``n`` of ``a.b[i].c[:n]``."""
    while isinstance(node, (cst.Subscript, cst.Attribute)):
        for element in node.slice if isinstance(node, cst.Subscript) else ():
            part = element.slice
            if isinstance(part, cst.Index):
                yield part.value
            elif isinstance(part, cst.Slice):
                yield from (bound for bound in (part.lower, part.upper, part.step) if bound is not None)
        node = node.value


def argument(call: cst.Call, position: int | None, keyword: str) -> cst.Arg | None:
    """Return the argument at ``position`` or with ``keyword=``; None when absent or hidden behind ``*`` or ``**``."""
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if arg.keyword is not None:
            if arg.keyword.value == keyword:
                return arg
        elif position is not None and index == position:
            return arg
    return None


def iterator_argument(call: cst.Call, name: Literal["iter", "next"]) -> cst.BaseExpression | None:
    """Return the argument of ``iter()`` or ``next()``, or the object of ``__iter__()`` or ``__next__()``."""
    if isinstance(call.func, cst.Attribute):
        return call.func.value if call.func.attr.value == f"__{name}__" else None
    return call.args[0].value if dotted(call.func) == name and call.args else None


def has_star(call: cst.Call) -> bool:
    """Return whether ``*args`` or ``**kwargs`` hide what the call is given."""
    return any(arg.star for arg in call.args)


def is_literal(node: cst.BaseExpression, value: str) -> bool:
    """Return whether the expression is the bare name ``value`` (``True``, ``None``, ...)."""
    return isinstance(node, cst.Name) and node.value == value


def number(node: cst.BaseExpression) -> int | float | None:
    """Return the value of a numeric literal, else None."""
    if isinstance(node, cst.Integer):
        return int(node.value.replace("_", ""), 0)
    if isinstance(node, cst.Float):
        return float(node.value.replace("_", ""))
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = number(node.expression)
        return None if inner is None else -inner
    return None


def targets(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what an assignment of any kind sets; nothing for other nodes and for bare annotations."""
    if type(node) is cst.Assign:  # as in dotted()
        return [target.target for target in node.targets]
    if (type(node) is cst.AnnAssign or type(node) is cst.AugAssign) and node.value is not None:
        return [node.target]
    return []


def set_values(node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression | None]]:
    """Yield what an assignment sets, with its value; None where a tuple is not set to a tuple."""
    value: Any = getattr(node, "value", None)
    for target in targets(node):
        if not isinstance(target, (cst.Tuple, cst.List)):
            yield target, value
            continue
        is_pair = isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements)
        for index, element in enumerate(target.elements):
            yield element.value, value.elements[index].value if is_pair else None


def mentions(node: cst.CSTNode, names: Collection[str]) -> bool:
    """Return whether one of these names is in a node."""
    return any(isinstance(part, cst.Name) and part.value in names for part in walk(node))


def dotted_names(node: cst.CSTNode) -> set[str]:
    """Return every name and attribute chain below the node, and each one's beginnings."""
    return {name for n in walk(node) if (name := dotted(n)) is not None}


def code(node: cst.CSTNode) -> str:
    """Return the source text of an expression or statement, on its own."""
    state = PlainState(default_indent="    ", default_newline="\n")
    node._codegen(state)
    return "".join(state.tokens)


def body_of(node: cst.FunctionDef | cst.ClassDef) -> Sequence[cst.BaseStatement | cst.BaseSmallStatement]:
    """Return the statements of a function or class, whether in a block or behind the colon."""
    return node.body.body


def last_statement(block: cst.BaseSuite) -> cst.BaseStatement | cst.BaseSmallStatement | None:
    """Return the last statement of a block, on a line of several the last of these; None where a block is empty."""
    last = block.body[-1] if block.body else None
    return last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """Return positional parameters in order, keyword-only ones after them."""
    params = function.params
    return [*params.posonly_params, *params.params, *params.kwonly_params]


def parameter(function: cst.FunctionDef, name: str | None) -> cst.Param | None:
    """Return the parameter of a name; None where there is none, and for ``*args`` and ``**kwargs``."""
    return next((param for param in parameters(function) if param.name.value == name), None)


def positional(function: cst.FunctionDef) -> list[cst.Param]:
    """Return the parameters that arguments without a keyword are for, in order."""
    return [*function.params.posonly_params, *function.params.params]


def decorators(node: cst.FunctionDef | cst.ClassDef) -> list[cst.BaseExpression]:
    """Return what decorates a function or class, without the arguments of its call."""
    found = [decorator.decorator for decorator in node.decorators]
    return [one.func if isinstance(one, cst.Call) else one for one in found]


def imported_names(node: cst.CSTNode) -> list[str]:
    """Return what an import names, as ``torch.optim.Adam``; "" for other nodes and for what is relative to a file."""
    if isinstance(node, cst.Import):
        return [dotted(alias.name) or "" for alias in node.names]
    if not isinstance(node, cst.ImportFrom) or node.relative:
        return [""]
    module = dotted(node.module) or ""
    names = () if isinstance(node.names, cst.ImportStar) else node.names
    return [f"{module}.{dotted(alias.name)}" for alias in names] or [f"{module}.*"]


def docstring(function: cst.FunctionDef) -> cst.SimpleStatementLine | None:
    """Return the statement that holds the docstring, if there is one."""
    body = body_of(function)
    if not body or not isinstance(body[0], cst.SimpleStatementLine):
        return None
    first = body[0].body[0]
    if isinstance(first, cst.Expr) and isinstance(first.value, (cst.SimpleString, cst.ConcatenatedString)):
        return body[0]
    return None
