"""Options for an engine: its optimizer in the config, its config in a file."""

from __future__ import annotations

from pathlib import Path

from ds_migrate.ds_config import NAME
from ds_migrate.plain.decisions.engines.config_optimizer import config_optimizer
from ds_migrate.plain.decisions.plan import ConfigOptimizer, Note, PlannedEngine, ProgramPlan
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.rules.codes import Code


def plan_engine(plan: ProgramPlan, site: Site, config: dict[str, str], stage: int) -> tuple[PlannedEngine, list[Note]]:
    """Return the engine of an optimizer, with what the options ask for, and what to know about that."""
    name, optimizer, notes = plan.names.at_site[site], None, []
    if plan.facts.options.optimizer_in_config:
        found = config_optimizer(plan, site, stage)
        optimizer = found if isinstance(found, ConfigOptimizer) else None
        notes.append(_note(found, site))
    if optimizer is not None:
        config = {**config, "optimizer": optimizer.config}
    file = _config_file(plan, site, name) if plan.facts.options.config_style == "json" else None
    return PlannedEngine(site, name, config, file, optimizer), notes


def _note(found: ConfigOptimizer | str, site: Site) -> Note:
    if isinstance(found, ConfigOptimizer):
        message, advice = "DeepSpeed makes the optimizer from the config: the same class of torch", None
    else:
        message, advice = f"the optimizer stays in the program: {found}", "leave out --optimizer-in-config"
    return Note(Code.OPTIMIZER_IN_CONFIG, site.file, site.target, message, advice)


def _config_file(plan: ProgramPlan, site: Site, engine: str) -> Path:
    """Return the file for an engine's config: beside the script, by a name that no other engine's has."""
    path, stem = site.file.path, Path(NAME).stem
    if path.parent not in plan.facts.single_loop_folders:
        stem += f"_{path.stem}"
    if len(plan.facts.sites) > 1:
        stem += f"_{engine.rpartition('.')[2].removesuffix('_engine')}"
    index = next(site_.all.index(site) for site_ in plan.facts.sites if site in site_.all)
    return path.with_name(f"{stem}{f'_{index + 1}' if index else ''}.json")
