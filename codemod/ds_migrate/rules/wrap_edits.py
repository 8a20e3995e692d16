"""Edits of ``wrap_*`` calls and statements, shared by the rules."""

from __future__ import annotations

import ast
import re

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.syntax.claims import Change
from ds_migrate.syntax.nodes import code, dotted
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.model import Optimizer, Trial, Wrap


def unwrap(wrap: Wrap, rule: str, suffix: str = "", bare: bool = False) -> None:
    """Replace a ``wrap_*`` call by the wrapped expression; remove a statement that then does nothing, and one that only
    renames a ``bare`` name which the engine is made of."""
    file = wrap.file
    if not file.edits.once(wrap.call, rule):
        return
    parent = file.parent(wrap.call)
    inner = dotted(wrap.argument)
    statement = file.statement(wrap.call)
    if (isinstance(parent, cst.Expr) or bare) and not suffix and inner is not None and parent is not None:
        file.remove(_removable(parent, statement))
        return
    if isinstance(parent, cst.Assign) and not suffix and [dotted(t.target) for t in parent.targets] == [inner]:
        file.remove(_removable(parent, statement))
        return
    argument = next(a for a in wrap.call.args if a.value is wrap.argument)

    def take_argument(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        index = wrap.call.args.index(argument)
        value = keep_layout(updated, updated.args[index].value, updated.args[index])
        if suffix:
            device = cst.parse_expression("x" + suffix)
            assert isinstance(device, cst.Call) and isinstance(device.func, cst.Attribute)
            if not (value.lpar or isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))):
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return device.with_changes(func=device.func.with_changes(value=value))
        return value

    file.change(wrap.call, take_argument)


def collect(ctx: RuleContext, use: ContextUse, argument: cst.BaseExpression, rule: str, method: str) -> None:
    """Convert ``context.wrap_model(x, ...)`` to ``context.engines.add_model(x)``."""
    file, call = use.file, use.call
    if call is None or not file.edits.once(call, rule):
        return
    position = next(i for i, a in enumerate(call.args) if a.value is argument)

    def rewrite(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call) and isinstance(updated.func, cst.Attribute)
        kept = updated.args[position]
        if len(updated.args) > 1:
            kept = kept.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        engines = cst.Attribute(updated.func.value, cst.Name("engines"))
        kept = kept.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(func=cst.Attribute(engines, cst.Name(method)), args=[kept])

    file.change(call, rewrite)
    ctx.converted(rule, file, call, f"engines.{method}: its engine is made once all are there")


def argument_alone(position: int) -> Change:
    """Return the change of a call into one of its arguments."""

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        return keep_layout(updated, updated.args[position].value, updated.args[position])

    return change


def keep_layout(call: cst.Call, value: cst.BaseExpression, arg: cst.Arg) -> cst.BaseExpression:
    """Return the argument without the call around it: its lines move left by the call's indent; where it needs
    parentheses (comments beside it, or no brackets around its lines) it keeps those of the call."""
    opening = call.whitespace_before_args
    closing = arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else arg.whitespace_after_arg
    foot = call.args[-1].comma.whitespace_after if isinstance(call.args[-1].comma, cst.Comma) else closing
    if isinstance(closing, cst.ParenthesizedWhitespace) and isinstance(foot, cst.ParenthesizedWhitespace):
        closing = closing.with_changes(last_line=foot.last_line)
    around = (opening, closing, *(a.whitespace_after_arg for a in call.args))
    comments = any("#" in cst.Module(body=()).code_for_node(w) for w in around)
    if _needs_parentheses(value) or (isinstance(opening, cst.ParenthesizedWhitespace) and comments):
        return value.with_changes(
            lpar=[cst.LeftParen(whitespace_after=opening), *value.lpar],
            rpar=[*value.rpar, cst.RightParen(whitespace_before=closing)],
        )
    if not isinstance(opening, cst.ParenthesizedWhitespace) or len(code(value).splitlines()) == 1:
        return value
    shift = len(opening.last_line.value)
    if isinstance(closing, cst.ParenthesizedWhitespace):
        shift -= len(closing.last_line.value)
    moved = value.visit(_Outdent(shift))
    assert isinstance(moved, cst.BaseExpression)
    return moved


class _Outdent(cst.CSTTransformer):
    """A move of the continuation lines of an expression to the left."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift

    def leave_ParenthesizedWhitespace(  # noqa: N802
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.BaseParenthesizableWhitespace:
        del original_node
        lines = [_outdented(line, self.shift) for line in updated_node.empty_lines]
        last = updated_node.last_line.value
        return updated_node.with_changes(
            empty_lines=lines, last_line=cst.SimpleWhitespace(last[min(self.shift, len(last)) :])
        )


def _outdented(line: cst.EmptyLine, shift: int) -> cst.EmptyLine:
    space = line.whitespace.value
    return line.with_changes(whitespace=cst.SimpleWhitespace(space[min(shift, len(space)) :]))


def _needs_parentheses(value: cst.BaseExpression) -> bool:
    """Return whether the expression has a line break outside of its brackets."""
    text = code(value)
    if len(text.splitlines()) == 1:
        return False
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return True
    return False


def trim_comma(node: cst.CSTNode) -> cst.CSTNode:
    """Remove the last comma of a call on one line."""
    assert isinstance(node, cst.Call)
    last = node.args[-1] if node.args else None
    if last is None or not isinstance(last.comma, cst.Comma):
        return node
    if not isinstance(last.comma.whitespace_after, cst.SimpleWhitespace):
        return node
    return node.with_changes(args=[*node.args[:-1], last.with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _removable(small: cst.CSTNode, statement: cst.BaseStatement) -> cst.CSTNode:
    """Return the whole line when it holds nothing else, else the small statement."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement
    return small


def remove_statement(file: SourceFile, node: cst.CSTNode) -> bool:
    """Drop the expression statement that ``node`` is; False when its value is used."""
    parent = file.parent(node)
    if not isinstance(parent, cst.Expr):
        return False
    remove_small(file, parent)
    return True


def remove_small(file: SourceFile, small: cst.CSTNode) -> None:
    """Drop a small statement, and its line when nothing else is there."""
    file.remove(_removable(small, file.statement(small)))


def child_name(target: str) -> str:
    """Return the name of a model as a child of its engine's module: ``netD`` for ``self.netD``."""
    name = re.sub(r"\W+", "_", target.removeprefix("self.")).strip("_")
    return (
        f"{name}_model"
        if name in {"training", "forward", "train", "eval", "half", "float", "type", "to", "cpu"}
        else name
    )


def children_of(trial: Trial, optimizer: Optimizer) -> dict[str, str]:
    """Return the models below an optimizer's engine by their names as children, each name once."""
    owned = list(optimizer.models or trial.models)
    if optimizer is trial.optimizers[0]:
        # models without an optimizer (teachers, averages, losses) are saved, moved and switched with the first engine
        owned += [m for m in trial.models if not any(m in o.models for o in trial.optimizers) and m not in owned]
    named: dict[str, str] = {}
    for model in owned:
        name = child_name(model.target)
        while name in named:
            name += "_"
        named[name] = model.target
    return named
