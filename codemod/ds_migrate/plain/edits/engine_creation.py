"""The statements that make an engine, where its optimizer is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import indent

import libcst as cst

from ds_migrate.plain.decisions.engines.optional_engines import may_be_none, set_to_none
from ds_migrate.plain.decisions.naming.free_names import last_part
from ds_migrate.plain.decisions.passes.distributed import broadcasts_buffers
from ds_migrate.plain.decisions.passes.moved_inputs import moves_inputs
from ds_migrate.plain.decisions.plan import PlannedEngine, ProgramPlan
from ds_migrate.plain.edits.engine_config import dict_lines, divide
from ds_migrate.plain.edits.optional_modules import listed
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile


class EngineWriter:
    """Writes the engines of a program."""

    def __init__(self, plan: ProgramPlan, runtime: RuntimeNames, converted: Converted) -> None:
        self._plan = plan
        self._runtime = runtime
        self._converted = converted

    def write(self) -> None:
        for engine in self._plan.engines:
            self._write(engine)

    def _write(self, engine: PlannedEngine) -> None:
        site, file = engine.site, engine.site.file
        text = "\n".join(
            self._comprehension(engine) if site.clause else [*self._initialization(engine), *self._helpers(engine)]
        )
        if isinstance(site.target, cst.Call):
            file.before(site.statement, f"{site.new_name} = {expression_text(site.target)}\n{text}")
            if not any(site.target is arg.value for _, arg, _ in self._plan.names.arguments.values()):
                file.replace(site.target, site.new_name)
        elif engine.optimizer is None:
            if may_be_none(site):
                text = f"{engine.name} = None\nif {site.optimizer_name} is not None:\n{indent(text, '    ')}"
            file.after(site.statement, text)
            self._set_to_none(engine)
        else:
            file.expand(engine.optimizer.statement, text)
        for attachment in self._plan.attachments:
            if attachment.site is not site:
                continue
            name = file.names.fresh("engine", "ds_engine") if site.clause else engine.name
            line = use_scaler(name, attachment.scaler, file, self._plan, self._runtime)
            line = f"for {name} in {engine.name}:\n    {line}" if site.clause else line
            line = f"if {attachment.condition}:\n{indent(line, '    ')}" if attachment.condition else line
            file.after(attachment.statement, line)
            message = f"{engine.name} scales losses with {attachment.scaler}"
            self._converted(Code.PLAIN_PRECISION, file, attachment.statement, message)
        if site.function is not None and isinstance(site.target, cst.Name):
            self._declare_global(engine)

    def _set_to_none(self, engine: PlannedEngine) -> None:
        """Leave no engine where there is no optimizer, for the functions that are given one or the other."""
        file, names = engine.site.file, self._plan.names
        given = {last_part(name) for _, _, name in names.arguments.values()}
        if last_part(engine.name) not in given and not names.kept:
            return
        for target in set_to_none(engine.site, self._plan.facts):
            owner = f"{dotted(target.value)}." if isinstance(target, cst.Attribute) else ""
            file.after(file.statement(target), f"{owner}{last_part(engine.name)} = None")

    def _initialization(self, engine: PlannedEngine) -> list[str]:
        site, file = engine.site, engine.site.file
        deepspeed = file.imports.module("deepspeed")
        module = self._module(site)
        results, optimizer = f"{engine.name}, *_", f"    optimizer={site.optimizer_name},"
        if engine.optimizer is not None:
            results, optimizer = (
                f"{engine.name}, {site.optimizer_name}, *_",
                f"    model_parameters={module}.parameters(),",
            )
        lines, config = self._config(engine, file)
        return [
            *lines, f"{results} = {deepspeed}.initialize(", f"    model={module},", optimizer,
            *f"    config={config},".splitlines(), ")",
        ]  # fmt: skip

    def _comprehension(self, engine: PlannedEngine) -> list[str]:
        """Return the lines that make an engine for each optimizer of a comprehension."""
        site, file = engine.site, engine.site.file
        lines, config = self._config(engine, file)
        match_torch = self._runtime.name(file, "match_torch")
        initialized = [
            f"{file.imports.module('deepspeed')}.initialize(", f"    model={self._module(site)},",
            f"    optimizer={site.optimizer_name},", *f"    config={config},".splitlines(), ")[0],",
        ]  # fmt: skip
        options = [f"{option}," for option in self._options(engine)]
        made = [f"{match_torch}(", *(f"    {line}" for line in (*initialized, *options)), ")", site.clause]
        return [*lines, f"{engine.name} = [", *(f"    {line}" for line in made), "]"]

    def _module(self, site: Site) -> str:
        """Return the expression of the module that the engine holds."""
        modules = list(site.parts) if site in self._plan.parted else list(site.modules)
        if site.tensors:
            named = [f", {name}={self._whole(module, site)}" for name, module in _keywords(modules)]
            return f"{self._runtime.name(site.file, 'EngineModule')}({site.optimizer_name}{''.join(named)})"
        if len(modules) > 1 or modules[0].startswith("*"):
            there = ", ".join(listed(module, site.statement, site.file) for module in modules)
            return f"{site.file.imports.name('torch.nn', 'ModuleList')}([{there}])"
        return modules[0]

    def _whole(self, module: str, site: Site) -> str:
        """Return a module, or one that holds all of a list."""
        if not module.startswith("*"):
            return module
        return f"{site.file.imports.name('torch.nn', 'ModuleList')}([{module}])"

    def _config(self, engine: PlannedEngine, file: SourceFile) -> tuple[list[str], str]:
        """Return the lines that read the config, and the expression of it."""
        if engine.json is None:
            return [], "\n".join(dict_lines(engine.config))
        place = f'{file.imports.name("pathlib", "Path")}(__file__).with_name("{engine.json.name}")'
        _, computed = divide(engine.config)
        if not computed:
            return [], f"str({place})"
        name = file.names.fresh("ds_config", "deepspeed_config")
        lines = [f"{name} = {file.imports.module('json')}.loads({place}.read_text())"]
        for path, value in computed:
            keys = "".join(f'["{key}"]' for key in path)
            lines.append(f"{name}{keys} = {value}")
        return lines, name

    def _helpers(self, engine: PlannedEngine) -> list[str]:
        """Return the call that has the engine train as torch does."""
        if not self._plan.facts.options.runtime:
            return []
        arguments = ", ".join([engine.name, *self._options(engine)])
        return [f"{self._runtime.name(engine.site.file, 'match_torch')}({arguments})"]

    def _options(self, engine: PlannedEngine) -> list[str]:
        """Return how the engine trains, beside as torch does by default."""
        asked = {
            "broadcast_buffers": broadcasts_buffers(engine.site, self._plan.facts),
            "keep_gradients": self._plan.keeps_gradients,
            "move_inputs": moves_inputs(engine.site, self._plan.facts),
        }
        return [f"{name}=True" for name, is_asked in asked.items() if is_asked]

    def _declare_global(self, engine: PlannedEngine) -> None:
        """Make the engine global where the optimizer is, in a function that declares it."""
        site: Site = engine.site
        assert isinstance(site.target, cst.Name)
        for node in site.file.nodes(cst.Global, below=site.function):
            if any(item.name.value == site.target.value for item in node.names):
                site.file.after(site.file.statement(node), f"global {engine.name}")


def use_scaler(engine: str, scaler: str, file: SourceFile, plan: ProgramPlan, runtime: RuntimeNames) -> str:
    """Return the call that gives an engine the GradScaler of the program."""
    update = ", update=False" if plan.keeps_scaling else ""
    return f"{runtime.name(file, 'use_scaler')}({engine}, {scaler}{update})"


def _keywords(modules: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a name for each module, and its expression."""
    names = [module.rpartition(".")[2] for module in modules]
    for index, (name, module) in enumerate(zip(names, modules, strict=True)):
        is_free = name.isidentifier() and names.count(name) == 1 and name not in ("self", "optimizer")
        yield name if is_free else f"model_{index}", module
