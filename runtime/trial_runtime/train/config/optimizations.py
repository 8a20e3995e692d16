"""``optimizations`` of an experiment config."""

from __future__ import annotations

from trial_runtime.train.config import entrypoint
from trial_runtime.train.config.errors import Section


class Optimizations:
    """``optimizations``, which counts where Determined itself made the context: not where a script calls ``init``."""

    def __init__(self, section: Section, entry: entrypoint.Entrypoint | None) -> None:
        self.aggregation_frequency = section.integer("aggregation_frequency", 1, minimum=1)
        self.average_aggregated_gradients = section.boolean("average_aggregated_gradients", True)
        self.notices: list[tuple[str, str]] = []
        if section.get("mixed_precision") not in (None, "O0"):
            section.reject("mixed_precision", "apex is not run here; use torch.autocast in the trial, and remove it")
        if entry is None or entry.kind == "class":
            return
        for name in ("aggregation_frequency", "average_aggregated_gradients"):
            if section.has(name):
                self.notices.append((section.at(name), "not read, as on a cluster: the script gives its own to init()"))
        self.aggregation_frequency, self.average_aggregated_gradients = 1, True
