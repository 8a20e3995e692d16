# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""Sharded parameters, pipelines, manual accumulation, custom layouts, whole-dataset evaluation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
from deepspeed.utils import groups
from distributed import run_ranks
from torch import nn
from trial_runtime import pytorch
from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._data import rng


class Plain(toys.Data):
    """No normalisation and no dropout: any sharding gives what plain torch gives on the whole batch."""

    shuffle = False
    validation_samples = 20

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(net.parameters(), lr=0.02)


def plain_torch(batches: int, size: int, k: int, plain: Plain | None = None) -> tuple[list[float], float]:
    """Loss of each micro-batch averaged over ranks, and the validation loss at the end."""
    rng.seed_everything(toys.SEED)
    plain = plain or Plain()
    net = plain.net()
    optimizer = plain.optimizer(net)
    data = list(plain.build_training_data_loader())
    losses, micro = [], 0
    for _ in range(batches):
        optimizer.zero_grad()
        for _ in range(k):
            inputs, targets = (
                torch.cat(parts) for parts in zip(*(data[(micro + r) % len(data)] for r in range(size)), strict=True)
            )
            micro += size
            loss = nn.functional.mse_loss(net(inputs), targets)
            (loss / k).backward()
            losses.append(float(loss))
        optimizer.step()
    with torch.no_grad():
        validation = [float(nn.functional.mse_loss(net(x), y)) for x, y in plain.build_validation_data_loader()]
    return losses, sum(validation) / len(validation)


