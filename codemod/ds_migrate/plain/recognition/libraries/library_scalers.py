"""The ``NativeScaler`` of timm, which goes back and steps in the library: a class of the program takes its place.

An engine can only take the place of calls that the program makes itself.
"""

from __future__ import annotations

import libcst as cst

from ds_migrate.files.prefilter import LIBRARY_SCALER
from ds_migrate.syntax.nodes import dotted

_NAME, _CLIPS, _MODULES = "NativeScaler", "dispatch_clip_grad", ("timm.utils", "timm.utils.cuda")
OWN_SCALER = "A GradScaler that goes back, clips and steps in one call, as timm's does."
_CLASS = '''\


class {name}:
    """{docstring}"""

    state_dict_key = "amp_scaler"

    def __init__(self, device="cuda"):
        self._scaler = torch.amp.GradScaler(device)

    def __call__(
        self, loss, optimizer, clip_grad=None, clip_mode="norm", parameters=None, create_graph=False, need_update=True
    ):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if need_update:
            if clip_grad is not None:
                self._scaler.unscale_(optimizer)
                {clips}(parameters, clip_grad, mode=clip_mode)
            self._scaler.step(optimizer)
            self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict):
        self._scaler.load_state_dict(state_dict)
'''


def with_own_scaler(data: bytes) -> bytes | None:
    """Return a file with a class in the place of the one that it imports from timm; None where it imports none."""
    if LIBRARY_SCALER.search(data) is None:
        return None
    try:
        module = cst.parse_module(data)
    except (cst.ParserSyntaxError, UnicodeDecodeError, SyntaxError, LookupError, RecursionError):
        return None
    body = list(module.body)
    imports = [i for i, line in enumerate(body) if _imports(line)]
    found = [(i, node) for i in imports for node in _imports(body[i]) if _alias(node) is not None]
    if len(found) != 1 or len(_imports(body[found[0][0]])) != 1:
        return None
    index, node = found[0]
    assert isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar)
    alias = _alias(node)
    assert alias is not None
    name = alias.evaluated_alias or _NAME
    clips = next((one.evaluated_alias or _CLIPS for one in node.names if one.evaluated_name == _CLIPS), None)
    line = body[index]
    body[index] = line.with_deep_changes(
        node, module=cst.parse_expression("timm.utils"), names=_names(node, alias, clips)
    )
    has_torch = any(
        one.evaluated_name == "torch" and one.evaluated_alias is None
        for i in imports for each in _imports(body[i]) if isinstance(each, cst.Import) for one in each.names
    )  # fmt: skip
    own = cst.parse_module(
        _CLASS.format(name=name, clips=clips or _CLIPS, docstring=OWN_SCALER), module.config_for_parsing
    )
    last = imports[-1] + 1
    own_class = own.body[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2)
    if last < len(body) and not any(line.comment for line in _leading_lines(body[last])[:2]):
        missing = max(0, 2 - len([each for each in _leading_lines(body[last]) if each.comment is None]))
        spaced = [cst.EmptyLine(indent=False)] * missing + list(_leading_lines(body[last]))
        body[last] = body[last].with_changes(leading_lines=spaced)
    torch = [] if has_torch else [cst.parse_statement("import torch\n")]
    return module.with_changes(body=[*body[:last], *torch, own_class, *body[last:]]).bytes


def _imports(line: cst.CSTNode) -> list[cst.Import | cst.ImportFrom]:
    parts = line.body if isinstance(line, cst.SimpleStatementLine) else ()
    return [part for part in parts if isinstance(part, (cst.Import, cst.ImportFrom))]


def _alias(node: cst.Import | cst.ImportFrom) -> cst.ImportAlias | None:
    """Return the name of timm's class in an import."""
    if not isinstance(node, cst.ImportFrom) or isinstance(node.names, cst.ImportStar) or node.relative:
        return None
    is_timm = node.module is not None and dotted(node.module) in _MODULES
    return next((alias for alias in node.names if is_timm and alias.evaluated_name == _NAME), None)


def _names(node: cst.ImportFrom, alias: cst.ImportAlias, clips: str | None) -> list[cst.ImportAlias]:
    """Return what an import names with the function that clips in the place of the class."""
    assert not isinstance(node.names, cst.ImportStar)
    if clips is None:
        clip = alias.with_changes(name=cst.Name(_CLIPS), asname=None)
        return [clip if one is alias else one for one in node.names]
    kept = [one for one in node.names if one is not alias]
    return [*kept[:-1], kept[-1].with_changes(comma=node.names[-1].comma)]


def _leading_lines(line: cst.CSTNode) -> list[cst.EmptyLine]:
    return list(getattr(line, "leading_lines", ()))
