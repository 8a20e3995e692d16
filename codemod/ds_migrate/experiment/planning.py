"""All experiment configs of a run: which of them concern the trials, and what becomes of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.experiment.model import ConfigFile, ScriptRun, TrialFacts
from ds_migrate.experiment.search_terms import may_name, needles
from ds_migrate.findings import FileResult

if TYPE_CHECKING:
    from ds_migrate.experiment.trial_lookup import Resolver


def plan(
    configs: Sequence[ConfigFile],
    trials: Sequence[TrialFacts],
    scripts: Mapping[Path, Sequence[ScriptRun]],
    *,
    target: str = "runtime",
    root: Path | None = None,
) -> list[FileResult]:
    """What becomes of the experiment configs of converted trials; a file without news has no result.

    ``scripts``: absolute path of a script -> the trials that it runs, each as (source, class name) or, where the name
    says enough, as the class name alone. ``target``: ``"runtime"`` or
    ``"determined"``. ``root``: the project's root, where the search for a context directory ends.

    A config is edited when it is ``named`` and every trial it runs was converted. No byte changes in one that runs a
    blocked trial, cannot be parsed, names a class that is not there, or whose edit would touch what an anchor shares.
    """
    names = needles(trials, scripts)
    results: list[FileResult] = []
    resolver: Resolver | None = None
    for config in configs:
        if not names or not may_name(config.data, names):
            continue
        if resolver is None:
            from ds_migrate.experiment.trial_lookup import Resolver

            resolver = Resolver(trials, scripts, root)
        from ds_migrate.experiment.config import plan_config

        result = plan_config(config, resolver, names, target)
        if result is not None:
            results.append(result)
    return results
