"""The one table of the names of Determined's library, with a verdict for each.

The codemod decides by it, the runtime takes its messages from it, and ``docs/differences.md`` and the tests are made
from it. It imports neither torch nor determined::

    verdict_of("determined.util.download_gcs_blob_with_backoff")  # Verdict.PROVIDE: replace the prefix
    verdict_of("determined.pytorch.PyTorchTrial")                 # Verdict.CONVERT: a rule rewrites it
    verdict_of("determined.keras.TFKerasTrial")                   # Verdict.REVIEW: leave it and report ``advice_of``
    verdict_of("determined.experimental.client.get_model")        # Verdict.REFUSE: replace the prefix and report

Names are dotted and as Determined had them, with ``model_hub`` and ``determined_common`` beside ``determined``. What
lies below a name, such as a method of a class, has the verdict of the nearest name above it that covers it. A name that
no row covers, such as one that Determined never had, is left with a review.
"""

from __future__ import annotations

from ds_migrate.names import cluster, library, trial_api
from ds_migrate.names.row import Row, Verdict

ROWS: dict[str, Row] = {row.name: row for row in [*trial_api.ROWS, *library.ROWS, *cluster.ROWS]}
"""Every row by its name, in the order in which documents show them."""


def row_of(name: str) -> Row | None:
    """Return the row of ``name``, or of the nearest name above it that covers it; None when there is neither."""
    path = name
    while path:
        row = ROWS.get(path)
        if row is not None and (row.covers or path == name):
            return row
        path = path.rpartition(".")[0]
    return None


def verdict_of(name: str) -> Verdict:
    """Return how ``name`` is converted; for a name that no row covers, ``Verdict.REVIEW``."""
    row = row_of(name)
    return Verdict.REVIEW if row is None else row.verdict


def advice_of(name: str) -> str:
    """Return what to do instead of using ``name``, as an instruction; empty for a name that is provided."""
    row = row_of(name)
    return "remove the use, or keep determined installed for it" if row is None else row.advice


def served_at(name: str) -> str | None:
    """Return where the target has ``name``, dotted; None where it does not.

    ``determined.pytorch.PyTorchTrial.train_batch`` is ``trial_runtime.pytorch.deepspeed.DeepSpeedTrial.train_batch``.
    """
    row = row_of(name)
    return None if row is None or row.served is None else row.served + name[len(row.name) :]


__all__ = ["ROWS", "Row", "Verdict", "advice_of", "row_of", "served_at", "verdict_of"]
