"""Leave out the warnings that DeepSpeed's own calls of torch cause."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from trial_runtime.pytorch.deepspeed._patches.patch import Patch

_RENAMED = ("all_gather_into_tensor", "reduce_scatter_tensor", "_all_gather_base", "_reduce_scatter_base")


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Ignore the warnings about collectives that torch has renamed and DeepSpeed calls by their former names."""
    before = warnings.filters[:]
    for name in _RENAMED:
        warnings.filterwarnings("ignore", message=rf".*{name}.*", category=FutureWarning)
    added = [entry for entry in warnings.filters if entry not in before]
    try:
        yield
    finally:
        for entry in added:
            with contextlib.suppress(ValueError):
                warnings.filters.remove(entry)  # type: ignore[attr-defined]


PATCH = Patch(
    "future_warnings",
    "DeepSpeed calls collectives of torch by their former names, which warns in every process.",
    in_process=apply,
)
