"""``--no-runtime``: programs that are exact with DeepSpeed alone; the others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.plain.decisions.passes.distributed import broadcasts_buffers
from ds_migrate.plain.decisions.passes.moved_inputs import moves_inputs
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.recognition.batches.shardable_loaders import loaders_to_share
from ds_migrate.plain.recognition.facts import Refusal, Site
from ds_migrate.plain.recognition.parameters.module_use import uses_all_parameters
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, has_star, number
from ds_migrate.syntax.source import SourceFile

_SEEDS = frozenset({"init_process_group", "manual_seed", "set_seed", "seed_everything"})
_WITH_RUNTIME = "leave out --no-runtime"
_HOLD_BUFFERS = ("BatchNorm", "InstanceNorm", "SyncBatchNorm", "register_buffer", "spectral_norm", "Buffer")


def refuse_inexact(plan: ProgramPlan) -> ProgramPlan:
    """Refuse what only the runtime's helpers make exact."""
    refusals = [refusal for site in plan.facts.sites for refusal in _of_engine(plan, site)]
    if not any(call.func.attr.value in _SEEDS for call in _method_calls(plan)):
        step, _ = plan.steps[0]
        refusals.append(
            Refusal(
                Code.PLAIN_DISTRIBUTED, step.file, step.node,
                "no seed is set, and only init_distributed() of the runtime has all ranks draw the same random numbers",
                f"call torch.manual_seed(), or {_WITH_RUNTIME}",
            )
        )  # fmt: skip
    refusals += [
        Refusal(
            Code.PLAIN_PRECISION, file, node, "DeepSpeed alone cannot use the program's GradScaler", _WITH_RUNTIME
        )
        for file, node in [
            *((each.file, each.statement) for each in plan.attachments),
            *((use.place.file, use.place.node) for use in plan.scaler_uses),
        ]
    ]  # fmt: skip
    refusals += [
        Refusal(
            Code.PLAIN_SAMPLER, file, maker,
            "this loader gives all data to each rank, and only shard() divides it in the loader's own order",
            f"give it a DistributedSampler, or {_WITH_RUNTIME}",
        )
        for file, maker in loaders_to_share([s for s, _ in plan.steps], plan.facts)
    ]  # fmt: skip
    return replace(plan.refuse(refusals), notes=(*plan.notes, *_first_set(plan)))


def _first_set(plan: ProgramPlan) -> Iterator[Note]:
    """Yield a note for the first set of strings, as far as a line shows it."""
    for file in plan.facts.flow.files.values():
        for node in file.nodes(cst.Set, cst.SetComp, cst.Call):
            if not isinstance(node, cst.Call) or dotted(node.func) in ("set", "frozenset"):
                yield Note(
                    Code.PLAIN_DISTRIBUTED, file, node,
                    "a set of strings has another order on each rank, as each process hashes them otherwise, and only "
                    "init_distributed() of the runtime gives all one seed",
                    "start the ranks with PYTHONHASHSEED=0, or sort what is made of sets: sorted(...)",
                )  # fmt: skip
                return


def _method_calls(plan: ProgramPlan) -> Iterator[Any]:
    for file in plan.facts.flow.files.values():
        yield from (call for call in file.nodes(cst.Call) if isinstance(call.func, cst.Attribute))


def _of_engine(plan: ProgramPlan, site: Site) -> Iterator[Refusal]:
    if len(plan.facts.sites) > 1:
        yield Refusal(
            Code.PLAIN_ENGINE, site.file, site.target,
            "a loss that goes through another engine fails in DeepSpeed alone, and there are several engines",
            _WITH_RUNTIME,
        )  # fmt: skip
    if broadcasts_buffers(site, plan.facts) and _may_hold_buffers(plan, site):
        yield Refusal(
            Code.PLAIN_DISTRIBUTED, site.file, site.target,
            "DistributedDataParallel gave all ranks rank 0's buffers, and DeepSpeed alone leaves each rank its own",
            f"give it broadcast_buffers=False, or {_WITH_RUNTIME}",
        )  # fmt: skip
    if moves_inputs(site, plan.facts):
        yield Refusal(
            Code.PLAIN_DEVICE, site.file, site.target,
            "the wrapper of the module moved batches to its device, and DeepSpeed alone leaves them where they are",
            f"move them with batch.to(device), or {_WITH_RUNTIME}",
        )  # fmt: skip
    if not all(_is_bare_sgd(plan, file, call) for file, call in site.makers) and not _reaches_all(plan, site):
        yield Refusal(
            Code.PLAIN_ENGINE, site.file, site.target,
            "cannot determine whether each backward() reaches all parameters, and DeepSpeed alone steps the others "
            "with gradients of zero",
            _WITH_RUNTIME,
        )  # fmt: skip


def _may_hold_buffers(plan: ProgramPlan, site: Site) -> bool:
    """Return whether a module of the engine may have buffers: it is of a library, or the program names some."""
    if any(not value.of and not value.name.startswith("torch.nn.") for value in site.of):
        return True
    return any(node.value.startswith(_HOLD_BUFFERS) for _, node in plan.facts.flow.nodes(cst.Name))


def _reaches_all(plan: ProgramPlan, site: Site) -> bool:
    """Return whether each step follows a forward pass of the whole module, which uses all of its parameters."""
    return bool(plan.forwards) and all(uses_all_parameters(value, plan.facts.flow) for value in site.of)


def _is_bare_sgd(plan: ProgramPlan, file: SourceFile, call: cst.Call) -> bool:
    """Return whether a gradient of zero moves nothing: torch's SGD without momentum and weight decay."""
    names = {v.name for v in plan.facts.flow.values(call.func, file) if v.kind is Kind.EXTERNAL}
    if (
        names != {"torch.optim.SGD"}
        or has_star(call)
        or any(isinstance(n, cst.Dict) for n in file.nodes(cst.Dict, below=call))
    ):
        return False
    given = [argument(call, 2, "momentum"), argument(call, 4, "weight_decay")]
    return all(arg is None or number(arg.value) == 0 for arg in given)
