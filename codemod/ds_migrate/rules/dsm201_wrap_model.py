"""Replace ``wrap_model(module)`` by the module; DSM205 makes the engine once its optimizer exists."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Sequence

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.findings import Finding, Severity
from ds_migrate.rules.codes import Code
from ds_migrate.rules.wrap_edits import collect, unwrap
from ds_migrate.syntax.nodes import argument, code, dotted, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Model

CODE = Code.WRAP_MODEL

_GONE = re.compile(r"\b(wrap_model|wrap_optimizer|wrap_scaler|step_optimizer|configure_apex_amp)\b")
_QUIET = frozenset({"parameters", "named_parameters", "train", "eval", "zero_grad", "requires_grad_"})


def apply(ctx: RuleContext) -> None:
    for use in ctx.trial.helpers:
        given = argument(use.call, 0, "model") if use.attr == "wrap_model" and use.call is not None else None
        if given is not None:
            ctx.handle(use)
            collect(ctx, use, given.value, CODE, "add_model")
    for model in ctx.trial.models:
        for wrap in model.wraps:
            ctx.handle(wrap.use)
            if ctx.plan.form is Form.COLLECTED:
                collect(ctx, wrap.use, wrap.argument, CODE, "add_model")
                continue
            suffix = f".to({_context(wrap.use.receiver)}.device)" if _used_before_engine(ctx, model) else ""
            unwrap(wrap, CODE, suffix, bare=model in ctx.plan.raw_names and not suffix)
            ctx.converted(
                CODE,
                wrap.file,
                wrap.call,
                f"wrap_model() removed: {model.target} stays a plain module until its engine is created",
            )


def _context(receiver: cst.BaseExpression) -> str:
    return dotted(receiver) or "self.context"


def _used_before_engine(ctx: RuleContext, model: Model) -> bool:
    """Return whether ``__init__`` does more with the model than hand its parameters to an optimizer."""
    wrapped = {inner for wrap in model.wraps for inner in walk(wrap.call)}
    for wrap in model.wraps:
        function = wrap.use.function
        if function is None:
            continue
        for node in wrap.file.spelled(*model.names, below=function):
            if node in wrapped:
                continue
            if wrap.file.position(node) <= wrap.file.position(wrap.call):
                continue
            around = wrap.file.parent(node)
            if isinstance(around, cst.Attribute):
                if around.attr.value in _QUIET or not isinstance(wrap.file.parent(around), cst.Call):
                    continue
                return True
            if isinstance(around, cst.Call) or (isinstance(around, cst.Arg) and not _builds_optimizer(ctx, around)):
                return True
    return False


def _builds_optimizer(ctx: RuleContext, arg: cst.Arg) -> bool:
    """Return whether the argument goes into a call that makes an optimizer."""
    return any(arg in set(walk(e)) for o in ctx.trial.optimizers for e in o.built_by)


def apply_file(file: SourceFile, contexts: Sequence[RuleContext]) -> None:
    """Report comments and docstrings about calls that are gone: one finding for the file."""
    if not _GONE.search(file.text):
        return
    tokens = tokenize.generate_tokens(io.StringIO(file.text).readline)
    prose = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    strings = [n for n in file.nodes(cst.SimpleString) if isinstance(file.parent(n), cst.Expr)]
    prose += [(file.position(node)[0], node.value) for node in strings]
    starts = {node: file.position(node)[0] for node in file.left}
    left = {line for node, at in starts.items() for line in range(at, at + len(code(node).splitlines()))}
    found = sorted((line, name) for line, text in prose if line not in left for name in _GONE.findall(text))
    if found:
        lines = sorted({line for line, _ in found})
        where = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        message = f"comments still describe {', '.join(sorted({name for _, name in found}))} ({where})"
        ctx = contexts[0]
        finding = Finding(CODE, Severity.REVIEW, lines[0], message, trial=ctx.trial.name)
        ctx.findings.by_file.setdefault(file.path, []).append(finding)
