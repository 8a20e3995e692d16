"""Clipping by a callback or by a hyperparameter: the trial's ``step_optimizer`` gets it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set

from ds_migrate.upgrade.factories import remove_method
from ds_migrate.upgrade.family import Family, OldClass
from ds_migrate.upgrade.functions import is_free_of, local_names
from ds_migrate.upgrade.problem import UpgradeError

_CALLBACKS = {"ClipGradsL2Norm": "clip_grad_norm_", "ClipGradsL2Value": "clip_grad_value_"}
_HYPERPARAMETERS = {"clip_grad_l2_norm": "clip_grad_norm_", "clip_grad_val": "clip_grad_value_"}
_HOOK = "on_before_optimizer_step"


def upgrade_clipping(family: Family, context: str, words: Set[str]) -> str:
    """Take the callback that clips from ``build_callbacks``, and return the function that clips as source, "" for none.

    ``words``: the words of the experiment configs.

    Raises:
        UpgradeError: it cannot be determined what clips.
    """
    found: list[tuple[OldClass, ast.Call, str]] = []
    for cls in family.classes.values():
        for node in ast.walk(cls.edits.tree):
            if isinstance(node, ast.FunctionDef) and node.name == _HOOK:
                raise UpgradeError(
                    node,
                    f"{_HOOK} is called by the API before 0.13 only",
                    f"give its body to step_optimizer as clip_grads, and remove {_HOOK} from the callback",
                )
        found += [(cls, *call) for call in _clipping_calls(cls)]
    if not found:
        return _by_hyperparameter(family, context, words)
    if len(found) > 1:
        raise UpgradeError(
            found[1][1], "gradients are clipped in several places", "keep one of the callbacks that clip"
        )
    ((cls, call, function),) = found
    return f"lambda params: {_torch(cls)}.nn.utils.{function}(params, {_take(cls, call)})"


def _clipping_calls(cls: OldClass) -> list[tuple[ast.Call, str]]:
    found = []
    for node in ast.walk(cls.edits.tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _CALLBACKS:
                found.append((node, _CALLBACKS[name]))
    return found


def _take(cls: OldClass, call: ast.Call) -> str:
    """Remove the callback from the dict that ``build_callbacks`` returns; return the value that it clips to."""
    method = cls.methods.get("build_callbacks")
    parents = cls.edits.parents
    holder = parents[call]
    values = [*call.args, *(word.value for word in call.keywords)]
    statement = parents.get(holder)
    if (
        method is None
        or len(values) != 1
        or not isinstance(holder, ast.Dict)
        or not isinstance(statement, ast.Return)
        or statement not in method.body
        or not is_free_of(values[0], local_names(method))
    ):
        raise UpgradeError(
            call,
            "a callback that clips is not created in the dict that build_callbacks returns",
            'write return {"clip_grads": ClipGradsL2Norm(value)} in build_callbacks',
        )
    edits = cls.edits
    index = holder.values.index(call)
    if len(holder.values) == 1 and len(method.body) == 1 and len(cls.node.body) > 1:
        remove_method(cls, method)
    else:
        key = holder.keys[index]
        start = edits.start(key) if key is not None else edits.start(call)
        following = holder.keys[index + 1] if index + 1 < len(holder.keys) else None
        if following is not None:
            edits.replace(start, edits.start(following), "")
        elif index:
            edits.replace(edits.end(holder.values[index - 1]), edits.end(call), "")
        else:
            edits.replace(edits.start(holder) + 1, edits.end(holder) - 1, "")
    return edits.source(values[0])


def _torch(cls: OldClass) -> str:
    """Return what the file calls torch; imported if it is not."""
    for node in ast.walk(cls.edits.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch" and (alias.asname is None or alias.name == "torch"):
                    return alias.asname or "torch"
    imports = [s for s in cls.edits.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    first = next(s for s in imports if getattr(s, "module", "") != "__future__")
    cls.edits.insert_before(first, ["import torch"])
    return "torch"


def _by_hyperparameter(family: Family, context: str, words: Set[str]) -> str:
    """Return the clipping that the harness to 0.12.6 did by itself."""
    given: Mapping[str, str] = {name: function for name, function in _HYPERPARAMETERS.items() if name in words}
    if not given:
        return ""
    cls = family.owners("train_batch")[0]
    if len(given) > 1:
        raise UpgradeError(
            cls.node,
            "the experiment configs give clip_grad_l2_norm and clip_grad_val",
            "keep one of the two hyperparameters",
        )
    ((name, function),) = given.items()
    cls.edits.notice(
        cls.methods["train_batch"],
        f"the hyperparameter {name} clipped by itself; now the trial does, and every config has to give it",
        is_review=True,
    )
    me = cls.methods["train_batch"].args.args[0].arg
    return f'lambda params: {_torch(cls)}.nn.utils.{function}(params, {me}.{context}.get_hparam("{name}"))'
