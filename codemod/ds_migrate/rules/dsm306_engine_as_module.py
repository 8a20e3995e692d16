"""Use ``engine.module`` where a trial needs its model and not an engine: ``state_dict``, type, items."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import Form
from ds_migrate.decisions.engine_location import is_after_engine
from ds_migrate.decisions.init_order import raw_only
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, code, dotted, last_name, parameters, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.references import references

_TRAINING = ("train_batch", "evaluate_batch", "evaluate_full_dataset")

CODE = Code.ENGINE_AS_MODULE

_NAMES = frozenset(
    [
        "state_dict",
        "load_state_dict",
        "named_parameters",
        "named_modules",
        "named_buffers",
        "named_children",
        "modules",
        "children",
        "apply",
        "__class__",
        "get_submodule",
        "get_parameter",
        "add_module",
        "register_module",
        "register_buffer",
        "register_parameter",
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "requires_grad_",
        "no_sync",
        "to",
        "cpu",
        "cuda",
        "half",
        "float",
        "double",
        "save_pretrained",
    ]
)
_SWITCHES = ("train", "eval")
_WHOLE = frozenset(
    {
        "isinstance",
        "type",
        "len",
        "iter",
        "list",
        "enumerate",
        "copy.deepcopy",
        "copy.copy",
        "torch.save",
        "torch.jit.script",
        "torch.jit.trace",
    }
)


# Of all these, what code that has no model in mind asks as well.
_ANYTHING = frozenset(["len", "iter", "list", "enumerate", "type", "to", "cpu", "cuda", "half", "float", "double"])


def apply(ctx: RuleContext) -> None:
    trial, location = ctx.trial, ctx.plan.location
    if ctx.plan.form is not Form.SIMPLE:
        return
    target = trial.models[0].target
    if not target.startswith("self."):
        return
    early, raw = _early(ctx), raw_only(trial, location)
    for file, node, function in references(trial, target):
        if function.name.value == "__init__" and not is_after_engine(trial, location, file, function, node):
            continue
        if node in early:
            continue
        if function.name.value in raw:
            continue
        if _needs_module(ctx, file, node, function) and file.edits.once(node, CODE):
            file.replace(node, f"{dotted(node)}.module")
            ctx.converted(CODE, file, node, f"{dotted(node)} is an engine here, its module is meant")
    for part, function in trial.methods():
        if function.name.value not in raw:
            for node in part.file.nodes(cst.Call, cst.Attribute, below=function):
                name = node.func if isinstance(node, cst.Call) else node.attr
                if isinstance(name, cst.Name) and name.value in ("getattr", "vars", "__dict__"):
                    _by_string(ctx, part.file, node, function)


def _by_string(ctx: RuleContext, file: SourceFile, node: cst.CSTNode, function: cst.FunctionDef) -> None:
    """Convert ``getattr(self, "model")``, and report ``getattr(self, name)``, ``vars(self)`` and ``self.__dict__``."""
    every = dotted(node) == "self.__dict__"
    if isinstance(node, cst.Call):
        called, of = dotted(node.func), [dotted(arg.value) for arg in node.args[:1]] == ["self"]
        every = of and called == "vars"
        if of and called == "getattr" and len(node.args) > 1:
            name = node.args[1].value
            if not isinstance(name, cst.SimpleString):
                every = True
            elif f"self.{name.raw_value}" == ctx.trial.models[0].target:
                location = ctx.plan.location
                ready = function.name.value != "__init__" or is_after_engine(ctx.trial, location, file, function, node)
                if ready and _needs_module(ctx, file, node, function) and file.edits.once(node, CODE):
                    file.change(
                        node, lambda updated: cst.Attribute(cst.ensure_type(updated, cst.Call), cst.Name("module"))
                    )
                    ctx.converted(CODE, file, node, f"{code(node)} is an engine here, its module is meant")
    if every and function.name.value != "__init__" and _asks_module(file, function):
        ctx.review(
            CODE, file, node,
            f"what {code(node)} gives may be the engine {ctx.trial.models[0].target}: names of its parameters carry "
            "module., and it is no instance of the model's class",
            "use its module: x.module if x is the engine",
        )  # fmt: skip


def _asks_module(file: SourceFile, function: cst.FunctionDef) -> bool:
    """Return whether a function does something that an engine does in another way than its module."""
    return any(
        (file.names.qualified(node.func) or "") in _WHOLE - _ANYTHING
        if isinstance(node, cst.Call)
        else isinstance(node, cst.Attribute) and node.attr.value in _NAMES - _ANYTHING
        for node in file.nodes(cst.Call, cst.Attribute, below=function)
    )


def _early(ctx: RuleContext) -> set[cst.CSTNode]:
    """Return everything that runs before the engine is made, in the function where it is made."""
    return {node for statement in ctx.plan.location.statements_above for node in walk(statement)}


def _needs_module(ctx: RuleContext, file: SourceFile, node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    parent = file.parent(node)
    if isinstance(parent, cst.IfExp):  # model.module if isinstance(model, DistributedDataParallel) else model
        return f"{dotted(node)}.module" in (dotted(parent.body), dotted(parent.orelse))
    if isinstance(parent, cst.Attribute):
        if parent.attr.value in _NAMES or (parent.attr.value in _SWITCHES and _value_used(file, parent)):
            return True
        return isinstance(file.parent(parent), (cst.AssignTarget, cst.AugAssign)) and parent.value is node
    if isinstance(parent, cst.Subscript):
        return parent.value is node
    if isinstance(parent, (cst.For, cst.CompFor)):
        return parent.iter is node
    if isinstance(parent, cst.Arg):
        call = file.parent(parent)
        return isinstance(call, cst.Call) and not _forwards(ctx, file, call, parent, function)
    return False


def _value_used(file: SourceFile, method: cst.Attribute) -> bool:
    """Return whether what ``model.eval()`` returns is used: an engine returns nothing there."""
    call = file.parent(method)
    return isinstance(call, cst.Call) and call.func is method and not isinstance(file.parent(call), cst.Expr)


def _forwards(ctx: RuleContext, file: SourceFile, call: cst.Call, arg: cst.Arg, function: cst.FunctionDef) -> bool:
    """Return whether the function only calls the model (``compute_loss(self.model, batch)``): it gets the engine.

    Everything else was written for the module, and a library's code for any module.
    """
    if file.names.qualified(call.func) in _WHOLE or function.name.value not in _TRAINING:
        return False
    name = last_name(call.func)
    method = isinstance(call.func, cst.Attribute)
    found = [
        (other, inner)
        for other in ctx.trial.files
        for inner in other.nodes(cst.FunctionDef)
        if inner.name.value == name
    ]
    for other, inner in found:
        bound = (
            parameters(inner)[1:]
            if method and "self" in [p.name.value for p in parameters(inner)[:1]]
            else parameters(inner)
        )
        given = next((p for i, p in enumerate(bound) if argument(call, i, p.name.value) is arg), None)
        if given is None or not _only_called(other, inner, given.name.value):
            return False
    return bool(found)


def _only_called(file: SourceFile, function: cst.FunctionDef, name: str) -> bool:
    """Return whether the function calls its parameter, and does nothing else with it but switch its mode."""
    called = False
    for node in file.nodes(cst.Name, below=function.body):
        if node.value != name:
            continue
        parent = file.parent(node)
        if isinstance(parent, cst.Call) and parent.func is node:
            called = True
        elif not (
            isinstance(parent, cst.Attribute)
            and parent.value is node
            and parent.attr.value in ("train", "eval", "training")
        ):
            return False
    return called
