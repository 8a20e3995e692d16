"""The options of an engine: what its config holds, and whether DeepSpeed makes the optimizer from that."""

from __future__ import annotations

from pathlib import Path

import libcst as cst

from ds_migrate.decisions.config_optimizer import TORCH_ADAM, constructor_arguments
from ds_migrate.ds_config import NAME
from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.plain.decisions.plan import ConfigOptimizer, Note, PlannedEngine, ProgramPlan
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.one_line import expression_text

# What DeepSpeed would not hand on to torch's Adam and AdamW.
_NOT_HANDED_ON = frozenset({"torch_adam", "adam_w_mode", "fp32_optimizer_states", "max_grad_norm"})


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


def config_optimizer(plan: ProgramPlan, site: Site, stage: int) -> ConfigOptimizer | str:
    """Return the optimizer as a config has it, or why it stays in the program."""
    if len(site.makers) != 1 or len(site.modules) != 1 or site.is_partial:
        return "it is made in several places, or of several modules"
    if site.is_changed:
        return "another one takes its place, or it gets further groups"
    file, call = site.makers[0]
    statement = file.parent(call)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1 or file is not site.file:
        return "it is not made by a separate assignment"
    if site.statement is not file.statement(call):
        return "groups of parameters are added to it"
    if statement.targets[0].target is not site.target:
        return "it is made in another function than the engine"
    names = {v.name.rpartition(".") for v in plan.facts.flow.values(call.func, file) if v.kind is Kind.EXTERNAL}
    if len(names) != 1:
        return "it is not made by a call of one torch.optim class"
    ((library, _, kind),) = names
    arguments = constructor_arguments(call, kind) if library == "torch.optim" else None
    if arguments is None or _NOT_HANDED_ON & set(arguments):
        return "it is not made by a call of a torch.optim class whose arguments can be seen here"
    if not _has_all_parameters(call, site):
        return "its parameters are not just parameters() of the model: groups and choices have no place in a config"
    if stage and _is_used_as_torchs(plan, site):
        return "the program uses it as an optimizer of torch, which at ZeRO stages 1 and 2 DeepSpeed's is not"
    params = {name: expression_text(value) for name, value in arguments.items()}
    params |= {name: repr(value) for name, value in TORCH_ADAM.get(kind, {}).items()}
    pairs = ", ".join(f'"{name}": {value}' for name, value in params.items())
    return ConfigOptimizer(statement, f'{{"type": "{kind}", "params": {{{pairs}}}}}')


def _has_all_parameters(call: cst.Call, site: Site) -> bool:
    given = next((a.value for a in call.args if a.keyword is None or a.keyword.value == "params"), None)
    if not isinstance(given, cst.Call) or given.args or not isinstance(given.func, cst.Attribute):
        return False
    return given.func.attr.value == "parameters" and dotted(given.func.value) == site.modules[0]


def _is_used_as_torchs(plan: ProgramPlan, site: Site) -> bool:
    """Return whether something is made of the optimizer, or reads more of it than its groups."""
    handled = {id(n) for s in plan.facts.operations.steps for n in walk(s.call)}
    handled |= {id(n) for z in plan.facts.operations.zero_grads for n in walk(z.call)}
    handled |= {id(n) for s in plan.state_calls for n in walk(s.call)}
    handled |= {id(n) for _, arg, _ in plan.names.arguments.values() for n in walk(arg)}
    for other, node in plan.facts.flow.nodes(cst.Name, cst.Attribute):
        if id(node) in handled or node is site.target or not plan.facts.flow.values(node, other) & site.optimizers:
            continue
        around = other.parent(node)
        is_target = isinstance(around, cst.AssignTarget)
        if not is_target and not (isinstance(around, cst.Attribute) and around.attr.value == "param_groups"):
            return True
    return False
