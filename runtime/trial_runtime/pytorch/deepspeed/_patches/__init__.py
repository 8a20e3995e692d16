"""The registry of what the runtime replaces inside DeepSpeed: one module a patch, applied from here only.

``tests/runtime/test_patches.py`` switches each patch off and expects its fault: a patch that DeepSpeed no longer needs
fails there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from trial_runtime.pytorch.deepspeed._patches import (
    accelerator_notice,
    adagrad,
    backward_loss,
    config_check,
    cross_engine_backward,
    fp32_master_names,
    future_warnings,
    gradient_dtypes,
    gradient_hooks,
    initial_step,
    initialize_notices,
    jit_notice,
    loss_scaling,
    muon_compilation,
    parameter_broadcast,
    plain_engines,
    repeated_backward,
    repeating_loader,
    scalar_clipping,
    second_config,
    shared_memory_comm,
    unreached_parameters,
)
from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine, Patch

PATCHES: tuple[Patch, ...] = (
    accelerator_notice.PATCH,
    future_warnings.PATCH,
    repeating_loader.PATCH,
    gradient_dtypes.PATCH,
    gradient_hooks.PATCH,
    scalar_clipping.PATCH,
    muon_compilation.PATCH,
    shared_memory_comm.PATCH,
    initialize_notices.PATCH,
    second_config.PATCH,
    config_check.PATCH,
    jit_notice.PATCH,
    initial_step.PATCH,
    adagrad.PATCH,
    parameter_broadcast.PATCH,
    plain_engines.PATCH,
    loss_scaling.PATCH,
    fp32_master_names.PATCH,
    unreached_parameters.PATCH,
    backward_loss.PATCH,
    cross_engine_backward.PATCH,
    repeated_backward.PATCH,  # last: it refuses a call before any other counts it
)

_switched_off: set[str] = set()
_in_process: dict[str, contextlib.ExitStack] = {}


def active() -> list[Patch]:
    """Return the patches in force, in the order in which they are applied."""
    return [patch for patch in PATCHES if patch.name not in _switched_off]


def apply_to_process() -> None:
    """Apply the patches that last as long as the process; again does nothing."""
    for patch in active():
        if patch.in_process is not None and patch.name not in _in_process:
            _in_process[patch.name] = contextlib.ExitStack()
            _in_process[patch.name].enter_context(patch.in_process())


def applied_to_run() -> AbstractContextManager[None]:
    """Apply the patches that last as long as a run."""
    return _applied(patch.in_run for patch in active())


def applied_to_load() -> AbstractContextManager[None]:
    """Apply the patches for a checkpoint that is loaded into one plain process."""
    return _applied(patch.in_load for patch in active())


def apply_to_engine(new: NewEngine) -> None:
    """Apply the patches of engines to one that is being wrapped."""
    for patch in active():
        if patch.on_engine is not None:
            patch.on_engine(new)


@contextlib.contextmanager
def switched_off(name: str) -> Iterator[None]:
    """Leave one patch out, for the test that shows what it is for: of the process, and of runs begun inside."""
    _switched_off.add(name)
    if name in _in_process:
        _in_process.pop(name).close()
    try:
        yield
    finally:
        _switched_off.discard(name)
        apply_to_process()


@contextlib.contextmanager
def _applied(managers: Iterable[Callable[[], AbstractContextManager[None]] | None]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for make in managers:
            if make is not None:
                stack.enter_context(make())
        yield
