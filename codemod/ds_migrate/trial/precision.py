"""The requests of a trial for mixed precision: through the context, and in its own autocast blocks."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import argument, dotted, is_literal
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.model import Trial

AMP_CALLS = frozenset({"experimental.use_amp", "use_amp", "configure_apex_amp"})
_AUTOCASTS = frozenset(
    {
        "torch.cuda.amp.autocast",
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp.autocast_mode.autocast",
        "torch.cpu.amp.autocast",
    }
)


def autocast_blocks(trial: Trial) -> Iterator[tuple[SourceFile, cst.Call, cst.FunctionDef]]:
    """Yield the trial's autocast contexts outside of ``__init__``, without those that are always off: the file, the
    call, and its method."""
    for part, function in trial.methods():
        if function.name.value == "__init__":
            continue
        for node in part.file.nodes(cst.Call, below=function):
            if part.file.names.qualified(node.func) in _AUTOCASTS and not _is_off(part.file, node):
                yield part.file, node, function


def enabled_argument(file: SourceFile, autocast: cst.Call) -> cst.BaseExpression | None:
    """Return the ``enabled`` of an autocast, None when it is left out or ``True``."""
    first = (file.names.qualified(autocast.func) or "").startswith(("torch.cuda.", "torch.cpu."))
    found = argument(autocast, 0 if first else 2, "enabled")
    return found.value if found is not None and not is_literal(found.value, "True") else None


def scalers(
    use: ContextUse, given: cst.BaseExpression | None, trial: Trial
) -> Iterator[tuple[cst.FunctionDef, cst.Call]]:
    """Yield where the scaler of a ``wrap_scaler`` is made: in the wrap itself, or under the name that it is given."""
    if isinstance(given, cst.Call) and use.function is not None:
        yield use.function, given
    name = dotted(given)
    for part, function in trial.methods():
        for value in part.file.values_of({name}, function) if name is not None else ():
            if isinstance(value, cst.Call) and (part.file.names.qualified(value.func) or "").endswith("GradScaler"):
                yield function, value


def _is_off(file: SourceFile, call: cst.Call) -> bool:
    enabled = enabled_argument(file, call)
    return enabled is not None and is_literal(enabled, "False")
