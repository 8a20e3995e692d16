# ruff: noqa: ARG001, ARG002 - trials and callbacks have the signatures they have
"""What DeepSpeed does silently and torch would not: done as torch does it, or said."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import pytest
import torch
import toys
from deepspeed import initialize as unchecked_initialize
from deepspeed.utils import safe_get_full_fp32_param
from distributed import run_ranks
from torch import nn
from trial_runtime import pytorch
from trial_runtime.errors import InvalidDeepSpeedConfigException, InvalidExperimentException
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._data import rng
from trial_runtime.pytorch._ddp_buffers import BufferSync
from trial_runtime.pytorch.deepspeed import EngineModule


def managed_engine(net: nn.Module, optimizer: torch.optim.Optimizer, **config: Any) -> Any:
    return deepspeed.initialize(model=net, optimizer=optimizer, config=toys.ds_config(**config))[0]


# Parameters that no backward reached


class Branching(toys.Data):
    """The second layer takes part in odd batches only, and only on rank 0."""

    context: Any

    def make(self) -> nn.Module:
        self.nets = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        return self.nets

    def loss(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        used = self.nets[0](inputs)
        if batch_idx % 2 and self.context.distributed.rank == 0:
            used = used + self.nets[1](inputs)
        return nn.functional.mse_loss(used, targets)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.nets.state_dict().items()}


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


class BranchingDS(Branching, det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        optimizer = sgd(self.make())
        stage = context.get_hparams().get("stage", 0)
        self.engine = context.wrap_model_engine(managed_engine(self.nets, optimizer, stage=stage))

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(next(dataloader_iter), batch_idx)
        self.engine.backward(loss)
        self.engine.step()
        return loss

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        return {"loss": self.loss(next(dataloader_iter), 0)}


def plain_torch(rank: int, size: int) -> dict[str, torch.Tensor]:
    """The same by hand: gradients of all ranks averaged, where any rank has one."""
    rng.seed_everything(toys.SEED)
    trial = Branching()
    optimizer = sgd(trial.make())
    trial.shuffle = False

    distributed = SimpleNamespace(rank=0)
    trial.context = SimpleNamespace(distributed=distributed)
    batches = list(trial.build_training_data_loader())
    for step in range(6):
        optimizer.zero_grad(set_to_none=True)
        for other in range(size):
            distributed.rank = other
            (trial.loss(batches[(step * size + other) % len(batches)], step) / size).backward()
        optimizer.step()
    return trial.state()


def unreached_parameters_stay(stage: int) -> None:
    BranchingDS.shuffle = False
    outcome = toys.fit(BranchingDS, {"stage": stage}, run_dir=None, max_length=pytorch.Batch(6))
    rank, size = (torch.distributed.get_rank(), 2) if toys.world_size() > 1 else (0, 1)
    assert toys.difference(outcome.state, plain_torch(rank, size)) <= 1e-6


@pytest.mark.parametrize("stage", [0, 1])
def test_parameters_that_no_backward_reached_stay(stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    unreached_parameters_stay(stage)


@pytest.mark.parametrize("stage", [0, 1])
def test_parameters_that_a_backward_reached_on_one_rank_move_on_all(stage: int) -> None:
    run_ranks(unreached_parameters_stay, stage)


@pytest.mark.parametrize("stage", [2, 3])
def test_where_they_cannot_stay_they_are_named_once(
    stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    toys.fit(BranchingDS, {"stage": stage}, max_length=pytorch.Batch(6))
    told = [record.getMessage() for record in caplog.records if "no backward reached" in record.getMessage()]
    assert len(told) == 1
    assert "1.weight, 1.bias" in told[0]


# Buffers


class Counter(nn.Module):
    """Its buffer is set to the last input it saw; nothing else tells ranks apart."""

    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("last", torch.zeros(1))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        seen = self.last.clone()
        self.last.copy_(value)
        return self.weight * 0 + seen

    def own(self, value: torch.Tensor) -> torch.Tensor:
        outputs: list[torch.Tensor] = [self(value) for _ in range(1)]
        return outputs[0]


def buffers_as_ddp() -> None:
    rank = torch.distributed.get_rank()
    inner = Counter()
    ddp = nn.parallel.DistributedDataParallel(inner)
    ours = Counter()
    BufferSync(ours)
    for counter in (inner, ours):
        counter.last.fill_(float(rank))
    wrapped: list[nn.Module] = [ddp, ours]
    for step, (train, with_grad) in enumerate(
        [(True, True), (True, True), (False, False), (False, False), (True, True), (True, False), (True, True)]
    ):
        value = torch.tensor([10.0 * step + rank])
        seen = []
        for module in wrapped:
            module.train(train)
            with torch.set_grad_enabled(with_grad):
                output = module(value)
            if with_grad:
                output.sum().backward()
            seen.append(float(output.detach()))
        assert seen[0] == seen[1], (step, rank, seen)


def test_buffers_are_shared_when_ddp_shares_them() -> None:
    run_ranks(buffers_as_ddp)


def own_methods_as_ddp() -> None:
    rank = torch.distributed.get_rank()
    ddp = pytorch._pytorch_context.TransparentDDP(Counter())
    ours = Counter()
    BufferSync(ours)
    for step, (name, with_grad) in enumerate(
        [("forward", True), ("own", True), ("own", False), ("forward", False), ("own", True), ("forward", True)]
    ):
        value, seen = torch.tensor([10.0 * step + rank]), []
        for module in (ddp, ours):
            with torch.set_grad_enabled(with_grad):
                output = module.own(value) if name == "own" else module(value)
            if with_grad:
                output.sum().backward()
            seen.append(float(output.detach()))
        assert seen[0] == seen[1], (step, rank, seen)


def test_what_a_models_own_method_calls_shares_no_buffers_as_under_ddp() -> None:
    run_ranks(own_methods_as_ddp)


def uneven_validation(folder: Path) -> None:
    """3 validation batches on 2 ranks, one on 3 samples: every one counts once, and no rank waits in a forward."""

    class Uneven(toys.SimpleDS):
        validation_samples = 11

    class UnevenPT(toys.SimplePT):
        validation_samples = 11

    for samples in (11, 3):  # 3: the second rank has none
        Uneven.validation_samples = UnevenPT.validation_samples = samples
        found = []
        for index, kind in enumerate((Uneven, UnevenPT)):
            outcome = toys.fit(kind, run_dir=folder / f"{samples}{index}", max_length=pytorch.Batch(2))
            found.append(outcome)
            if not outcome.validation:
                continue
            net = toys.mlp()
            net.load_state_dict({name.removeprefix("model."): value for name, value in outcome.state.items()})
            net.eval()
            data = toys.dataset(samples, 2).tensors
            with torch.no_grad():
                losses = [
                    float(nn.functional.mse_loss(net(x), y))
                    for x, y in zip(data[0].split(4), data[1].split(4), strict=True)
                ]
            metrics = outcome.validation[-1][1]
            assert float(metrics["validation_loss"]) == pytest.approx(sum(losses) / len(losses), abs=1e-6)
            assert metrics["seen"] == pytest.approx(float(sum(x.sum() for x in data[0].split(4))), abs=1e-4)


def test_uneven_validation_shards_are_evaluated_whole(tmp_path: Path) -> None:
    run_ranks(uneven_validation, tmp_path)


# Errors


@pytest.fixture
def context(tmp_path: Path) -> Any:
    with det_ds.init(run_dir=tmp_path) as context:
        yield context


def test_a_branch_that_wraps_models_alone_makes_no_engine(context: Any) -> None:
    model = context.engines.add_model(nn.Linear(1, 1))
    context.engines.initialize(toys.ds_config())
    assert context.models == [] and model(torch.ones(1, 1)).shape == (1, 1)


def test_engines_of_nothing_are_refused(context: Any) -> None:
    with pytest.raises(ValueError, match="no optimizer was added"):
        context.engines.initialize(toys.ds_config())


def linear(**config: Any) -> Any:
    net = nn.Linear(4, 1)
    return managed_engine(net, torch.optim.SGD(net.parameters(), lr=0.1), **config)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_second_backward_that_would_lose_the_first_is_refused(context: Any, stage: int) -> None:
    engine = context.wrap_model_engine(linear(stage=stage))
    engine.backward(engine(torch.ones(4, 4)).sum())
    with pytest.raises(InvalidExperimentException, match=r"managed_gradient_accumulation.*false"):
        engine.backward(engine(torch.ones(4, 4)).sum())


@pytest.mark.parametrize(("stage", "config"), [(0, {}), (1, {"managed_gradient_accumulation": False}), (3, {})])
def test_a_second_backward_is_right_elsewhere(context: Any, stage: int, config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    before = nn.Linear(4, 1).bias.item()
    torch.manual_seed(0)
    engine = context.wrap_model_engine(linear(stage=stage, **config))
    for _ in range(2):
        engine.backward(engine(torch.ones(4, 4)).sum())
    engine.step()
    bias = det_ds.full_state_dict(engine)["bias"] if stage < 3 else safe_get_full_fp32_param(engine.module.bias)
    assert before - bias.item() == pytest.approx(0.1 * 2 * 4)


def test_sums_of_gradients_are_averaged_when_that_is_asked_for(context: Any) -> None:
    engine = context.wrap_model_engine(linear(accumulation=2, managed_gradient_accumulation=False))
    engine.backward(engine(torch.ones(4, 4)).sum(), scale_wrt_gas=False)
    assert engine.module.bias.grad.item() == 4
    context.average_gradients(engine)
    assert engine.module.bias.grad.item() == 2


def test_backward_returns_the_loss_as_it_was_given(context: Any) -> None:
    engine = context.wrap_model_engine(linear(accumulation=2))
    loss = engine(torch.ones(4, 4)).sum()
    assert engine.backward(loss).item() == loss.item()


@pytest.mark.parametrize("stage", [2, 3])
def test_a_loss_through_another_engines_forward_is_refused_with_the_way_out(context: Any, stage: int) -> None:
    generator, discriminator = (nn.Linear(4, 4) for _ in range(2))
    engine_g, engine_d = (
        context.wrap_model_engine(managed_engine(net, torch.optim.SGD(net.parameters(), lr=0.1), stage=stage))
        for net in (generator, discriminator)
    )
    with pytest.raises(InvalidExperimentException, match="forward of another engine"):
        for _ in range(2):  # stage 2 notices at the second
            fake = engine_g(torch.ones(4, 4))
            engine_d.backward(engine_d(torch.ones(4, 4)).mean() - engine_d(fake.detach()).mean())
            engine_d.step()
            engine_g.backward(engine_d(fake).mean())
            engine_g.step()


def gan_losses(real: torch.Tensor, nets: Any) -> Any:
    """The discriminator's two losses and, once it has stepped, the generator's."""
    generator, discriminator = nets
    yield discriminator(real).square().mean()
    yield (1 - discriminator(generator(real).detach())).square().mean()
    yield discriminator(generator(real)).square().mean()


def train_a_gan_through_engines(folder: Path, k: int) -> float:
    """Largest difference from plain torch on the data of all ranks, after three batches."""
    data = toys.dataset(48).tensors[0].reshape(3, k, -1, 4)
    rng.seed_everything(toys.SEED)
    nets, plain = ([nn.Linear(4, 4), nn.Linear(4, 1)] for _ in range(2))
    for net, other in zip(nets, plain, strict=True):
        other.load_state_dict(net.state_dict())
    generator, discriminator = (torch.optim.Adam(net.parameters(), lr=0.1) for net in plain)
    with det_ds.init(run_dir=folder) as context:
        engines = [
            context.wrap_model_engine(
                managed_engine(
                    net, torch.optim.Adam(net.parameters(), lr=0.1), accumulation=k, wall_clock_breakdown=True
                )
            )
            for net in nets
        ]
        engine_g, engine_d = engines
        for batch in data:
            engine_d.zero_grad()
            discriminator.zero_grad()
            for micro in batch:
                losses = gan_losses(micro.chunk(context.distributed.size)[context.distributed.rank], engines)
                engine_d.backward(next(losses))
                engine_d.backward(next(losses))
                engine_d.step()
                losses = gan_losses(micro, plain)
                ((next(losses) + next(losses)) / k).backward()
            discriminator.step()
            for micro in batch:
                *_, loss = gan_losses(micro.chunk(context.distributed.size)[context.distributed.rank], engines)
                engine_g.backward(loss)
                engine_g.step()
                *_, loss = gan_losses(micro, plain)
                (loss / k).backward()
            generator.step()
            generator.zero_grad()
    return max(toys.difference(net.state_dict(), other.state_dict()) for net, other in zip(nets, plain, strict=True))


@pytest.mark.parametrize("k", [1, 2])
def test_a_loss_goes_through_another_engines_forward_at_stage_0_as_in_torch(k: int, tmp_path: Path) -> None:
    assert max(run_ranks(train_a_gan_through_engines, tmp_path, k)) <= 1e-6


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_loss_through_another_engines_frozen_module_is_right(context: Any, stage: int) -> None:
    torch.manual_seed(0)
    generator, discriminator = (nn.Linear(4, 4) for _ in range(2))
    (expected,) = torch.autograd.grad(discriminator(generator(torch.ones(4, 4))).mean(), generator.bias)
    before = generator.bias.detach().clone()
    engine_g, engine_d = (
        context.wrap_model_engine(managed_engine(net, torch.optim.SGD(net.parameters(), lr=0.1), stage=stage))
        for net in (generator, discriminator)
    )
    engine_d.module.requires_grad_(False)
    engine_g.backward(engine_d.module(engine_g(torch.ones(4, 4))).mean())
    engine_g.step()
    after = safe_get_full_fp32_param(generator.bias) if stage == 3 else generator.bias.detach()
    assert torch.allclose(after, before - 0.1 * expected, atol=1e-6)


def test_a_tuple_is_refused_with_the_right_order(context: Any) -> None:
    with pytest.raises(TypeError, match=r"\(engine, optimizer, dataloader, lr_scheduler\)"):
        context.wrap_model_engine((1, 2, 3, 4))


@pytest.mark.parametrize(
    ("config", "message"), [({"stage": 2}, "ZeRO stage 2"), ({"stage": 0}, "managed_gradient_accumulation")]
)
def test_an_engine_module_needs_a_low_stage_and_unmanaged_accumulation(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with det_ds.init(run_dir=tmp_path) as context:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(InvalidDeepSpeedConfigException, match=message):
            managed_engine(EngineModule(optimizer, net=net), optimizer, **config)
        with pytest.raises(InvalidDeepSpeedConfigException, match=message):  # made in a way that is not looked at
            context.wrap_model_engine(
                unchecked_initialize(
                    model=EngineModule(optimizer, net=net), optimizer=optimizer, config=toys.ds_config(**config)
                )[0]
            )


def test_an_engine_module_has_no_forward() -> None:
    net = nn.Linear(4, 1)
    with pytest.raises(RuntimeError, match=r"Call the model itself \(there are: net\)"):
        EngineModule(torch.optim.SGD(net.parameters(), lr=0.1), net=net)(torch.ones(4))


def test_an_engine_module_has_the_parameters_of_its_optimizer() -> None:
    net, free = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)), nn.Parameter(torch.ones(1))
    module = EngineModule(torch.optim.SGD([*net[2].parameters(), free], lr=0.1), net=net)
    assert [name for name, _ in module.named_parameters()] == ["parameter_0", "net.2.weight", "net.2.bias"]
    assert {"net.0.weight", "net.1.running_mean", "parameter_0"} <= module.state_dict().keys()
    module.eval()
    assert not net[1].training


def test_a_config_without_clipping_is_warned_of_once(context: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        net = nn.Linear(4, 1)
        config = {name: value for name, value in toys.ds_config().items() if name != "gradient_clipping"}
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        context.wrap_model_engine(deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0])
    assert sum('"gradient_clipping": 0.0' in record.getMessage() for record in caplog.records) == 1


def test_a_batch_that_ends_within_an_accumulation_is_refused(tmp_path: Path) -> None:
    class OnlyAtTheBoundary(toys.SimpleDS):
        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            inputs, targets = next(dataloader_iter)
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            self.model.backward(loss)
            if self.context.is_gradient_accumulation_boundary():
                self.model.step()
            return loss

    with pytest.raises(AssertionError, match="did not train for gradient accumulation steps"):
        toys.fit(OnlyAtTheBoundary, {"k": 2}, tmp_path, max_length=pytorch.Batch(1))


def test_a_loop_over_micro_batches_within_a_micro_batch_is_refused(tmp_path: Path) -> None:
    class Looping(toys.SimpleDS):
        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            for _ in range(self.context.get_num_micro_batches_per_slot()):
                metrics = super().train_batch(dataloader_iter, epoch_idx, batch_idx)
            return metrics

    with pytest.raises(InvalidExperimentException, match=r"disable_auto_grad_accumulation\(\)"):
        toys.fit(Looping, {"k": 3}, tmp_path, max_length=pytorch.Batch(1))


def test_less_data_than_one_batch_is_refused(tmp_path: Path) -> None:
    class Small(toys.SimpleDS):
        training_samples = 8

    with pytest.raises(InvalidExperimentException, match="2 micro-batches a rank, but a batch takes 3"):
        toys.fit(Small, {"k": 3}, tmp_path, max_length=pytorch.Batch(1))
