"""Code of helper files that never runs with a loop."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import runs_in_tests
from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.lookup.files_beside import files_used
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.module_start import asks_for_main
from ds_migrate.syntax.source import SourceFile


def is_idle(node: cst.CSTNode, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a node of a helper file never runs with the loop: idle, in another script or command."""
    if file in facts.training_files:
        return False
    is_in_script = any(map(asks_for_main, (node, *file.ancestors(node))))
    training = set(map(id, facts.training_files))
    is_other_script = is_in_script and not training & files_used([file], facts.flow)
    idle = idle_functions(facts.flow)
    is_run = not is_other_script and not runs_in_tests(node, file, facts.flow)
    return not is_run or idle.hold(node, file) or idle.leave_by_training(node, file)
