"""Engines for trials that make their models and optimizers in loops, branches or helpers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from trial_runtime.pytorch.deepspeed._engine.module import EngineModule

if TYPE_CHECKING:
    from trial_runtime.pytorch.deepspeed._context import DeepSpeedTrialContext

ModelT = TypeVar("ModelT", bound=torch.nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


class Engines:
    """One engine for each optimizer, looked up by the optimizer itself: ``context.engines``.

    For trials whose models and optimizers are known only when they run: they are added where they are made, in the
    trial or in any helper that has the context; the engines are made once all are there; each step goes to the engine
    of its optimizer::

        self.nets = {k: context.engines.add_model(net) for k, net in nets.items()}
        self.opts = {k: context.engines.add_optimizer(Adam(net.parameters())) for k, net in self.nets.items()}
        context.engines.initialize(ds_config)
        ...
        self.context.engines.backward(loss)
        if self.context.is_gradient_accumulation_boundary():
            self.context.engines[self.opts["policy"]].step()

    The forward passes keep going through the models. ``ds_config`` needs ``"managed_gradient_accumulation": false`` and
    ZeRO stage 0 (see ``EngineModule``).
    """

    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self._context = context
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._engines: dict[int, Any] = {}

    @property
    def models(self) -> list[torch.nn.Module]:
        """The models themselves, in the order in which they were added."""
        return self._models

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers, in the order in which they were added."""
        return self._optimizers

    def add_model(self, model: ModelT) -> ModelT:
        """Move a model to the device and save, switch and restore it along with the engines. Returns the model."""
        self._refuse_after_initialize("model")
        model.to(self._context.device)
        if not any(known is model for known in self._models):
            self._models.append(model)
        return model

    def add_optimizer(self, optimizer: OptimizerT) -> OptimizerT:
        """Give an optimizer an engine. Returns the optimizer."""
        self._refuse_after_initialize("optimizer")
        if not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
        return optimizer

    def initialize(self, config: dict[str, Any]) -> None:
        """Make the engines. A model belongs to every engine whose optimizer has parameters of it; models that no
        optimizer trains belong to the first engine. With models alone (a branch that serves one) there is none to make,
        and only Trainer.fit() refuses the trial.

        Raises:
            ValueError: nothing was added, or the engines are made already.
        """
        import deepspeed

        self._refuse_after_initialize("engine")
        if not self._optimizers and not self._models:
            raise ValueError(
                "no optimizer was added: call context.engines.add_optimizer(optimizer) before initialize()"
            )
        trained = {id(p) for o in self._optimizers for g in o.param_groups for p in g["params"]}
        for index, optimizer in enumerate(self._optimizers):
            own = {id(p) for g in optimizer.param_groups for p in g["params"]}
            models = {}
            for number, model in enumerate(self._models):
                parameters = {id(p) for p in model.parameters()}
                if parameters & own or (index == 0 and not parameters & trained):
                    models[f"model{number}"] = model
            engine, _, _, _ = deepspeed.initialize(
                model=EngineModule(optimizer, **models), optimizer=optimizer, config=dict(config)
            )
            self._engines[id(optimizer)] = self._context.wrap_model_engine(engine)

    def __getitem__(self, optimizer: torch.optim.Optimizer) -> Any:
        """Return the engine of an optimizer. Raises KeyError for one that was never added."""
        try:
            return self._engines[id(optimizer)]
        except KeyError:
            raise KeyError(
                f"{type(optimizer).__name__} has no engine ({len(self._engines)} have one): it was not added with "
                "engines.add_optimizer() before engines.initialize()"
            ) from None

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> None:
        """Add the gradients of a loss (a scalar) to every parameter that it reaches, whichever engine steps it."""
        first = next(iter(self._engines.values()))
        first.backward(loss, retain_graph=retain_graph, scale_wrt_gas=scale_wrt_gas)

    def allreduce_gradients(self) -> None:
        """Average the gradients of every engine over the ranks now, for code that reads them before a step."""
        for engine in self._engines.values():
            engine.allreduce_gradients()

    def _refuse_after_initialize(self, what: str) -> None:
        if self._engines:
            raise ValueError(f"a {what} was added after engines.initialize(): add models and optimizers before it")
