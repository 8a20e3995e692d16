"""Random numbers that are drawn for the samples of a batch, as the noise and the time steps of a diffusion model.

Ranks draw with one seed, so that what divides and decides stays alike: their different samples get the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.launch.early_draws import drawn_from
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, walk
from ds_migrate.syntax.source import SourceFile

_FOR_SAMPLES = frozenset({"rand", "randn", "randint", "normal", "rand_like", "randn_like", "randint_like"})
_IN_PLACE = frozenset({"uniform_", "normal_", "random_"})


def shared_noise(files: Iterable[SourceFile], facts: LoopFacts, values: RankValues) -> Iterator[Note]:
    """Yield a note at the first draw that is made for the samples of a batch, and whether there are others."""
    found = [
        (file, call)
        for file in files
        for call in file.nodes(cst.Call)
        if drawn_from(call, file, facts.flow) == "torch"
        and _may_run(call, file, facts)
        and any(_is_for_samples(call, file, step, facts.flow, values) for step in facts.operations.steps)
    ]
    if found:
        file, call = found[0]
        others = ", and in other places" if len(found) > 1 else ""
        message = f"several ranks draw the same random numbers for their different samples here{others}"
        advice = "where each sample needs its own, draw on the GPU, behind torch.cuda.manual_seed(seed + global_rank())"
        yield Note(Code.PLAIN_SAMPLER, file, call, message, advice)


def _may_run(call: cst.Call, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a call is neither in a function that never runs, nor in a class that nothing makes nor trains."""
    flow, owner = facts.flow, file.class_around(call)
    init = flow.classes.method(id(owner), "__init__") if owner is not None else None
    made = flow.node(init) if init is not None else None
    trains = any(step.file.class_around(step.call) is owner for step in facts.operations.steps)
    is_made = trains or not isinstance(made, cst.FunctionDef) or bool(flow.callers.of(made))
    return is_made and not idle_functions(flow).hold(call, file)


def _sizes(call: cst.Call) -> list[cst.Name]:
    """Return the names in what gives a draw its shape: ``torch.randn(x.size(0), 4)``, ``torch.empty(n).uniform_()``."""
    name = called_name(call).rpartition(".")[2]
    made = call.func.value if name in _IN_PLACE and isinstance(call.func, cst.Attribute) else call
    is_one = isinstance(made, cst.Call) and (made is not call or name in _FOR_SAMPLES)
    args = made.args if is_one and isinstance(made, cst.Call) else ()
    return [part for arg in args for part in walk(arg.value) if isinstance(part, cst.Name)]


def _is_for_samples(call: cst.Call, file: SourceFile, step: Step, flow: Flow, values: RankValues) -> bool:
    """Return whether a draw before a step, or in a module, has the size of a batch, by its values or its words."""
    function, owner = file.function(call), file.class_around(call)
    if file is step.file and function is step.function:
        places, words = [call], ["batch" in part.value.lower() for part in _sizes(call)]
    else:
        places, words = flow.callers.leading_to(function, step.file, step.function), []
    is_of_pass = owner is not None and flow.classes.is_module(owner, file)
    is_of_pass |= any(step.file.position(place) < step.position for place in places)
    return is_of_pass and (any(words) or any(values.differs(part, file) for part in _sizes(call)))
