"""Let ``train_batch`` and ``evaluate_batch`` take an iterator and fetch their batch from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import code, dotted, has_star, parameters, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.batch import Consumption, batch_use, first_statement
from ds_migrate.trial.batch_calls import BatchCalls
from ds_migrate.trial.batch_decorators import Passing, decorators

CODE = Code.BATCH

_ORDER = {"train_batch": ("batch", "epoch_idx", "batch_idx"), "evaluate_batch": ("batch", "batch_idx")}


def apply(ctx: RuleContext) -> None:
    for file, node, text in _put_on(ctx):
        ctx.blocked(
            CODE, file, node, f"{text} is assigned another function: cannot determine what takes the batch there",
            "define the method in the class, and let it call that function with the batch",
        )  # fmt: skip
    moved = not any(True for _ in ctx.trial.uses_of("experimental.disable_auto_to_device"))
    for part, function in ctx.trial.methods(*_ORDER):
        if not part.file.edits.once(function, CODE):
            continue
        problem = _problem(function)
        if problem is not None:
            ctx.blocked(CODE, part.file, function, *problem)
            continue
        _decorated(ctx, part.file, function)
        if function.name.value == "train_batch" and ctx.plan.accumulation.is_used and ctx.target.ships_helpers:
            _serve_index(ctx, part.file, function)
        _convert(ctx, part.file, function, moved)
    _calls(ctx)
    if not ctx.target.ships_helpers:
        _determined_loop(ctx)


def _determined_loop(ctx: RuleContext) -> None:
    """Report what the DeepSpeedTrial loop of Determined 0.38 gets wrong or lacks."""
    _indices(ctx, "in Determined 0.38 epoch_idx is always 0 here and batch_idx starts anew after each report",
             "count batches in the trial, or convert for the bundled runtime", ("batch_idx", "epoch_idx"))  # fmt: skip
    for part, function in ctx.trial.methods("evaluate_full_dataset"):
        ctx.blocked(
            CODE, part.file, function, "Determined's DeepSpeedTrial never calls evaluate_full_dataset",
            "evaluate in evaluate_batch with a reducer, or convert for the bundled runtime (--target runtime)",
        )  # fmt: skip


def _indices(ctx: RuleContext, message: str, advice: str, names: tuple[str, ...]) -> None:
    """Point at the first use of an index whose meaning changes."""
    for part, function in ctx.trial.methods("train_batch"):
        node = _first_use(part.file, function, names)
        if node is not None:
            ctx.review(CODE, part.file, node, message, advice)


def _first_use(file: SourceFile, function: cst.FunctionDef, names: Sequence[str]) -> cst.CSTNode | None:
    """Return where a method first uses one of the names as a variable, or as a key of its ``**kwargs``."""
    keywords = function.params.star_kwarg is not None
    for node in walk(function.body):
        if isinstance(node, cst.SimpleString) and keywords and node.evaluated_value in names:
            return node
        if isinstance(node, cst.Name) and node.value in names:
            parent = file.parent(node)
            is_variable = not (isinstance(parent, cst.Attribute) and parent.attr is node)
            if is_variable and not (isinstance(parent, cst.Arg) and parent.keyword is node):
                return node
    return None


def _serve_index(ctx: RuleContext, file: SourceFile, function: cst.FunctionDef) -> None:
    """Let ``batch_idx`` count micro-batches with accumulation, as it did: the loop counts optimizer steps."""
    star, kwargs = function.params.star_arg, function.params.star_kwarg
    if isinstance(star, cst.Param) and (hidden := _first_use(file, function, [star.name.value])) is not None:
        ctx.review(
            CODE, file, hidden, "with accumulation batch_idx counts optimizer steps now, it counted micro-batches",
            f"take it from {ctx.context_attribute()}.get_micro_batch_idx()",
        )  # fmt: skip
    elif _first_use(file, function, ["batch_idx", *([kwargs.name.value] if kwargs is not None else [])]) is not None:
        _first_line(file, function, f"batch_idx = {ctx.context_attribute()}.get_micro_batch_idx()")
        ctx.converted(
            CODE, file, function, "batch_idx counts micro-batches, as it did: the loop counts optimizer steps"
        )


def _decorated(ctx: RuleContext, file: SourceFile, function: cst.FunctionDef) -> None:
    """Report decorators: they get the iterator, too."""
    method = function.name.value
    for decorator, passing in decorators(ctx.trial, file, function):
        name = code(decorator.decorator)
        if passing is Passing.TOUCHED:
            ctx.blocked(
                CODE, file, decorator,
                f"the decorator {name} uses its arguments, and would get an iterator where {method} took a batch",
                "do it in the method, or in a helper that the method calls with its batch",
            )  # fmt: skip
        elif passing is Passing.UNKNOWN:
            ctx.review(
                CODE, file, decorator,
                f"the decorator {name} gets an iterator where {method} took a batch; cannot determine how it uses it",
            )  # fmt: skip


def _problem(function: cst.FunctionDef) -> tuple[str, str] | None:
    name = function.name.value
    params = function.params
    given = [p.name.value for p in parameters(function)]
    required = [p.name.value for p in parameters(function) if p.default is None]
    if (
        name == "train_batch"
        and not params.star_kwarg
        and given[1:4] != list(_ORDER[name])
        and not isinstance(params.star_arg, cst.Param)
    ):
        wanted = ", ".join(_ORDER[name])
        return f"{name}({', '.join(given)}) is not called with those parameters", f"write {name}(self, {wanted})"
    extra = [p for p in required if p not in ("self", *_ORDER[name])]
    if len(given) < 2 or given[1] != "batch" or extra:
        wanted = ", ".join(_ORDER[name])
        return f"{name}({', '.join(given)}) is not called with those parameters", f"write {name}(self, {wanted})"
    return None


def _convert(ctx: RuleContext, file: SourceFile, function: cst.FunctionDef, moved: bool) -> None:
    name = parameters(function)[1].name.value
    used = {n.value for n in file.nodes(cst.Name, below=function)}
    iterator = "dataloader_iter" if "dataloader_iter" not in used else "dataloader_iterator"
    use = batch_use(file, function, name)
    fetch = f"next({iterator})"
    if moved:
        fetch = f"{ctx.context_attribute()}.to_device({fetch})"
    _rename_parameter(file, function, iterator)
    _fold_head(file, function)
    _positional(file, function)
    if use.consumption is Consumption.INLINE:
        assert use.read is not None
        file.replace(use.read, fetch)
    elif use.consumption is Consumption.DELEGATED:
        given = file.parent(use.read) if use.read is not None else None
        assert use.read is not None and isinstance(given, cst.Arg)
        file.replace(use.read, iterator)
        if given.keyword is not None:
            file.replace(given.keyword, "dataloader_iter")
        file.edits.once(given, CODE)  # it is no batch any more
    elif use.consumption is Consumption.UNUSED:
        _first_line(file, function, f"next({iterator})  # this trial does not use its batches")
    else:
        _first_line(file, function, f"{name} = {fetch}")
    ctx.converted(
        CODE,
        file,
        function,
        f"{function.name.value} takes an iterator; its batch, from next(), is {use.consumption.value}",
    )


def _first_line(file: SourceFile, function: cst.FunctionDef, line: str) -> None:
    statement, after = first_statement(function)
    if not isinstance(statement, cst.BaseStatement):  # the whole method stands behind its colon
        file.change(function, lambda updated: _in_a_block(updated, file.edits.parse(line)))
    elif after:
        file.after(statement, line)
    else:
        file.before(statement, line, above_comments=True)


def _in_a_block(function: cst.CSTNode, first: Sequence[cst.BaseStatement]) -> cst.CSTNode:
    """Return the function with an indented body that begins with these lines."""
    assert isinstance(function, cst.FunctionDef)
    suite = function.body
    if isinstance(suite, cst.SimpleStatementSuite):
        own = cst.SimpleStatementLine(suite.body, trailing_whitespace=suite.trailing_whitespace)
        suite = cst.IndentedBlock([own])
    return function.with_changes(body=suite.with_changes(body=[*first, *suite.body]))


def _rename_parameter(file: SourceFile, function: cst.FunctionDef, iterator: str) -> None:
    param = parameters(function)[1]
    annotation = param.annotation
    wrapped: cst.BaseExpression | None = None
    if annotation is not None:
        text = annotation.annotation
        name = _iterator_name(file)
        if isinstance(text, cst.SimpleString):
            wrapped = cst.SimpleString(f"{text.quote}{name}[{text.raw_value}]{text.quote}")
        else:
            wrapped = cst.parse_expression(f"{name}[x]")

    def rename(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Param)
        new = updated.with_changes(name=cst.Name(iterator))
        if wrapped is None or updated.annotation is None:
            return new
        inner = wrapped
        if isinstance(inner, cst.Subscript):
            inner = inner.with_changes(slice=[cst.SubscriptElement(cst.Index(updated.annotation.annotation))])
        return new.with_changes(annotation=updated.annotation.with_changes(annotation=inner))

    file.change(param, rename)


def _fold_head(file: SourceFile, function: cst.FunctionDef) -> None:
    """Move parameters that no longer fit on the line of ``def`` to a separate line."""
    column = file.position(function)[1] - 1

    def fits(function: cst.FunctionDef) -> bool:
        bare = function.with_changes(leading_lines=[], lines_after_decorators=[], decorators=[])
        head = code(bare.with_changes(body=cst.SimpleStatementSuite([]))).strip()
        return "\n" in head or "\r" in head or column + len(head) <= file.width

    def fold(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.FunctionDef)
        params = updated.params
        if fits(updated) or params.kwonly_params or params.star_kwarg is not None:
            return updated
        closing = cst.ParenthesizedWhitespace(indent=True)
        opening = closing.with_changes(last_line=cst.SimpleWhitespace(file.module.default_indent))
        last = params.params[-1].with_changes(whitespace_after_param=closing)
        return updated.with_changes(
            params=params.with_changes(params=[*params.params[:-1], last]), whitespace_before_params=opening
        )

    if fits(function):
        file.change(function, fold)


def _iterator_name(file: SourceFile) -> str:
    for bound, qualified in file.imports.bindings.items():
        if qualified in ("typing.Iterator", "collections.abc.Iterator"):
            return bound
    for node in file.names.import_nodes:
        if (
            file.imports.runs_with_module(node)
            and isinstance(node, cst.ImportFrom)
            and dotted(node.module) == "typing"
            and not isinstance(node.names, cst.ImportStar)
        ):
            if file.edits.once(node, "Iterator"):
                file.change(node, _with_iterator)
            return "Iterator"
    return file.imports.name("collections.abc", "Iterator")


def _with_iterator(updated: cst.CSTNode) -> cst.CSTNode:
    """Add ``Iterator`` in its place among the names of ``from typing import ...``."""
    assert isinstance(updated, cst.ImportFrom) and not isinstance(updated.names, cst.ImportStar)
    names = list(updated.names)
    index = next((i for i, n in enumerate(names) if code(n.name) > "Iterator"), len(names))
    plain = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if index == len(names):
        last = names[-1]
        commas = [n.comma for n in names[:-1] if isinstance(n.comma, cst.Comma)]
        joint = commas[-1] if commas else plain
        trailing = last.comma
        names[-1] = last.with_changes(comma=joint)
        names.append(cst.ImportAlias(cst.Name("Iterator"), comma=trailing))
    else:
        before = names[index - 1].comma if index else names[index].comma
        comma = before if isinstance(before, cst.Comma) else plain
        names.insert(index, cst.ImportAlias(cst.Name("Iterator"), comma=comma))
    return updated.with_changes(names=names)


def _positional(file: SourceFile, function: cst.FunctionDef) -> None:
    """Let keyword-only and ``**kwargs`` forms take the indices that the loop passes by position."""
    params = function.params
    wanted = _ORDER[function.name.value][1:]
    given = {p.name.value for p in parameters(function)}
    keyword_only = {p.name.value for p in params.kwonly_params}
    if params.star_kwarg is not None and not set(wanted) <= given:
        kwargs = params.star_kwarg.name.value
        missing = [w for w in wanted if w not in given]

        def add(updated: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(updated, cst.Parameters)
            return updated.with_changes(params=[*updated.params, *(cst.Param(cst.Name(m)) for m in missing)])

        file.change(params, add)
        if any(isinstance(n, cst.Name) and n.value == kwargs for n in walk(function.body)):
            pairs = ", ".join(f'"{m}": {m}' for m in missing)
            _first_line(file, function, f"{kwargs} = {{{pairs}, **{kwargs}}}")
    elif keyword_only & set(wanted):

        def flatten(updated: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(updated, cst.Parameters)
            return updated.with_changes(
                params=[*updated.params, *updated.kwonly_params], kwonly_params=[], star_arg=cst.MaybeSentinel.DEFAULT
            )

        file.change(params, flatten)


def _calls(ctx: RuleContext) -> None:
    """Convert ``trial.evaluate_batch(batch)``: it gets an iterator over that one batch."""
    calls = BatchCalls(ctx.trial)
    for file, call in calls.unknown():
        method = code(call.func)
        ctx.review(
            CODE, file, call, f"{method}() is given a batch; if that is {ctx.trial.name}, it takes an iterator now",
            f"if it is, call {method}(iter([batch]), ...)",
        )  # fmt: skip
    for found in calls:
        given = found.batch
        if given is None:
            if has_star(found.call):
                ctx.blocked(
                    CODE, found.file, found.call, f"the batch that {found.method} is given is hidden behind * or **",
                    "write the arguments out",
                )  # fmt: skip
            continue
        if not found.file.edits.once(given, CODE):
            continue
        if given.keyword is not None:
            found.file.replace(given.keyword, "dataloader_iter")
        found.file.change(given.value, _as_iterator)


def _as_iterator(updated: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(updated, cst.BaseExpression)
    return cst.Call(cst.Name("iter"), [cst.Arg(cst.List([cst.Element(updated)]))])


def _put_on(ctx: RuleContext) -> Iterator[tuple[SourceFile, cst.Assign, str]]:
    """Yield where a method that takes a batch is assigned, to the class or to the trial, instead of defined."""
    for file in ctx.trial.files:
        for node in file.nodes(cst.Assign):
            for target in node.targets:
                owner, _, name = (dotted(target.target) or "").rpartition(".")
                if name in ("train_batch", "evaluate_batch") and owner in ("self", ctx.trial.facts.facts.name):
                    yield file, node, f"{owner}.{name}"
