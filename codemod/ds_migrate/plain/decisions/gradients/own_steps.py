"""Steps that an optimizer makes itself: with a closure, as LBFGS, or in several phases, as SAM.

``engine.step()`` knows neither. ``step_with(engine, closure)`` averages gradients and losses after each call of a
closure.

``optimizer.first_step()`` moves the weights along their gradients, a second backward pass computes those at the new
place, and ``optimizer.second_step()`` takes the weights back and steps with these. Each phase stays a call of the
optimizer, on gradients that the engine has averaged over the ranks before, as DistributedDataParallel does in each
backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ds_migrate.deepspeed_facts import ELEMENTWISE_OPTIMIZERS
from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.decisions.plan import Averaging, ProgramPlan
from ds_migrate.plain.recognition.facts import Backward, Refusal, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import code
from ds_migrate.syntax.one_line import expression_text


def decide_own_steps(plan: ProgramPlan) -> ProgramPlan:
    """Average gradients before each phase of a step; refuse where an engine cannot do it as the program does."""
    own = [(step, name) for step, name in plan.steps if step.is_own]
    averagings = [
        Averaging(step.file, step.file.statement(step.node), name, "" if name else code(step.owner))
        for step, name in own
        if step.is_phase
    ]
    plan = replace(plan, averagings=[*plan.averagings, *averagings])
    return plan.refuse(refusal for step, _ in own[:1] for refusal in _refusals(step, plan)).refuse(
        refusal for step, _ in own for refusal in _local_losses(step, plan)
    )


def _refusals(step: Step, plan: ProgramPlan) -> Iterator[Refusal]:
    """Yield why an optimizer cannot step itself beside an engine."""
    name = expression_text(step.call.func)
    text = f"{name}() is one of several phases of a step" if step.is_phase else f"{name}() is given a closure"
    operations: list[Step | Backward] = [*plan.facts.operations.steps, *plan.facts.operations.backwards]
    if any(operation.scaler is not None for operation in operations):
        yield Refusal(
            Code.PLAIN_CLOSURE, step.file, step.node,
            f"{text}, and a GradScaler scales losses, which it does not unscale",
            "leave out the GradScaler: torch.autocast in bfloat16 requires none",
        )  # fmt: skip
    if plan.no_syncs or plan.sync_switches:
        yield Refusal(
            Code.PLAIN_CLOSURE, step.file, step.node, f"{text}, and under no_sync() each rank steps by other gradients",
            "leave out no_sync(), so that all ranks move their weights alike",
        )  # fmt: skip
    if not plan.facts.options.runtime:
        yield Refusal(
            Code.PLAIN_CLOSURE, step.file, step.node,
            f"{text}, for which only the runtime has an engine average gradients",
            "leave out --no-runtime",
        )  # fmt: skip


def _local_losses(step: Step, plan: ProgramPlan) -> Iterator[Refusal]:
    """Yield that the ranks of a program part, as each decides by the loss of its share of the data."""
    names = {value.name for value in step.optimizers}
    if step.closure is not None and not names <= ELEMENTWISE_OPTIMIZERS and is_called(INIT, plan.facts.flow):
        yield Refusal(
            Code.PLAIN_CLOSURE, step.file, step.node,
            f"{expression_text(step.call.func)}() decides on each rank by the loss of its share of the data, so that "
            "weights part, where step_with() gives all ranks the mean",
            "return the mean of the ranks' losses from the closure, and start the script on one rank to convert it",
        )  # fmt: skip
