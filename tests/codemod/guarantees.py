"""What must hold for every conversion, whatever the trial: used by tests of single idioms and of generated trials."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import subprocess
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import examples
from ds_migrate.findings import FileResult, Report
from ds_migrate.report.patch import patch

# What only PyTorchTrial's context has; `backward` is looked for on the context alone.
GONE = frozenset(
    {"wrap_model", "wrap_optimizer", "step_optimizer", "wrap_scaler", "configure_apex_amp", "experimental"}
)


def assert_guaranteed(before: bytes, after: bytes) -> None:
    """The converted module parses, lost no comment, and asks the runtime for nothing that it lacks."""
    nodes = list(ast.walk(ast.parse(after)))
    lost = comments(before) - comments(after) if b"#" in before else None
    assert not lost, f"comments lost: {sorted(lost)}"
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    assert not [node for node in attributes if node.attr in GONE]
    missing = [name for name in runtime_names(nodes, attributes) if not exists(name)]
    assert not missing, f"not in the runtime: {missing}"
    unknown = context_attributes(attributes) - context_has()
    unknown &= context_has("trial_runtime.pytorch", "PyTorchTrialContext")
    assert not unknown, f"DeepSpeedTrialContext has no {sorted(unknown)}"


def assert_stable(folder: Path, name: str = "model_def.py") -> None:
    """A second run over what the first one left changes nothing and finds nothing to do."""
    report = examples.run(folder)
    assert [f.path.name for f in report.files if f.to_write and f.path.suffix in (".py", ".ipynb")] == []
    for file in report.files:
        if file.path.name == name:
            assert examples.problems(file) == []


def assert_patch_applies(folder: Path, result: FileResult) -> None:
    """``git apply`` turns the file on disk into exactly the planned bytes."""
    text = patch(Report([result]), folder.resolve())
    subprocess.run(["git", "apply", "-"], input=text, cwd=folder, check=True, timeout=60)
    assert result.path.read_bytes() == result.after


def comments(data: bytes) -> Counter[str]:
    tokens = tokenize.tokenize(io.BytesIO(data).readline)
    return Counter(t.string for t in tokens if t.type == tokenize.COMMENT)


def runtime_names(nodes: list[ast.AST], attributes: list[ast.Attribute]) -> set[str]:
    """Qualified names of everything that the module takes from ``determined`` or ``trial_runtime``."""
    bound: dict[str, str] = {}
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _ours(alias.name):
                    found.add(alias.name)
                    top = alias.name.split(".")[0]
                    bound[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and _ours(node.module or ""):
            for alias in node.names:
                found.add(f"{node.module}.{alias.name}")
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for attribute in attributes:
        head, _, rest = _dotted(attribute).partition(".")
        if head in bound and rest:
            found.add(f"{bound[head]}.{rest}")
    return found


def context_attributes(attributes: list[ast.Attribute]) -> set[str]:
    """What is asked of ``context``, ``self.context``, ``trial_context``...; ``engines`` is asked further."""
    return {node.attr for node in attributes if _dotted(node.value).rpartition(".")[2] in ("context", "trial_context")}


@cache
def exists(qualified: str) -> bool:
    """Whether the module path and attributes of a ``trial_runtime`` name are there; never for ``determined``."""
    if not qualified.startswith("trial_runtime"):
        return False
    parts = qualified.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


@cache
def context_has(module: str = "trial_runtime.pytorch.deepspeed", name: str = "DeepSpeedTrialContext") -> frozenset[str]:
    """What a context has, what its constructors set included."""
    context = getattr(importlib.import_module(module), name)
    sources = (inspect.getsource(cls) for cls in context.__mro__ if cls is not object)
    set_on_self = {name for source in sources for name in re.findall(r"\bself\.(\w+)(?::[^=\n]+)? = ", source)}
    return frozenset(set_on_self.union(dir(context)))


def _ours(module: str) -> bool:
    return module.split(".")[0] in ("determined", "trial_runtime")


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""