class PlainDS(Plain, det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        net = self.net()
        config = toys.ds_config(context.get_hparams().get("stage", 0), context.get_hparams().get("k", 1))
        engine, _, _, _ = deepspeed.initialize(model=net, optimizer=self.optimizer(net), config=config)
        self.engine = context.wrap_model_engine(engine)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = next(dataloader_iter)
        loss = nn.functional.mse_loss(self.engine(inputs), targets)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> Any:
        inputs, targets = next(dataloader_iter)
        return {"loss": nn.functional.mse_loss(self.engine(inputs), targets)}


class Whole(PlainDS):
    """Evaluates the whole dataset at once."""

    evaluate_batch = None  # type: ignore[assignment]

    def evaluate_full_dataset(self, data_loader: Any) -> Any:
        losses = [float(nn.functional.mse_loss(self.engine(x), y)) for x, y in data_loader]
        return {"loss": sum(losses) / len(losses)}


class Manual(PlainDS):
    """Trains all micro-batches of a batch in one call."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.disable_auto_grad_accumulation()

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        losses = []
        for _ in range(self.context.get_num_micro_batches_per_slot()):
            losses.append(super().train_batch(dataloader_iter, epoch_idx, batch_idx)["loss"].detach())
        return {"loss": torch.stack(losses).mean()}


def check(kind: type, folder: Path, stage: int, k: int) -> None:
    hparams = {"stage": stage, "k": k}
    outcome = toys.fit(kind, hparams, folder / f"{kind.__name__}{stage}", max_length=pytorch.Batch(5))
    if not outcome.validation:
        return
    losses, validation = plain_torch(5, toys.world_size(), k)
    if kind is Manual:
        losses = [sum(losses[i : i + k]) / k for i in range(0, len(losses), k)]
    assert [float(metrics["loss"]) for metrics in outcome.training] == pytest.approx(losses, abs=1e-6)
    assert float(outcome.validation[-1][1]["loss"]) == pytest.approx(validation, abs=1e-6), (kind, stage)


def every_stage(folder: Path) -> None:
    Plain.validation_samples = 12  # three batches on two ranks
    for stage in (0, 1, 2, 3):
        check(PlainDS, folder, stage, 2)
        check(Whole, folder, stage, 2)
    check(Manual, folder, 1, 2)


def test_every_stage_is_plain_torch_and_validates_the_uneven_rest(tmp_path: Path) -> None:
    run_ranks(every_stage, tmp_path)


class Large(PlainDS):
    """Trains as a large model does at stage 3, whose parameters are gathered for every forward."""

    def __init__(self, context: Any) -> None:
        self.context = context
        net = self.net()
        config = toys.ds_config(3)
        config["zero_optimization"].update(
            stage3_param_persistence_threshold=0,
            stage3_max_live_parameters=0,
            stage3_max_reuse_distance=0,
            stage3_prefetch_bucket_size=0,
        )
        engine, _, _, _ = deepspeed.initialize(model=net, optimizer=self.optimizer(net), config=config)
        self.engine = context.wrap_model_engine(engine)


class LargeWithoutLength(Large):
    def build_validation_data_loader(self) -> Any:
        self.context.disable_dataset_reproducibility_checks()
        return WithoutLength(super().build_validation_data_loader(), self.context.distributed)


class WithoutLength:
    """Every rank's share of a loader's batches."""

    def __init__(self, loader: Any, ranks: Any) -> None:
        self.loader, self.ranks = loader, ranks

    def __iter__(self) -> Any:
        return itertools.islice(self.loader, self.ranks.rank, None, self.ranks.size)


def uneven_rest(folder: Path) -> None:
    Plain.validation_samples = 12  # three batches on two ranks
    check(Large, folder, 3, 1)
    check(LargeWithoutLength, folder, 3, 1)


def test_ranks_whose_forwards_need_each_other_validate_an_uneven_rest(tmp_path: Path) -> None:
    run_ranks(uneven_rest, tmp_path)


def experts(folder: Path, latest: str | None = None) -> list[float]:
    """Validation losses of a mixture of experts over all ranks, which has three batches to validate."""

    class Experts(PlainDS):
        def net(self) -> nn.Module:
            size = self.context.distributed.size
            return nn.Sequential(nn.Linear(4, 8), First(MoE(8, nn.Linear(8, 8), num_experts=2, ep_size=size, k=1)))

        def optimizer(self, net: nn.Module) -> Any:
            groups = split_params_into_different_moe_groups_for_optimizer(
                {"params": [*net.parameters()], "name": "all"}
            )
            return torch.optim.Adam(groups, lr=0.02)

        def losses(self, dataloader_iter: Any) -> Any:
            inputs, targets = next(dataloader_iter)
            return nn.functional.mse_loss(self.engine(inputs).mean(1, keepdim=True), targets)

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = self.losses(dataloader_iter)
            self.engine.backward(loss)
            self.engine.step()
            return {"loss": loss}

        def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> Any:
            return {"loss": self.losses(dataloader_iter)}

    Plain.validation_samples = 12
    outcome = toys.fit(
        Experts, run_dir=folder, max_length=pytorch.Batch(3), validation_period=pytorch.Batch(1),
        checkpoint_period=pytorch.Batch(3), latest_checkpoint=latest,
    )  # fmt: skip
    return [float(metrics["loss"]) for _, metrics in outcome.validation]


class First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.layer(inputs)[0]


def test_a_mixture_of_experts_over_ranks_trains_and_validates_an_uneven_rest(tmp_path: Path) -> None:
    losses = run_ranks(experts, tmp_path)[0]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    (saved,) = (tmp_path / "checkpoints").glob("0000*")
    with pytest.raises(AssertionError, match=r"saved by 2 ranks, and there are 1 now\. Its model has a mixture of exp"):
        run_ranks(experts, tmp_path, str(saved), size=1)


def test_one_rank_does_the_same(tmp_path: Path) -> None:
    for kind in (PlainDS, Whole, Manual):
        check(kind, tmp_path, 0, 2)


# Pipelines


class Pipeline(Plain, det_ds.DeepSpeedTrial):
    """As many stages as ranks, or as the hyperparameter ``stages`` says."""

    layers: Any = ((nn.Linear, 4, 8), (nn.Tanh,), (nn.Linear, 8, 1))

    def __init__(self, context: Any) -> None:
        self.context = context
        self.seen = context.wrap_reducer(sum, name="seen", for_validation=False)
        size, hparams = context.distributed.size, context.get_hparams()
        stages = hparams.get("stages", size)
        net = PipelineModule(
            [LayerSpec(*layer) for layer in self.layers],
            topology=PipeDataParallelTopology(num_pp=stages, num_dp=size // stages),
            loss_fn=nn.functional.mse_loss,
            partition_method="uniform",
        )
        # The same parameters as in one piece.
        rng.seed_everything(toys.SEED)
        whole: Any = self.net()
        for index, layer in enumerate(net.forward_funcs):
            if isinstance(layer, nn.Linear):
                layer.load_state_dict(whole[net._local_start + index].state_dict())
        config = toys.ds_config(hparams["stage"], 2 * stages // size)
        engine, _, _, _ = deepspeed.initialize(model=net, optimizer=self.optimizer(net), config=config)
        self.engine = context.wrap_model_engine(engine)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.seen.update(1)
        return {"loss": self.engine.train_batch(dataloader_iter)}

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        return {"loss": self.engine.eval_batch(dataloader_iter)}


def pipeline(folder: Path, stage: int, kind: type = Pipeline, plain: Plain | None = None) -> None:
    Plain.validation_samples = 16
    outcome = toys.fit(kind, {"stage": stage}, folder / "pipeline", max_length=pytorch.Batch(5))
    if not outcome.validation:
        return
    losses, validation = plain_torch(5, 1, 2, plain)
    pairs = [sum(losses[i : i + 2]) / 2 for i in range(0, 10, 2)]
    assert [float(metrics["loss"]) for metrics in outcome.training] == pytest.approx(pairs, abs=1e-6)
    assert float(outcome.validation[-1][1]["loss"]) == pytest.approx(validation, abs=1e-6)


def test_a_pipeline_with_too_little_validation_data_is_reported_before_training(tmp_path: Path) -> None:
    class Short(Pipeline):
        validation_samples = 4

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            raise AssertionError

    with pytest.raises(InvalidExperimentException, match="should not be less than the number of gradient accumulation"):
        toys.fit(Short, {"stage": 0}, tmp_path, max_length=pytorch.Batch(1))


def resumed_pipeline(folder: Path, stage: int) -> None:
    hparams = {"stage": stage}
    toys.fit(Pipeline, hparams, folder, max_length=pytorch.Batch(3))
    rest = toys.fit(Pipeline, hparams, folder, max_length=pytorch.Batch(5), latest_checkpoint="latest")
    whole = toys.fit(Pipeline, hparams, folder / "whole", max_length=pytorch.Batch(5))
    if rest.training:
        assert toys.metric_difference(rest.training, whole.training[3:]) == 0.0


def both(folder: Path) -> None:
    for stage in (0, 1):  # of ZeRO: what pipelines allow
        pipeline(folder / str(stage), stage)
        resumed_pipeline(folder / str(stage) / "resumed", stage)


class Deep(Plain):
    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1))


class DeepPipeline(Deep, Pipeline):
    layers = ((nn.Linear, 4, 8), (nn.Linear, 8, 8), (nn.Linear, 8, 1))


def three_stages(folder: Path) -> None:
    pipeline(folder, 0, DeepPipeline, Deep())


def test_the_middle_stage_of_a_pipeline_loads_no_data(tmp_path: Path) -> None:
    run_ranks(three_stages, tmp_path, size=3)


def test_a_pipeline_of_two_stages_is_plain_torch_and_resumes(tmp_path: Path) -> None:
    run_ranks(both, tmp_path)


def in_other_layouts(folder: Path) -> list[list[float]]:
    """Losses after the third batch: of two stages that were one on each of two ranks, and the other way round."""
    Plain.validation_samples = 16
    found = []
    for name in ("21", "12"):
        for stages, end in zip(map(int, name), (3, 6), strict=True):
            groups.mpu = None  # what a pipeline leaves there
            hparams = {"stage": 1, "stages": stages, "global_batch_size": 8 // stages}
            latest = "latest" if end == 6 else None
            arguments = {"max_length": pytorch.Batch(end), "latest_checkpoint": latest}
            outcome = toys.fit(Pipeline, hparams, folder / name, **arguments)
        found.append([float(metrics["loss"]) for metrics in outcome.training])
    return found


def test_under_zero_a_pipeline_resumes_in_another_layout(tmp_path: Path) -> None:
    losses, _ = plain_torch(6, 1, 2)
    pairs = [sum(losses[i : i + 2]) / 2 for i in range(0, 12, 2)]
    for found in run_ranks(in_other_layouts, tmp_path)[0]:
        assert found == pytest.approx(pairs[3:], abs=1e-6)


# Layouts


def without_reports_of_rank_1(folder: Path) -> float:
    """Both ranks train the same data (a stand-in for model parallelism); the second one's metrics do not count."""

    class Doubled(PlainDS):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            rank = context.distributed.rank
            context.set_mpu(
                det_ds.ModelParallelUnit(0, 1, should_report_metrics=rank == 0, should_build_data_loader=True)
            )

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            metrics = super().train_batch(dataloader_iter, epoch_idx, batch_idx)
            return metrics if self.context.distributed.rank == 0 else None

        def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> Any:
            metrics = super().evaluate_batch(dataloader_iter, batch_idx)
            return metrics if self.context.distributed.rank == 0 else None

    outcome = toys.fit(Doubled, run_dir=folder, max_length=pytorch.Batch(5))
    if not outcome.validation:
        return 0.0
    losses, validation = plain_torch(5, 1, 1)
    assert [float(metrics["loss"]) for metrics in outcome.training] == pytest.approx(losses, abs=1e-6)
    return float(outcome.validation[-1][1]["loss"]) - validation


def test_a_rank_that_does_not_report_does_not_count(tmp_path: Path) -> None:
    assert run_ranks(without_reports_of_rank_1, tmp_path)[0] == pytest.approx(0.0, abs=1e-6)


class Sliced(PlainDS):
    """Each rank has a half of the hidden layer; both need the same data."""

    def __init__(self, context: Any) -> None:
        self.context = context
        specs = [
            {"patterns": [r".*0\.weight$"], "partition_type": "column"},
            {"patterns": [r".*2\.weight$"], "partition_type": "row"},
        ]
        partition = {"use_default_specs": False, "layer_specs": specs}
        config = toys.ds_config(tensor_parallel={"autotp_size": 2, "partition_config": partition})
        net = nn.ModuleDict({"net": self.net()})
        net.forward = net["net"].forward
        engine, _, _, _ = deepspeed.initialize(model=net, optimizer=self.optimizer(net), config=config)
        self.engine = context.wrap_model_engine(engine)


def sliced(folder: Path) -> None:
    outcome = toys.fit(Sliced, run_dir=folder, max_length=pytorch.Batch(5))
    if outcome.validation:
        losses, validation = plain_torch(5, 1, 1)
        assert [float(metrics["loss"]) for metrics in outcome.training] == pytest.approx(losses, abs=1e-6)
        assert float(outcome.validation[-1][1]["loss"]) == pytest.approx(validation, abs=1e-6)


def test_ranks_that_share_a_model_get_the_same_data(tmp_path: Path) -> None:
    run_ranks(sliced, tmp_path)


class OneLoads(PlainDS):
    """Both ranks train the same data, which the first one loads and tells (a stand-in for model parallelism)."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        first = context.distributed.rank == 0
        context.set_mpu(det_ds.ModelParallelUnit(0, 1, should_report_metrics=first, should_build_data_loader=first))

    def told(self, dataloader_iter: Any) -> Any:
        assert (dataloader_iter is None) == (self.context.distributed.rank > 0)
        return iter([self.context.distributed.broadcast(next(dataloader_iter) if dataloader_iter else None)])

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        return super().train_batch(self.told(dataloader_iter), epoch_idx, batch_idx)

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> Any:
        return super().evaluate_batch(self.told(dataloader_iter), batch_idx)


def one_loads(folder: Path) -> None:
    outcome = toys.fit(OneLoads, run_dir=folder, max_length=pytorch.Batch(5), validation_period=pytorch.Batch(2))
    check(PlainDS, folder, 0, 1)  # afterwards all load again
    if outcome.validation:
        losses, validation = plain_torch(5, 1, 1)
        assert [float(metrics["loss"]) for metrics in outcome.training] == pytest.approx(losses, abs=1e-6)
        assert float(outcome.validation[-1][1]["loss"]) == pytest.approx(validation, abs=1e-6)


def test_a_rank_that_loads_no_data_trains_and_validates(tmp_path: Path) -> None:
    run_ranks(one_loads, tmp_path)


def test_a_layout_comes_after_the_first_engine_and_once(tmp_path: Path) -> None:
    with det_ds.init(hparams={}, run_dir=tmp_path) as context:
        mpu = det_ds.make_data_parallel_mpu(context.distributed)
        with pytest.raises(InvalidExperimentException, match="before setting the mpu"):
            context.set_mpu(mpu)
        PlainDS(context)
        context.set_mpu(mpu)
        with pytest.raises(InvalidExperimentException, match="Only one MPU can be passed to DeepSpeedTrialContext"):
            context.set_mpu(mpu)
