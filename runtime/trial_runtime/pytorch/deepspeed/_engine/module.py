"""The module of an engine that has one optimizer's parameters, wherever they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch


class EngineModule(torch.nn.Module):
    """Module that gives a DeepSpeed engine exactly the parameters of one optimizer.

    For trials with several optimizers, or one over several models or part of a model: one engine for each optimizer,
    while the forward passes keep going through the models themselves::

        engine, self.opt_d, _, _ = deepspeed.initialize(
            model=EngineModule(self.opt_d, discriminator=self.discriminator), optimizer=self.opt_d, config=ds_config)
        self.engine_d = self.context.wrap_model_engine(engine)

    with ``"managed_gradient_accumulation": false`` in ``ds_config`` and ZeRO stage 0 or 1. The models are children, so
    ``train()``, ``eval()``, ``to()``, buffers and checkpoints cover them whole; ``parameters()`` yields the optimizer's
    parameters only. Parameters of the optimizer that lie in no model become parameters of this module.

    Args:
        optimizer: the optimizer that the engine steps.
        models: models by the name that they get in checkpoints.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, **models: torch.nn.Module) -> None:
        super().__init__()
        for name, model in models.items():
            self.add_module(name, model)
        stepped = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        in_models = {id(p) for _, p in super().named_parameters()}
        for index, parameter in enumerate(p for key, p in stepped.items() if key not in in_models):
            if isinstance(parameter, torch.nn.Parameter):
                self.register_parameter(f"parameter_{index}", parameter)
            else:  # a plain tensor that requires gradients: the optimizer steps this very object
                self.register_buffer(f"tensor_{index}", parameter)
        self._stepped = frozenset(stepped)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the optimizer's parameters, by their names in the models."""
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            if id(parameter) in self._stepped:
                yield name, parameter
        for name, tensor in self.named_buffers(prefix, recurse=False):
            if id(tensor) in self._stepped:
                yield name, tensor  # type: ignore[misc]

    def all_parameters(self) -> Iterator[torch.nn.Parameter]:
        """Yield all parameters of the models, also those of other optimizers or of none."""
        for _, parameter in super().named_parameters():
            yield parameter

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: call the models."""
        del args, kwargs
        names = ", ".join(name for name, _ in self.named_children())
        raise RuntimeError(
            f"An engine around an EngineModule has no forward pass. Call the model itself (there are: {names}), then "
            "engine.backward(loss) and engine.step()."
        )
