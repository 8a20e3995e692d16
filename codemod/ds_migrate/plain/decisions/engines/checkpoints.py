"""Weights and optimizer state that a program saves and loads itself, beside an engine of ZeRO stage 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_conditions import Branch, RankConditions
from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.calls.library_calls import is_of_library
from ds_migrate.plain.dataflow.classes import PROPERTIES
from ds_migrate.plain.dataflow.containers.mappings import literal_index
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.plan import StateCall
from ds_migrate.plain.recognition.facts import LoopFacts, Site
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile

HELPERS = {"state_dict": "optimizer_state", "load_state_dict": "load_optimizer_state"}
SETTINGS = "param_groups"  # in the place of the method's name, where a setting is read: each rank has these
_BUILTINS = frozenset({"print", "isinstance", "type", "id", "repr"})
_COPIES = (
    "copy.deepcopy", "pickle.dump", "pickle.dumps", "torch.save", "joblib.dump", "dill.dump", "dill.dumps",
    "cloudpickle.dump", "cloudpickle.dumps",
)  # fmt: skip
_SIDE_OBJECTS = (Kind.SCHEDULE, Kind.SCALER, Kind.LOADER)


def state_calls(facts: LoopFacts, site: Site) -> list[StateCall]:
    """Return the calls that save or load the state of a site's optimizers."""
    return [
        StateCall(file, call, call, SETTINGS if _reads_setting(call, file) else node.attr.value)
        for file in facts.flow.files.values()
        for node, call in _methods(file)
        if call is not None and facts.flow.values(node.value, file) & site.optimizers
    ]


def undecided_conditions(facts: LoopFacts, site: Site) -> list[Branch]:
    """Return the conditions that rank 0 must decide, as all ranks save the state of a site's optimizers under them."""
    saves = [call for call in state_calls(facts, site) if call.name == "state_dict"]
    found = [branch for save in saves for branch in _undecided(save.call, save.file, facts) or ()]
    return list({id(statement): (file, statement) for file, statement in found}.values())


def _reads_setting(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a call is that in ``optimizer.state_dict()["param_groups"][0]["lr"]``."""
    groups = file.parent(call)
    group = file.parent(groups) if isinstance(groups, cst.Subscript) and literal_index(groups) == SETTINGS else None
    item = file.parent(group) if isinstance(group, cst.Subscript) and group.value is groups else None
    return isinstance(item, cst.Subscript) and item.value is group and literal_index(item) not in (None, "params")


def _undecided(call: cst.Call, file: SourceFile, facts: LoopFacts) -> list[Branch] | None:
    """Return the conditions around a call that may differ by rank; None where rank 0 cannot decide them for all."""
    found = RankConditions(facts.flow).undecided(call, file)
    can_decide = facts.options.runtime and not is_called(INIT, facts.flow)
    return found if can_decide or not found else None


def handles_state(facts: LoopFacts, site: Site) -> bool:
    """Return whether the program loads weights after the engine is made, or handles the optimizer's state."""
    loads = [
        (file, node)
        for file in facts.flow.files.values()
        for node, _ in _methods(file)
        if node.attr.value == "load_state_dict" and not _is_before(node, file, site)
    ]
    return bool(state_calls(facts, site)) or any(facts.flow.values(n.value, f) & site.of for f, n in loads)


def sharding_hazard(facts: LoopFacts, site: Site) -> str:
    """Return why what the program saves or loads would be wrong beside shares of the optimizer's state; "" if not."""
    for file in facts.flow.files.values():
        for node, call in _methods(file):
            found = _hazard_of(node, call, file, facts, site)
            if found:
                return found
        if _gives_away(file, facts, site):
            return "the optimizer is given to code outside of this program"
        if _is_pickled(file, facts, site):
            return "an object that keeps the optimizer is saved or copied as a whole"
    return ""


def _methods(file: SourceFile) -> Iterator[tuple[cst.Attribute, cst.Call | None]]:
    """Yield ``x.state_dict`` and ``x.load_state_dict``, with the call where they are called."""
    for name in HELPERS:
        for node in file.attributes_by_name.get(name, ()):
            around = file.parent(node)
            yield node, around if isinstance(around, cst.Call) and around.func is node else None


def _hazard_of(node: cst.Attribute, call: cst.Call | None, file: SourceFile, facts: LoopFacts, site: Site) -> str:
    values = facts.flow.values(node.value, file)
    is_load = node.attr.value == "load_state_dict"
    if values & site.optimizers:
        if not values <= site.optimizers or call is None or len(call.args) != int(is_load):
            return "the program uses the optimizer's state in a way that cannot be followed"
        if _is_property(file.function(call)):
            return "a property returns the optimizer's state, and where it is read cannot be followed"
        if not (is_load or _reads_setting(call, file)) and _undecided(call, file, facts) is None:
            return "the optimizer's state is saved under a condition that may differ by rank"
        return ""
    if "opt" in (dotted(node.value) or "").lower() or not values:
        return "cannot determine whose state the program saves or loads"
    if not is_load or _is_before(node, file, site):
        return ""
    if values <= site.of or (not values & site.of and not _may_be_part(values, site)):
        return ""
    return "the program loads weights into parts of the model after the engine is made"


def _is_property(function: cst.FunctionDef | None) -> bool:
    names = [dotted(d.decorator) or "" for d in function.decorators] if function is not None else []
    return any(name in PROPERTIES or name.endswith((".setter", ".getter")) for name in names)


def _is_before(node: cst.CSTNode, file: SourceFile, site: Site) -> bool:
    return file is site.file and file.position(node) < file.position(site.statement)


def _may_be_part(values: Values, site: Site) -> bool:
    wholes = {value.key for value in site.of}
    return any(v.kind is Kind.OBJECT or (v.kind is Kind.PART and v.key in wholes) for v in values)


def _is_pickled(file: SourceFile, facts: LoopFacts, site: Site) -> bool:
    """Return whether an object is pickled or copied that keeps the optimizer, whose groups would be a rank's shares.

    A library may do so with any object of a class of the program.
    """
    flow = facts.flow
    return any(
        flow.reaches(values if is_known else of_kind(values, Kind.INSTANCE), site.optimizers)
        for call in file.nodes(cst.Call)
        for values in (flow.values(arg.value, file) for arg in call.args)
        if (is_known := flow.is_call_of(call, file, _COPIES)) or is_of_library(call, file, flow)
    )


def _gives_away(file: SourceFile, facts: LoopFacts, site: Site) -> bool:
    """Return whether a call that cannot be looked into is given the optimizer, other than to make a schedule."""
    for call in file.nodes(cst.Call):
        if not any(facts.flow.values(arg.value, file) & site.optimizers for arg in call.args):
            continue
        callees = facts.flow.values(call.func, file)
        is_known = of_kind(callees, Kind.FUNCTION, Kind.METHOD, Kind.CLASS)
        made = facts.flow.values(call, file)
        is_builtin = isinstance(call.func, cst.Name) and call.func.value in _BUILTINS
        if not (is_known or is_builtin or (made and made <= of_kind(made, *_SIDE_OBJECTS))):
            return True
    return False
