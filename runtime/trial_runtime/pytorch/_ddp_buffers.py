"""Buffers (running statistics and the like), the same on all ranks.

DistributedDataParallel gives rank 0's buffers to all ranks before a forward, unless the forward before was one without
gradients: nothing that a backward follows has changed them since. :class:`BufferSync` does the same for the models of
DeepSpeed engines, which have no such thing.

A model that its own method calls (``self.model.loss(x)``, which calls ``self(x)``) is run past DistributedDataParallel,
which then broadcasts nothing. So it is here.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from typing import Any

import torch
import torch.distributed as dist

_STATE = "__getstate__"  # which copy and pickle ask an object for, before its class
_LIBRARIES = ("torch", "deepspeed", "trial_runtime")


def broadcast(buffers: list[torch.Tensor], group: Any = None) -> None:
    """Overwrite ``buffers`` with those of the group's first rank: one broadcast for each dtype and device.
    Collective."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = defaultdict(list)
    for buffer in buffers:
        kinds[buffer.dtype, buffer.device].append(buffer)
    source = 0 if group is None else dist.get_global_rank(group, 0)
    with torch.no_grad():
        for same in kinds.values():
            flat: Any = torch.cat([buffer.detach().reshape(-1) for buffer in same])
            dist.broadcast(flat, source, group=group)
            for buffer, part in zip(same, flat.split([buffer.numel() for buffer in same]), strict=True):
                # Past autograd, as DistributedDataParallel does: a trial may forward twice before it goes backward.
                buffer.data.copy_(part.view_as(buffer))


class LiveHooks:
    """Hooks of a module that its copies and pickles do not have.

    A copy, such as an average of weights, is no model that all ranks run together.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        vars(module)[_STATE] = self._state_of_copies

    @classmethod
    def are_on(cls, module: torch.nn.Module) -> bool:
        """Return whether a module has hooks of this class."""
        return any(isinstance(_owner(hook), cls) for hook in module._forward_pre_hooks.values())

    def _state_of_copies(self) -> Any:
        """Return what copies and pickles of the module have."""
        by_class = getattr(type(self.module), _STATE, None)
        state = vars(self.module) if by_class is None else by_class(self.module)
        if not isinstance(state, dict):
            return state
        state = {name: value for name, value in state.items() if name != _STATE}
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            hooks = state.get(name, {}).items()
            state[name] = OrderedDict((key, h) for key, h in hooks if not isinstance(_owner(h), LiveHooks))
        with_kwargs = state.get("_forward_pre_hooks_with_kwargs", {}).items()
        kept = OrderedDict((key, flag) for key, flag in with_kwargs if key in state["_forward_pre_hooks"])
        return {**state, "_forward_pre_hooks_with_kwargs": kept}


class BufferSync(LiveHooks):
    """Broadcast of a module's buffers before its forwards, when DistributedDataParallel would have.

    Args:
        module: a model whose forward the trial calls, directly or through an engine.
        group: its data-parallel group.
    """

    def __init__(self, module: torch.nn.Module, group: Any = None) -> None:
        super().__init__(module)
        self.group = group
        self._due = True
        module.register_forward_pre_hook(self._before)
        module.register_forward_hook(self._after)

    def now(self) -> None:
        """Broadcast if the next forward would. Collective."""
        if self._due:
            broadcast(list(self.module.buffers()), self.group)
            self._due = False

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        del args
        if not _is_called_by_own_method(module):
            self.now()

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        del args, output
        if not _is_called_by_own_method(module):
            self._due = torch.is_grad_enabled()

    @staticmethod
    def needed(module: torch.nn.Module) -> bool:
        """Return whether the module has buffers and parameters to train: DistributedDataParallel takes no others.

        A module that has a broadcast needs no other one.
        """
        if BufferSync.are_on(module):
            return False
        return any(True for _ in module.buffers()) and any(p.requires_grad for p in module.parameters())


def _owner(hook: object) -> object:
    return getattr(hook, "__self__", None)


def _is_called_by_own_method(module: torch.nn.Module) -> bool:
    """Return whether the code that called the module is a method of it; asked by the module's hooks."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    return frame is not None and frame.f_locals.get("self") is module
