"""Write classes into the file that ``--target determined`` needs and the official package lacks."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.syntax.comments import comments
from ds_migrate.syntax.nodes import walk
from ds_migrate.syntax.source import SourceFile

_ENGINE_MODULE = '''

class {name}(torch.nn.Module):
    """The parameters of one optimizer, for a separate engine; forward passes go through the models."""

    def __init__(self, optimizer, **models):
        super().__init__()
        for name, model in models.items():
            self.add_module(name, model)
        self.stepped = {{id(p) for group in optimizer.param_groups for p in group["params"]}}

    def named_parameters(self, *args, **kwargs):
        for name, parameter in super().named_parameters(*args, **kwargs):
            if id(parameter) in self.stepped:
                yield name, parameter
'''

_SCHEDULE = '''

class {name}({callback}):
    """Steps a learning rate schedule as PyTorchTrial did, and saves it with checkpoints."""

    def __init__(self, scheduler, every_epochs=None, every_batches=None):
        self.scheduler = scheduler
        self.every_epochs = every_epochs
        self.every_batches = every_batches
        self.batches = 0

    def before_batch(self):
        if self.every_batches and self.batches and self.batches % self.every_batches == 0:
            self.scheduler.step()
        self.batches += 1

    def on_training_epoch_end(self, epoch_idx):
        if self.every_epochs and (epoch_idx + 1) % self.every_epochs == 0:
            self.scheduler.step()

    def state_dict(self):
        return {{"scheduler": self.scheduler.state_dict(), "batches": self.batches}}

    def load_state_dict(self, state_dict):
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self.batches = state_dict["batches"]
'''


def engine_module(ctx: RuleContext, file: SourceFile) -> str:
    """Return the name of an ``EngineModule`` of the file's own, written above its trials."""
    name = ctx.written.get((file, "EngineModule"))
    if name is None:
        name = ctx.written[file, "EngineModule"] = file.names.fresh("EngineModule")
        text = _ENGINE_MODULE.replace("torch.nn", f"{file.imports.module('torch')}.nn")
        _above_trials(ctx, file, text.format(name=name))
    return name


def schedule_callback(ctx: RuleContext, file: SourceFile) -> str:
    """Return the name of a callback class of the file's own that steps and saves a schedule."""
    name = ctx.written.get((file, "LRSchedule"))
    if name is None:
        name = ctx.written[file, "LRSchedule"] = file.names.fresh("LRSchedule", "LRScheduleCallback")
        callback = file.imports.name("determined.pytorch", "PyTorchCallback")
        _above_trials(ctx, file, _SCHEDULE.format(name=name, callback=callback))
    return name


def _above_trials(ctx: RuleContext, file: SourceFile, text: str) -> None:
    """Write a class above the file's first trial, and above the classes around that: methods do not see their names."""
    first = min(ctx.context_names[file].classes, key=file.position)
    outer = [node for node in file.ancestors(first) if isinstance(node, cst.ClassDef)]
    file.before([first, *outer][-1], text, above_comments=True)


def register_callbacks(ctx: RuleContext, attribute: str) -> None:
    """Have ``build_callbacks`` return the callbacks in ``self.<attribute>`` too."""
    for part, function in ctx.trial.methods("build_callbacks"):
        for node in walk(function):
            if isinstance(node, cst.Return) and node.value is not None and part.file.function(node) is function:
                part.file.change(node.value, _merged(attribute))
        return
    for part, function in ctx.trial.methods("__init__"):
        part.file.after(function, f"\ndef build_callbacks(self):\n    return self.{attribute}")
        return


def _merged(attribute: str):  # type: ignore[no-untyped-def]
    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.BaseExpression)
        own = cst.parse_expression(f"self.{attribute}")
        if isinstance(updated, cst.Dict) and updated.elements and not comments(updated):
            last = updated.elements[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
            return updated.with_changes(elements=[*updated.elements[:-1], last, cst.StarredDictElement(own)])
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return cst.Dict([cst.StarredDictElement(updated, comma=comma), cst.StarredDictElement(own)])

    return change
