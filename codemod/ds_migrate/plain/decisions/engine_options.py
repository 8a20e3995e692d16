"""What was asked for about an engine: its optimizer in the config, its config in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.ds_config import NAME
from ds_migrate.plain.decisions.config_optimizer import ConfigOptimizer, config_optimizer
from ds_migrate.plain.decisions.plan import Note, PlannedEngine
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.rules.codes import Code

if TYPE_CHECKING:
    from ds_migrate.plain.decisions.decider import Decider


def plan_engine(decider: Decider, site: Site, config: dict[str, str], stage: int) -> PlannedEngine:
    """Return the engine of an optimizer, with what the options ask for."""
    name, optimizer = decider.names.at_site[site], None
    if decider.options.optimizer_in_config:
        optimizer = _optimizer_in_config(decider, site, stage)
    if optimizer is not None:
        config = {**config, "optimizer": optimizer.config}
    file = _config_file(decider, site, name) if decider.options.config_style == "json" else None
    return PlannedEngine(site, name, config, file, optimizer)


def _optimizer_in_config(decider: Decider, site: Site, stage: int) -> ConfigOptimizer | None:
    found = config_optimizer(decider, site, stage)
    if isinstance(found, ConfigOptimizer):
        message, advice = "DeepSpeed makes the optimizer from the config: the same class of torch", None
    else:
        message, advice = f"the optimizer stays in the program: {found}", "leave out --optimizer-in-config"
    decider.plan.notes.append(Note(Code.OPTIMIZER_IN_CONFIG, site.file, site.target, message, advice))
    return found if isinstance(found, ConfigOptimizer) else None


def _config_file(decider: Decider, site: Site, engine: str) -> Path:
    """Return the file for an engine's config: beside the script, by a name that no other engine's has."""
    path, stem = site.file.path, Path(NAME).stem
    if path.parent not in decider.single_loop_folders:
        stem += f"_{path.stem}"
    if len(decider.sites) > 1:
        stem += f"_{engine.rpartition('.')[2].removesuffix('_engine')}"
    return path.with_name(f"{stem}.json")
