"""Whole weights out of any checkpoint: stages, half precision, pipelines, several engines; by function and command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from distributed import run_ranks
from forked_python import forked_python
from safetensors.torch import load_file
from torch import nn
from trial_runtime import export, pytorch
from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ClusterInfo, RunInfo, TrialInfo
from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._data import rng


def checkpoint_in(folder: Path) -> Path:
    return folder / "checkpoints" / (folder / "checkpoints" / "latest").read_text().strip()


class Half(toys.SimpleDS):
    """Trains in bfloat16, with fp32 copies in the optimizer."""

    def __init__(self, context: Any) -> None:
        self.context, self.models = context, {}
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        config = toys.ds_config(self.hparam("stage", 0), bf16={"enabled": True})
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        self.model = context.wrap_model_engine(deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0])

    def loss(self, dataloader_iter: Any) -> torch.Tensor:
        inputs, targets = next(dataloader_iter)
        return nn.functional.mse_loss(self.model(inputs.bfloat16()), targets.bfloat16())

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        del epoch_idx, batch_idx
        loss = self.loss(dataloader_iter)
        self.model.backward(loss)
        self.model.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        return {"loss": self.loss(dataloader_iter)}


def masters(engine: Any) -> dict[str, torch.Tensor]:
    """The fp32 parameters that the engine steps."""
    from deepspeed.utils import safe_get_full_fp32_param

    parameters = dict(engine.module.named_parameters())
    groups = getattr(engine.optimizer, "fp32_groups", None)
    if groups is not None:
        return dict(zip(parameters, (value.detach().clone() for value in groups[0]), strict=True))
    return {name: safe_get_full_fp32_param(p).detach().clone() for name, p in parameters.items()}


def half_precision(folder: Path) -> None:
    for stage in (0, 1, 2, 3):
        kept: dict[str, torch.Tensor] = {}

        class Keep(pytorch.PyTorchCallback):
            def __init__(self, trial: Any, into: dict[str, torch.Tensor]) -> None:
                self.trial, self.into = trial, into

            def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
                del checkpoint_dir
                self.into.update(masters(self.trial.model))

        kind = type("Kept", (Half,), {"build_callbacks": lambda self, kept=kept: {"keep": Keep(self, kept)}})
        toys.fit(kind, {"stage": stage}, folder / str(stage), max_length=pytorch.Batch(3))
        state = det_ds.consolidated_state_dict(checkpoint_in(folder / str(stage)))
        assert all(value.dtype == torch.float32 for value in state.values())
        assert toys.difference(state, kept) == 0.0, stage
        assert any(not torch.equal(value, value.bfloat16().float()) for value in state.values())


def test_half_precision_gives_the_fp32_copies_at_every_stage(tmp_path: Path) -> None:
    run_ranks(half_precision, tmp_path)


class Alike(Half):
    """Two normalisations, which training hardly moves, and a tied layer; groups in an order of their own."""

    def __init__(self, context: Any) -> None:
        self.context, self.models = context, {}
        net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
        net[2].weight = net[0].weight
        groups = [{"params": list(net[number].parameters())} for number in (3, 4, 1, 0)] + [{"params": [net[2].bias]}]
        optimizer = torch.optim.AdamW(groups, lr=0.0002)
        config = toys.ds_config(0, bf16={"enabled": True})
        self.model = context.wrap_model_engine(deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0])


@pytest.mark.parametrize("flat", [False, True])
def test_weights_that_are_the_same_in_half_precision_keep_their_own_copies(
    flat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flat:  # what DeepSpeed makes of its own Adam, which needs a GPU
        monkeypatch.setattr("deepspeed.runtime.engine.FusedAdam", torch.optim.AdamW)
    kept: dict[str, torch.Tensor] = {}

    class Keeping(Alike):
        def evaluate_batch(self, dataloader_iter: Any) -> Any:
            optimizer = self.model.optimizer
            names = {id(p): name for name, p in self.model.module.named_parameters()}
            for number, group in enumerate(optimizer.fp16_groups):
                copies = optimizer.fp32_groups_flat[number].split([p.numel() for p in group]) if flat else None
                for p, copy in zip(group, copies or optimizer.fp32_groups[number], strict=True):
                    kept[names[id(p)]] = copy.detach().clone().view(p.shape)
            return super().evaluate_batch(dataloader_iter)

    toys.fit(Keeping, {}, tmp_path, max_length=pytorch.Batch(3))
    found = det_ds.consolidated_state_dict(checkpoint_in(tmp_path))
    assert torch.equal(found["1.weight"].bfloat16(), found["3.weight"].bfloat16())
    assert toys.difference({name: found[name] for name in kept}, kept) == 0.0
    assert torch.equal(found["2.weight"], found["0.weight"])


class Tied(nn.Linear):
    """The first layer and the last one share their weights."""


class Pipeline(toys.Data, det_ds.DeepSpeedTrial):
    """A pipeline of two stages on two ranks."""

    def __init__(self, context: Any) -> None:
        self.context = context
        rng.seed_everything(toys.SEED)
        layers = [
            TiedLayerSpec("ends", Tied, 4, 4, bias=context.get_hparam("bias")),
            LayerSpec(nn.Tanh),
            LayerSpec(nn.Linear, 4, 4),
            torch.sin,
            TiedLayerSpec("ends", Tied, 4, 4, bias=context.get_hparam("bias")),
        ]
        self.net = PipelineModule(
            layers, num_stages=2, loss_fn=self.loss, partition_method="uniform", base_seed=toys.SEED
        )
        half = {"bf16": {"enabled": True}} if context.get_hparam("half") else {}
        config = toys.ds_config(context.get_hparam("stage"), 2, **half)
        optimizer = torch.optim.AdamW([p for p in self.net.parameters() if p.requires_grad], lr=0.02)
        engine = deepspeed.initialize(model=self.net, optimizer=optimizer, config=config)[0]
        self.engine = context.wrap_model_engine(engine)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs.float().sum(1, keepdim=True), targets.float())

    def batches(self, dataloader_iter: Any) -> Any:
        kind = torch.bfloat16 if self.context.get_hparam("half") else torch.float32
        return None if dataloader_iter is None else ((inputs.to(kind), targets) for inputs, targets in dataloader_iter)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        del epoch_idx, batch_idx
        return {"loss": self.engine.train_batch(self.batches(dataloader_iter))}

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        return {"loss": self.engine.eval_batch(self.batches(dataloader_iter))}


def run_pipeline(folder: Path, stage: int, half: bool, bias: bool = False) -> dict[str, torch.Tensor]:
    """Train two stages; this rank's layers as they are in the end."""
    Pipeline.validation_samples = 16
    own: dict[str, torch.Tensor] = {}

    class Keep(pytorch.PyTorchCallback):
        def __init__(self, trial: Any) -> None:
            self.trial = trial

        def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
            del checkpoint_dir
            net = self.trial.net
            for number, layer in enumerate(net.forward_funcs, net._local_start):
                if isinstance(layer, nn.Module):
                    own.update({f"{number}.{k}": v.detach().float().clone() for k, v in layer.state_dict().items()})

    kind = type("Kept", (Pipeline,), {"build_callbacks": lambda self: {"keep": Keep(self)}})
    toys.fit(kind, {"stage": stage, "half": half, "bias": bias}, folder, max_length=pytorch.Batch(3))
    return own


