"""Code of helper files that never runs with a loop."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import dotted_names
from ds_migrate.syntax.source import SourceFile


def is_idle(node: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node of a helper file never runs with the loop: in an idle function, or in a script."""
    is_in_script = any(
        isinstance(outer, cst.If) and "__name__" in dotted_names(outer.test) for outer in (node, *file.ancestors(node))
    )
    return is_in_script or idle_functions(flow).hold(node, file)
