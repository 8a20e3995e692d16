"""Copies of objects that have an engine from now on: it cannot be copied or pickled, as its optimizer could."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

COPIES = (
    "copy.deepcopy", "pickle.dump", "pickle.dumps", "torch.save", "joblib.dump", "dill.dump", "dill.dumps",
    "cloudpickle.dump", "cloudpickle.dumps",
)  # fmt: skip


def copied_engines(plan: ProgramPlan, files: list[SourceFile]) -> Iterator[Note]:
    """Yield a note for each call that copies or pickles an object in which an engine is kept."""
    flow, holders = plan.facts.flow, _holders(plan)
    for file in files if holders else ():
        for call in file.nodes(cst.Call):
            if not call.args or not flow.is_call_of(call, file, COPIES):
                continue
            given = call.args[0].value
            if isinstance(given, cst.Name) and given.value == "self":
                is_holder = any(id(outer) in holders for outer in file.ancestors(call))
            else:
                held = of_kind(flow.values(given, file), Kind.INSTANCE)
                is_holder = any(holders & {value.key, *flow.classes.bases(value.key)} for value in held)
            if is_holder:
                message = "this copies an object that has an engine now, which cannot be copied: the script ends here"
                advice = "copy the state_dict() of its model and of its optimizer instead"
                yield Note(Code.PLAIN_CHECKPOINT, file, call, message, advice)


def _holders(plan: ProgramPlan) -> set[int]:
    """Return the classes whose objects keep an engine as an attribute, by identity."""
    kept = [(site.file, site.statement) for site, name in plan.names.at_site.items() if name.startswith("self.")]
    kept += [(one.file, one.statement) for one in plan.names.kept.values() if one.attribute.startswith("self.")]
    around = (next((a for a in file.ancestors(node) if isinstance(a, cst.ClassDef)), None) for file, node in kept)
    return {id(owner) for owner in around if owner is not None and not _copies_itself(owner)}


def _copies_itself(owner: cst.ClassDef) -> bool:
    methods = {node.name.value for node in owner.body.body if isinstance(node, cst.FunctionDef)}
    return bool(methods & {"__getstate__", "__deepcopy__", "__reduce__"})
