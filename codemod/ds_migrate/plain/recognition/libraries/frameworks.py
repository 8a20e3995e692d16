"""Frameworks that run the training of a script themselves, each with its own way to DeepSpeed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ds_migrate.findings import FileResult, blocked_loop
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.parsing import parse_if_valid


@dataclass(frozen=True)
class Framework:
    """A framework that trains.

    Attributes:
        title: what it is called.
        way_out: its own way to DeepSpeed, or what to do without one.
        has_switch: whether it has such a way.
        owns_loops: whether an import alone shows that it runs the loops of a file; else only a call does.
    """

    title: str
    way_out: str
    has_switch: bool = True
    owns_loops: bool = True


def message_of(framework: Framework) -> str:
    """Return what is reported of a loop that the framework runs."""
    if framework.has_switch:
        return f"the loop is run by {framework.title}, which has its own way to DeepSpeed"
    return f"the loop is run by {framework.title}, which has no way to DeepSpeed"


_WRITE_OUT = "write its loop out, then convert that"
_LIGHTNING = Framework("Lightning", 'give its Trainer strategy="deepspeed_stage_1"')
_FABRIC = Framework("Lightning Fabric", 'make Fabric(strategy="deepspeed_stage_1"), and launch() it')
_TRANSFORMERS = Framework("the Trainer of transformers", 'give its TrainingArguments deepspeed="ds_config.json"')
# The beginning of names that a file imports -> the framework.
FRAMEWORKS = {
    "accelerate.": Framework(
        "Accelerate", "choose DeepSpeed in `accelerate config`, and start with `accelerate launch`"
    ),
    "pytorch_lightning.": _LIGHTNING,
    "lightning.Fabric": _FABRIC,
    "lightning.fabric.": _FABRIC,
    "lightning_fabric.": _FABRIC,
    "lightning.": _LIGHTNING,
    "transformers.Trainer": _TRANSFORMERS,
    "transformers.Seq2SeqTrainer": _TRANSFORMERS,
    "transformers.trainer": _TRANSFORMERS,
    "ignite.engine": Framework(
        "Ignite", "call backward() and step() of a DeepSpeed engine in its process function", has_switch=False
    ),
    "composer.": Framework("Composer", "use its FSDP: it has no DeepSpeed any more", has_switch=False),
    "catalyst.": Framework("Catalyst", _WRITE_OUT, has_switch=False),
    "fastai.": Framework("fastai", _WRITE_OUT, has_switch=False),
    "trl.": Framework("TRL", 'give its config deepspeed="ds_config.json"', owns_loops=False),
    "sentence_transformers.": Framework(
        "Sentence Transformers", 'give its training arguments deepspeed="ds_config.json"', owns_loops=False
    ),
    "mmengine.": Framework(
        "MMEngine", 'take its FlexibleRunner with strategy=dict(type="DeepSpeedStrategy")', owns_loops=False
    ),
    "skorch.": Framework("skorch", _WRITE_OUT, has_switch=False, owns_loops=False),
    "poutyne.": Framework("Poutyne", _WRITE_OUT, has_switch=False, owns_loops=False),
    "torchbearer.": Framework("torchbearer", _WRITE_OUT, has_switch=False, owns_loops=False),
}
# What a loop may use of them, as they only make weights or seeds.
_HELPERS = frozenset({"accelerate.init_empty_weights", "accelerate.init_on_device", "accelerate.utils.set_seed"})
# What runs a training once it is made or called.
_RUNS = re.compile(
    r"accelerate\.Accelerator|(pytorch_lightning|lightning(\.pytorch)?)\.(cli\.)?(Trainer|LightningCLI)|"
    r"(lightning(\.fabric)?|lightning_fabric)\.Fabric|transformers\.(\w+\.)*\w*Trainer|trl\.(\w+\.)*\w+Trainer|"
    r"sentence_transformers\.(\w+\.)*\w+Trainer|ignite\.engine\.(Engine|create_supervised_trainer)|"
    r"composer\.Trainer|mmengine\.runner\.(Flexible)?Runner|catalyst\.dl\.\w*Runner|"
    r"fastai\.(\w+\.)*(\w+_)?([Ll]earner)|skorch\.(\w+\.)*NeuralNet\w*|poutyne\.(Model|ModelBundle|Experiment)|torchbearer\.Trial"
)
_MAY_RUN = re.compile(
    rb"\b(accelerate|lightning|pytorch_lightning|lightning_fabric|transformers|trl|"
    rb"sentence_transformers|ignite|composer|mmengine|catalyst|fastai|skorch|poutyne|torchbearer)\b"
)


def framework_of(name: str) -> Framework | None:
    """Return the framework of an imported name that may run a loop."""
    if name in _HELPERS:
        return None
    found = (value for prefix, value in FRAMEWORKS.items() if f"{name}.".startswith(prefix) or name.startswith(prefix))
    return next(found, None)


def framework_script(path: Path, data: bytes) -> FileResult | None:
    """Return that a framework runs the training of a file; None where none does."""
    if _MAY_RUN.search(data) is None:
        return None
    tree = parse_if_valid(data)
    if tree is None:
        return None
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _qualified(node.func, names)
        framework = framework_of(name) if name is not None and _RUNS.fullmatch(name) else None
        if framework is not None:
            return blocked_loop(Code.PLAIN_FRAMEWORK, path, node, message_of(framework), framework.way_out)
    return None


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, with what they mean; a class as the first of its bases that is imported."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.names[0].name == "*" and node.module.startswith("fastai."):
                names |= {maker: f"{node.module}.{maker}" for maker in ("Learner", "vision_learner", "cnn_learner")}
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    yield from names.items()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = (_qualified(base, names) for base in node.bases)
            base = next((base for base in bases if base is not None and _RUNS.fullmatch(base)), None)
            if base is not None:
                yield node.name, base


def _qualified(node: ast.expr, names: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *reversed(parts)])