@pytest.mark.parametrize(("stage", "half"), [(0, False), (1, False), (1, True)])
def test_a_pipeline_comes_back_in_one_process(stage: int, half: bool, tmp_path: Path) -> None:
    parts = run_ranks(run_pipeline, tmp_path, stage, half)
    trained = {name: value for part in parts for name, value in part.items()}
    checkpoint = checkpoint_in(tmp_path)
    state = det_ds.consolidated_state_dict(checkpoint)
    assert {name.split(".")[0] for name in state} == {"0", "2", "4"}
    assert torch.equal(state["0.weight"], state["4.weight"])
    rounded = {name: value.bfloat16().float() if half else value for name, value in state.items()}
    assert toys.difference(rounded, trained) == 0.0
    if half:
        assert toys.difference(state, trained) > 0.0

    class Loaded(Pipeline):
        def __init__(self, context: Any) -> None:
            context.get_hparams()["half"] = False
            super().__init__(context)

    trial = pytorch.load_trial_from_checkpoint_path(checkpoint, Loaded)
    inputs = torch.randn(3, 4)
    ends, middle = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
    ends.load_state_dict({"weight": state["0.weight"]})
    middle.load_state_dict({name: state[f"2.{name}"] for name in ("weight", "bias")})
    torch.testing.assert_close(trial.net(inputs), ends(middle(ends(inputs).tanh()).sin()))
    # An engine of another trial in this process has no pipeline's layout.
    toys.fit(toys.SimpleDS, {"stage": 1}, tmp_path / "after", max_length=pytorch.Batch(1))


def test_layers_that_are_tied_in_part_are_not_made_one(tmp_path: Path) -> None:
    run_ranks(run_pipeline, tmp_path, 0, False, True)
    with pytest.raises(InvalidCheckpointException, match=r"Layer 4 \(Tied\) is tied .* different in bias"):
        pytorch.load_trial_from_checkpoint_path(checkpoint_in(tmp_path), Pipeline)


