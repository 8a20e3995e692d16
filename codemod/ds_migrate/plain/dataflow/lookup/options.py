"""Options of a program, as attributes of what ``argparse`` or a config file gives."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.syntax.nodes import targets
from ds_migrate.syntax.source import SourceFile

OPTION_MAKERS = frozenset(
    {
        "parse_args", "parse_known_args", "argparse.Namespace", "types.SimpleNamespace", "omegaconf.OmegaConf.load",
        "omegaconf.OmegaConf.create", "omegaconf.OmegaConf.merge",
    }
)  # fmt: skip


class Options:
    """The options of a program that it only reads."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._written = {name for file in flow.files.values() for name in self._set_in(file)}

    def holds(self, node: cst.Attribute, file: SourceFile) -> bool:
        """Return whether an attribute is an option that the program sets nowhere, so that all ranks have one value."""
        return node.attr.value not in self._written and self._are_options(node.value, file)

    def _are_options(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is an object of options, or a part of one."""
        values = self._flow.values(node, file)
        makers = [(self._flow.node(v), self._flow.file(v)) for v in values if v.kind in (Kind.OBJECT, Kind.PART)]
        return bool(values) and len(makers) == len(values) and all(self._makes(*maker) for maker in makers)

    def _makes(self, maker: cst.CSTNode, file: SourceFile) -> bool:
        called = self._flow.values(maker.func, file) if isinstance(maker, cst.Call) else ()
        return bool(called) and all(value.name in OPTION_MAKERS for value in called)

    def _set_in(self, file: SourceFile) -> Iterator[str]:
        for line in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign):
            for target in targets(line):
                if isinstance(target, cst.Attribute) and self._are_options(target.value, file):
                    yield target.attr.value
