# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""Small trials in both kinds, to compare. They are made in pairs: the same models, losses and data."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn
from trial_runtime import pytorch
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch.deepspeed import EngineModule

SEED = 7
StepMode = pytorch.LRScheduler.StepMode


def dataset(samples: int, seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 4, generator=generator)
    return torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


def ds_config(stage: int = 0, accumulation: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        **more,
    }


def engine_for(optimizer: torch.optim.Optimizer, stage: int, k: int, clip: float = 0.0, **models: nn.Module) -> Any:
    config = ds_config(stage, k, managed_gradient_accumulation=False, gradient_clipping=clip)
    return deepspeed.initialize(model=EngineModule(optimizer, **models), optimizer=optimizer, config=config)[0]


class Data:
    """Data loaders for both kinds; class attributes may be overridden."""

    api: Any = pytorch  # determined.pytorch where it is the oracle
    training_samples = 32
    validation_samples = 20
    shuffle = True

    def build_training_data_loader(self) -> Any:
        return self.api.DataLoader(dataset(self.training_samples), batch_size=4, shuffle=self.shuffle)

    def build_validation_data_loader(self) -> Any:
        return self.api.DataLoader(dataset(self.validation_samples, 2), batch_size=4)


class Both(Data):
    """``context.get_hparam`` decides the details; subclasses define ``setup``, ``losses`` and ``evaluate``."""

    context: Any
    models: dict[str, nn.Module]

    def hparam(self, name: str, default: Any) -> Any:
        return self.context.get_hparams().get(name, default)

    def state(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, model in self.models.items():
            bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
            found.update({f"{name}.{key}": value.detach().clone() for key, value in bare.state_dict().items()})
        return found


def mlp() -> nn.Module:
    # No bias before the normalisation: its true gradient is zero, what it gets is rounding noise.
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 1))


class SimpleBody(Both):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(mlp())
        self.models = {"model": self.model}
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=0.02, weight_decay=0.1))
        step_mode = self.api.LRScheduler.StepMode.STEP_EVERY_BATCH
        context.wrap_lr_scheduler(torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9), step_mode)
        self.seen = context.wrap_reducer(lambda values: float(sum(values)), name="seen")

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.seen.update(float(inputs.sum()))
        self.context.backward(loss)
        clip = self.hparam("clip", 0.0)
        self.context.step_optimizer(
            self.optimizer, clip_grads=(lambda p: nn.utils.clip_grad_norm_(p, clip)) if clip else None
        )
        return {"loss": loss, "epoch": epoch_idx}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        self.seen.update(float(inputs.sum()))
        return {"validation_loss": nn.functional.mse_loss(self.model(inputs), targets)}


class SimplePT(SimpleBody, pytorch.PyTorchTrial):  # type: ignore[misc]
    pass


class SimpleDS(Both, det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        net = mlp()
        self.models = {"model": net}
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.1)
        context.wrap_lr_scheduler(torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9), StepMode.STEP_EVERY_BATCH)
        self.seen = context.wrap_reducer(lambda values: float(sum(values)), name="seen")
        config = ds_config(self.hparam("stage", 0), self.hparam("k", 1), gradient_clipping=self.hparam("clip", 0.0))
        engine, self.optimizer, _, _ = deepspeed.initialize(model=net, optimizer=self.optimizer, config=config)
        self.model = context.wrap_model_engine(engine)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = self.context.to_device(next(dataloader_iter))
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.seen.update(float(inputs.sum()))
        self.model.backward(loss)
        self.model.step()
        return {"loss": loss, "epoch": epoch_idx}

    def evaluate_batch(self, dataloader_iter: Any) -> dict[str, Any]:
        inputs, targets = self.context.to_device(next(dataloader_iter))
        self.seen.update(float(inputs.sum()))
        return {"validation_loss": nn.functional.mse_loss(self.model(inputs), targets)}


class Gan(Both):
    """Two optimizers; the discriminator's step takes two backwards, the generator's leaves gradients in it."""

    def make(self) -> None:
        # Nor a bias at its end: the discriminator's first normalisation takes it away.
        self.generator = nn.Sequential(
            nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4, bias=False)
        )
        self.discriminator = nn.Sequential(
            nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(6, 1)
        )
        self.models = {"generator": self.generator, "discriminator": self.discriminator}

    def loss(self, score: torch.Tensor, real: bool) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(score, torch.full_like(score, float(real)))

    def evaluate(self, batch: Any) -> dict[str, Any]:
        inputs, _ = batch
        return {"score": self.discriminator(inputs).mean(), "made": self.generator(inputs).pow(2).mean()}


class GanBody(Gan):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.make()
        self.generator = context.wrap_model(self.generator)
        self.discriminator = context.wrap_model(self.discriminator)
        self.models = {"generator": self.generator, "discriminator": self.discriminator}
        self.opt_d = context.wrap_optimizer(torch.optim.Adam(self.discriminator.parameters(), lr=0.01))
        self.opt_g = context.wrap_optimizer(torch.optim.Adam(self.generator.parameters(), lr=0.01))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        real, _ = batch
        noise = torch.randn_like(real)
        loss_real = self.loss(self.discriminator(real), True)
        self.context.backward(loss_real)
        fake = self.generator(noise)
        loss_fake = self.loss(self.discriminator(fake.detach()), False)
        self.context.backward(loss_fake)
        self.context.step_optimizer(self.opt_d)
        loss_g = self.loss(self.discriminator(fake), True)
        self.context.backward(loss_g)
        self.context.step_optimizer(self.opt_g)
        return {"loss_d": loss_real + loss_fake, "loss_g": loss_g}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return self.evaluate(batch)


class GanPT(GanBody, pytorch.PyTorchTrial):  # type: ignore[misc]
    pass


