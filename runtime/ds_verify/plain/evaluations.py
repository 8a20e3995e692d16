"""Forward passes of a script without gradients or in ``eval()``: its evaluations, and the targets of teachers.

Of each step, on rank 0: how often each module that belongs to no other one was called, and the norm of all that it
returned. A validation on a share of the data, of another model or with dropout differs in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ds_verify.plain.weights import ModuleRegistry, norm
from ds_verify.record import Key, Record


class Evaluations:
    """Forward passes without gradients or in ``eval()`` since the last step. count: of all steps."""

    def __init__(self, modules: ModuleRegistry) -> None:
        self._modules = modules
        self._roots: dict[int, str] = {}
        self._calls: dict[str, tuple[int, float]] = {}
        self._recorded = -1
        self.count = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch all forward passes in the block."""
        handle = torch.nn.modules.module.register_module_forward_hook(self._forward_ends)
        try:
            yield
        finally:
            handle.remove()

    def _forward_ends(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        if torch.is_grad_enabled() and module.training:
            return
        if not self._roots:
            self._roots = {id(root): name for name, root in self._modules.roots()}
        name = self._roots.get(id(module))
        if name is not None:
            calls, squares = self._calls.get(name, (0, 0.0))
            self._calls[name] = calls + 1, squares + norm(tensors_in(output)) ** 2
            self.count += 1

    def add_to(self, record: Record, step: int) -> None:
        """Record the passes since the last call, of a step; of one more where that step has some already.

        Backward passes that no step uses end the step before, and evaluations may come behind them too.
        """
        if self._calls:
            step = self._recorded = max(step, self._recorded + 1)
        for name, (calls, squares) in self._calls.items():
            record.add(Key("validation", step, f"calls of {name} in evaluations"), calls)
            record.add(Key("validation", step, f"outputs of {name} in evaluations"), squares**0.5)
        self._calls.clear()
        self._roots.clear()


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Yield the floating tensors that a forward pass returned, in lists, tuples and dicts as well."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict):
        for each in output.values():
            yield from tensors_in(each)
    elif isinstance(output, list | tuple):
        for each in output:
            yield from tensors_in(each)
