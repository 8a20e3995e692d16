"""The classes and imports of a module, read with ``ast`` alone: no libcst, a millisecond a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ds_migrate.project.control_comments import Comment
from ds_migrate.syntax.parsing import parse

PYTORCH_TRIAL = "determined.pytorch.PyTorchTrial"
OLD_PYTORCH = "pedl.frameworks.pytorch"  # what determined.pytorch was called in 2019
TENSORFLOW_TRIALS = (".TFKerasTrial", ".EstimatorTrial", ".TFEstimatorTrial", ".TensorpackTrial")
LIGHTNING_ADAPTER = "determined.pytorch.lightning.LightningAdapter"
DEEPSPEED_TRIALS = (
    "determined.pytorch.deepspeed.DeepSpeedTrial",
    "trial_runtime.pytorch.deepspeed.DeepSpeedTrial",
    "trial_runtime.model_hub.huggingface.BaseTransformerDeepSpeedTrial",
)
TRIAL_METHODS = frozenset(
    {
        "train_batch",
        "evaluate_batch",
        "evaluate_full_dataset",
        "build_training_data_loader",
        "build_validation_data_loader",
    }
)

_WRAPS = (b"wrap_model", b"wrap_optimizer")
_TRAINS = re.compile(rb"\.wrap_(model|optimizer)\(|context\.backward\(")


@dataclass(frozen=True)
class ClassFacts:
    """A class: its name, line (from 1), the qualified names of its bases, and its own methods."""

    name: str
    line: int
    bases: tuple[str, ...]
    methods: frozenset[str]
    wraps: bool = False  # it calls wrap_model or wrap_optimizer somewhere
    trains: bool = False  # it calls what only the context of a PyTorchTrial has
    skip: int = 0  # the line of the `# ds-migrate: skip` that stands on it


@dataclass(frozen=True)
class ImportFacts:
    """``from module import name`` (``name`` is "" for ``import module``); ``level`` counts the leading dots."""

    module: str
    name: str
    level: int
    line: int

    @property
    def qualified(self) -> str:
        """Return the dotted name that is imported, with the leading dots."""
        prefix = "." * self.level + self.module
        return f"{prefix}{'' if prefix.endswith('.') or not prefix else '.'}{self.name}"


@dataclass
class ModuleFacts:
    """The imports and classes of one module. Local classes resolve to ``.Name``."""

    classes: list[ClassFacts] = field(default_factory=list)
    imports: list[ImportFacts] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)

    def imports_from(self, package: str) -> bool:
        return any(i.level == 0 and (i.module == package or i.module.startswith(package + ".")) for i in self.imports)


def module_facts(data: bytes, skips: Sequence[Comment] = (), tree: ast.Module | None = None) -> ModuleFacts:
    """Read a module, whose skip comments are ``skips``. Raises ``SyntaxError`` or ``ValueError`` where Python would.

    Args:
        data: its text.
        skips: its comments that skip classes.
        tree: the text, parsed; None to parse it.
    """
    tree = parse(data) if tree is None else tree
    facts = ModuleFacts()
    classes: list[tuple[ast.ClassDef, bytes]] = []
    lines = data.split(b"\n")
    for statement in _statements(tree):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            _add_import(facts, statement)
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Name, ast.Attribute)):
            _add_alias(facts, statement)
        elif isinstance(statement, ast.ClassDef):
            text = b"\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            classes.append((statement, text))
    local = {node.name for node, _ in classes}
    for node, text in sorted(classes, key=lambda c: c[0].lineno):
        facts.classes.append(
            ClassFacts(
                name=node.name,
                line=node.lineno,
                bases=tuple(_qualified(base, facts.aliases, local) for base in _plain_bases(node)),
                methods=frozenset(s.name for s in node.body if isinstance(s, ast.FunctionDef)),
                wraps=any(word in text for word in _WRAPS),
                trains=_TRAINS.search(text) is not None,
                skip=next((c.line for c in skips if {c.line, c.target} & set(_head(node))), 0),
            )
        )
    return facts


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield every statement of the module; expressions are not looked into."""
    stack: list[ast.AST] = list(reversed(tree.body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.stmt):
            yield node
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                stack.extend(reversed(inner))


def _head(node: ast.ClassDef) -> range:
    """Return the lines from the first decorator to the one before the body."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return range(first, max(node.body[0].lineno, node.lineno + 1))


def _add_import(facts: ModuleFacts, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            facts.imports.append(ImportFacts(alias.name, "", 0, node.lineno))
            if alias.asname:
                facts.aliases[alias.asname] = alias.name
            else:
                top = alias.name.split(".")[0]
                facts.aliases[top] = top
        return
    module = node.module or ""
    for alias in node.names:
        imported = ImportFacts(module, alias.name, node.level, node.lineno)
        facts.imports.append(imported)
        facts.aliases[alias.asname or alias.name] = imported.qualified


def _add_alias(facts: ModuleFacts, node: ast.Assign) -> None:
    """Add ``Base = pytorch.PyTorchTrial``, another name for what is imported; a name that has a meaning keeps it."""
    meaning = _qualified(node.value, facts.aliases, set())
    for target in node.targets:
        if isinstance(target, ast.Name) and meaning.startswith("determined."):
            facts.aliases.setdefault(target.id, meaning)


def _plain_bases(node: ast.ClassDef) -> Iterator[ast.expr]:
    for base in node.bases:
        yield base.value if isinstance(base, ast.Subscript) else base  # Generic[T], Base[int]


def _qualified(node: ast.expr, aliases: dict[str, str], local: set[str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    if node.id in aliases:
        parts.append(aliases[node.id])
    elif node.id in local:
        parts.append(f".{node.id}")
    else:
        parts.append(node.id)
    return ".".join(reversed(parts))