class GanDS(Gan, det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.make()
        stage, k = self.hparam("stage", 0), self.hparam("k", 1)
        self.opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=0.01)
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        self.engine_d = context.wrap_model_engine(engine_for(self.opt_d, stage, k, discriminator=self.discriminator))
        self.engine_g = context.wrap_model_engine(engine_for(self.opt_g, stage, k, generator=self.generator))

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        real, _ = self.context.to_device(next(dataloader_iter))
        noise = torch.randn_like(real)
        loss_real = self.loss(self.discriminator(real), True)
        self.engine_d.backward(loss_real)
        fake = self.generator(noise)
        loss_fake = self.loss(self.discriminator(fake.detach()), False)
        self.engine_d.backward(loss_fake)
        if self.context.is_gradient_accumulation_boundary():
            self.engine_d.step()
        loss_g = self.loss(self.discriminator(fake), True)
        self.engine_g.backward(loss_g)
        if self.context.is_gradient_accumulation_boundary():
            self.engine_g.step()
        return {"loss_d": loss_real + loss_fake, "loss_g": loss_g}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
        return self.evaluate(next(dataloader_iter))


class Parts(Both):
    """One loss, two optimizers: one over two parts of a model and a parameter of no model, clipped; one over the rest.

    The first layer has no optimizer.
    """

    def make(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
        self.net[0].requires_grad_(False)
        self.head = nn.Linear(1, 1)
        self.scale = nn.Parameter(torch.ones(1))
        self.models = {"net": self.net, "head": self.head}

    def optimizers(self) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        first = torch.optim.SGD([*self.net[2].parameters(), self.scale, *self.head.parameters()], lr=0.1, momentum=0.9)
        return first, torch.optim.AdamW(self.net[4].parameters(), lr=0.01)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.net(inputs))
        return outputs * self.scale

    def state(self) -> dict[str, torch.Tensor]:
        return {**super().state(), "scale": self.scale.detach().clone()}


class PartsPT(Parts, pytorch.PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.make()
        self.net = context.wrap_model(self.net)
        self.head = context.wrap_model(self.head)
        self.models = {"net": self.net, "head": self.head}
        if isinstance(self.net, nn.parallel.DistributedDataParallel):
            wrapped, self.net = self.net, self.net.module
            self.first, self.second = map(context.wrap_optimizer, self.optimizers())
            self.net = wrapped
        else:
            self.first, self.second = map(context.wrap_optimizer, self.optimizers())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.forward(inputs), targets)
        self.context.backward(loss)
        if self.context.distributed.size > 1 and self.context._should_step():
            # Of no model, so of no DistributedDataParallel: shared by hand, as such a trial has to.
            torch.distributed.all_reduce(self.scale.grad)
            self.scale.grad /= self.context.distributed.size
        self.context.step_optimizer(self.first, clip_grads=lambda p: nn.utils.clip_grad_norm_(p, 0.05))
        self.context.step_optimizer(self.second)
        return loss

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        return {"validation_loss": nn.functional.mse_loss(self.forward(inputs), targets)}


class PartsDS(Parts, det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.make()
        stage, k = self.hparam("stage", 0), self.hparam("k", 1)
        self.first, self.second = self.optimizers()
        self.engine_1 = context.wrap_model_engine(engine_for(self.first, stage, k, 0.05, net=self.net, head=self.head))
        self.engine_2 = context.wrap_model_engine(engine_for(self.second, stage, k, net=self.net))

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = self.context.to_device(next(dataloader_iter))
        loss = nn.functional.mse_loss(self.forward(inputs), targets)
        self.engine_1.backward(loss)
        if self.context.is_gradient_accumulation_boundary():
            self.engine_1.step()
            self.engine_2.step()
        return loss

    def evaluate_batch(self, dataloader_iter: Any) -> dict[str, Any]:
        inputs, targets = next(dataloader_iter)
        return {"validation_loss": nn.functional.mse_loss(self.forward(inputs), targets)}


class Outcome:
    """What a run came to: metrics (on the chief) and final state."""

    def __init__(self, recorder: pytorch.MetricsRecorder, trial: Any) -> None:
        self.training = recorder.training
        self.averages = recorder.averages
        self.validation = recorder.validation
        self.state = trial.state() if hasattr(trial, "state") else {}


def fit(kind: type, hparams: dict[str, Any] | None = None, run_dir: Path | None = None, **arguments: Any) -> Outcome:
    """Train a trial of either kind in this process (one of the ranks, if there are several)."""
    hparams = {"global_batch_size": 4 * world_size(), **(hparams or {})}
    exp_conf = {"reproducibility": {"experiment_seed": SEED}}
    recorder = pytorch.MetricsRecorder()
    on_deepspeed = issubclass(kind, det_ds.DeepSpeedTrial)
    init: AbstractContextManager[Any]
    if on_deepspeed:
        init = det_ds.init(hparams=hparams, exp_conf=exp_conf, run_dir=run_dir)
    else:
        k = hparams.get("k", 1)
        init = pytorch.init(hparams=hparams, exp_conf=exp_conf, run_dir=run_dir, aggregation_frequency=k)
    with init as context:
        context.add_metrics_sink(recorder)
        context.set_enable_tensorboard_logging(False)
        trial = kind(context)
        arguments.setdefault("checkpoint_policy", "none")
        trainer = (det_ds if on_deepspeed else pytorch).Trainer(trial, context)
        trainer.fit(**arguments)
        return Outcome(recorder, trial)


def world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def metric_difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> float:
    assert len(one) == len(other), (len(one), len(other))
    for first, second in zip(one, other, strict=True):
        assert first.keys() == second.keys()
    return max(abs(float(a[name]) - float(b[name])) for a, b in zip(one, other, strict=True) for name in a)