def resume_with_one_stage(folder: Path) -> str:
    one = type("One", (Pipeline,), {"__init__": lambda self, context: in_one_stage(self, context)})
    with pytest.raises(InvalidCheckpointException) as error:
        arguments = {"max_length": pytorch.Batch(5), "latest_checkpoint": "latest"}
        toys.fit(one, {"stage": 0, "half": False, "bias": False}, folder, **arguments)
    return str(error.value)


def in_one_stage(trial: Any, context: Any) -> None:
    make = PipelineModule.__init__
    PipelineModule.__init__ = lambda self, layers, **more: make(self, layers, **{**more, "num_stages": 1})
    try:
        Pipeline.__init__(trial, context)
    finally:
        PipelineModule.__init__ = make


def test_without_zero_a_pipeline_of_other_stages_is_refused_on_resume(tmp_path: Path) -> None:
    run_ranks(run_pipeline, tmp_path, 0, False)
    (message,) = run_ranks(resume_with_one_stage, tmp_path, size=1)
    assert "split in 2 parts" in message
    assert "Resume with 2" in message


# The command


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [forked_python(), "-m", "trial_runtime.export", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=200)


def test_the_command_exports_the_newest_checkpoint_of_a_run(tmp_path: Path) -> None:
    state = toys.fit(toys.SimpleDS, {"stage": 1}, tmp_path / "run", max_length=pytorch.Batch(2)).state
    done = command(tmp_path / "run", tmp_path / "out" / "weights.safetensors")
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "out" / "weights.safetensors")
    assert toys.difference({f"model.{name}": value for name, value in found.items()}, state) == 0.0
    assert "weights.safetensors: " in done.stdout
    assert "tensors" in done.stdout


def test_the_newest_of_a_run_that_keeps_checkpoints_elsewhere_as_a_file_of_torch(tmp_path: Path) -> None:
    toys.fit(toys.SimpleDS, {}, tmp_path / "elsewhere", max_length=pytorch.Batch(1))
    kept = tmp_path / "elsewhere" / "checkpoints"
    trial = TrialInfo(trial_id=1, experiment_id=1, trial_seed=0, hparams={}, _config={}, _debug=False)
    info = ClusterInfo(trial=trial, run=RunInfo(str(tmp_path / "run"), str(kept)), slot_ids=[0])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CLUSTER_INFO_FILE).write_text(info.to_json())

    assert export.main([str(tmp_path / "run"), str(tmp_path / "w.pt")]) == 0
    assert export.main([str(kept), str(tmp_path / "w.safetensors")]) == 0

    weights = torch.load(tmp_path / "w.pt")
    assert toys.difference(weights, load_file(tmp_path / "w.safetensors")) == 0.0


def test_several_engines_are_several_files_or_one_of_them(tmp_path: Path) -> None:
    toys.fit(toys.PartsDS, {"stage": 1}, tmp_path, max_length=pytorch.Batch(1))
    checkpoint = str(checkpoint_in(tmp_path))
    assert export.main([checkpoint, str(tmp_path / "w.safetensors")]) == 0
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == ["w-0.safetensors", "w-1.safetensors"]
    assert export.main([checkpoint, str(tmp_path / "second.safetensors"), "--engine", "1"]) == 0
    assert load_file(tmp_path / "second.safetensors").keys() == load_file(tmp_path / "w-1.safetensors").keys()


def test_a_pytorch_trials_models_are_exported_too(tmp_path: Path) -> None:
    state = toys.fit(toys.GanPT, {}, tmp_path, max_length=pytorch.Batch(1)).state
    assert export.main([str(tmp_path), str(tmp_path / "w.safetensors")]) == 0
    found = load_file(tmp_path / "w-0.safetensors")
    assert toys.difference(
        {f"generator.{name}": value.float() for name, value in found.items()},
        {name: value for name, value in state.items() if name.startswith("generator.")},
    ) == 0.0  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), [("engine", "no engine 7"), ("file", "content has changed"), ("no", "no")])
def test_what_cannot_be_exported_is_reported(
    damage: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.fit(toys.SimpleDS, {}, tmp_path, max_length=pytorch.Batch(1))
    arguments = [str(tmp_path), str(tmp_path / "w.safetensors")]
    if damage == "engine":
        arguments += ["--engine", "7"]
    elif damage == "file":
        shard = checkpoint_in(tmp_path) / "model0" / "mp_rank_00_model_states.pt"
        content = shard.read_bytes()
        shard.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    else:
        arguments[0] = str(tmp_path / "nowhere")
    assert export.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "w.safetensors").exists()
