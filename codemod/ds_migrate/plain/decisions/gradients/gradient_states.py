"""The content of gradients: nothing, that of a backward pass, or what a step has used."""

from __future__ import annotations

from dataclasses import dataclass, field

from ds_migrate.plain.recognition.facts import Backward, Step, ZeroGrad
from ds_migrate.syntax.branches import tests_around
from ds_migrate.syntax.nodes import dotted

Operation = Backward | Step | ZeroGrad


@dataclass(frozen=True)
class Used:
    """Gradients that a step has used. ``is_counted``: in a branch in which the program knows that it has not."""

    step: Step
    is_counted: bool = False


@dataclass(frozen=True)
class Sum:
    """Gradients of a backward pass, and below them those that a step has used."""

    backward: Backward
    step: Step


# What gradients may hold: that of the last operation which touched them; None where they are cleared.
States = frozenset[Backward | Sum | Used | None]
CLEARED: States = frozenset([None])


@dataclass
class GradientUses:
    """The gradients that operations use twice, or not at all, each as often as a way leads there."""

    used_again: list[Step] = field(default_factory=list)
    stepped_again: list[Step] = field(default_factory=list)
    unused: list[Backward] = field(default_factory=list)

    def after(self, operation: Operation, states: States) -> States:
        """Return what gradients hold after an operation."""
        if isinstance(operation, Step):
            if operation.is_own:  # no engine clears them
                return CLEARED
            self.stepped_again += [state.step for state in states if isinstance(state, Sum)]
            self.used_again += [state.step for state in states if isinstance(state, Used) and not state.is_counted]
            return frozenset([Used(operation)])
        backwards = [state.backward if isinstance(state, Sum) else state for state in states]
        self.unused += [one for one in backwards if isinstance(one, Backward)]
        if isinstance(operation, ZeroGrad):
            return CLEARED
        used = [state for state in states if isinstance(state, Used)]
        self.used_again += [state.step for state in used]
        steps = {state.step for state in used if not state.is_counted}
        steps |= {state.step for state in states if isinstance(state, Sum)}
        is_alone = len(used) < len(states) or not steps
        return frozenset([*(Sum(operation, step) for step in steps), *([operation] if is_alone else [])])


def counted(states: States, name: str | None) -> States:
    """Return states in a branch where a name is false, under which as a condition a program may have stepped."""
    return frozenset(
        Used(state.step, is_counted=True) if isinstance(state, Used) and name and _is_under(state.step, name) else state
        for state in states
    )


def _is_under(step: Step, name: str) -> bool:
    return any(holds and dotted(test) == name for test, holds in tests_around(step.file, step.node))
