"""Load the weights of a PyTorchTrial's checkpoint into the trial that was migrated from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch.deepspeed._engine.module import EngineModule


def load_weights(states: list[dict[str, torch.Tensor]], engines: list[Any]) -> None:
    """Give each saved model's weights and buffers to the model of the same names and shapes. Collective.

    Several models alike take them in the order in which the models were wrapped. Optimizers start fresh.

    Args:
        states: the models' states, in the order in which the PyTorchTrial wrapped them.
        engines: the engines; an EngineModule's models are taken one by one.

    Raises:
        InvalidCheckpointException: when a saved model has no counterpart, before anything is changed.
    """
    models = list(_models(engines))
    pairs = []
    for number, state in enumerate(states):
        match = _fitting(models, state)
        if match is None:  # a DistributedDataParallel put this before the names
            torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
            match = _fitting(models, state)
        if match is None:
            names = "; ".join(f"{type(model).__name__}: {', '.join(list(_shapes(model))[:4])} ..." for model in models)
            raise InvalidCheckpointException(
                f"Model {number} of the PyTorchTrial's checkpoint ({', '.join(list(state)[:4])} ...) fits no model of "
                f"the trial's engines by names and shapes ({names or 'none left'})."
            )
        models.remove(match)
        pairs.append((match, state))
    for model, state in pairs:
        with _gathered(model):
            model.load_state_dict(state)
    for engine in engines:
        refresh = getattr(engine.optimizer, "refresh_fp32_params", None)
        if refresh is not None:  # the optimizer steps separate copies
            refresh()


def _models(engines: list[Any]) -> Iterator[torch.nn.Module]:
    seen: set[int] = set()
    for engine in engines:
        own = engine.module.children() if isinstance(engine.module, EngineModule) else [engine.module]
        for model in own:
            if id(model) not in seen:
                seen.add(id(model))
                yield model


def _fitting(models: list[torch.nn.Module], state: dict[str, torch.Tensor]) -> torch.nn.Module | None:
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    return next((model for model in models if _shapes(model) == shapes), None)


def _shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    # ZeRO stage 3 leaves empty tensors behind, and the shapes beside them.
    whole = {name: tuple(p.ds_shape) for name, p in model.named_parameters() if hasattr(p, "ds_shape")}
    return {**shapes, **whole}


@contextlib.contextmanager
def _gathered(model: torch.nn.Module) -> Iterator[None]:
    """Gather the model's parameters, and partition them again at the end."""
    import deepspeed

    sharded = [p for p in model.parameters() if hasattr(p, "ds_id")]
    with deepspeed.zero.GatheredParameters(sharded, modifier_rank=0, enabled=bool(sharded)):
        yield
