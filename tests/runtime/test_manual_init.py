"""``DET_MANUAL_INIT_DISTRIBUTED``: torch.distributed is left alone until the trial starts it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from forked_python import forked_python

TRIAL = """
import deepspeed
import torch
import torch.distributed as dist
from determined.pytorch import DataLoader
from determined.pytorch.deepspeed import DeepSpeedTrial


class Line(DeepSpeedTrial):
    def __init__(self, context):
        self.context = context
        distributed = context.distributed
        assert not dist.is_initialized()
        assert distributed.allgather(distributed.rank) == list(range(distributed.size))
        assert not dist.is_initialized()
        START
        assert distributed.allgather("up") == ["up"] * distributed.size
        model = torch.nn.Linear(2, 1)
        config = {"train_micro_batch_size_per_gpu": 4}
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config
        )
        self.engine = context.wrap_model_engine(engine)

    def loss(self, dataloader_iter):
        x = next(dataloader_iter)
        return torch.nn.functional.mse_loss(self.engine(x), x[:, :1])

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        loss = self.loss(dataloader_iter)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter, batch_idx):
        return {"validation_loss": self.loss(dataloader_iter), "ranks": float(dist.get_world_size())}

    def build_training_data_loader(self):
        return DataLoader(torch.rand(32, 2, generator=torch.Generator().manual_seed(0)), batch_size=4)

    def build_validation_data_loader(self):
        return self.build_training_data_loader()
"""
CONFIG = """
name: line
entrypoint: model_def:Line
searcher: {name: single, metric: validation_loss, max_length: {batches: 4}}
environment: {environment_variables: [DET_MANUAL_INIT_DISTRIBUTED=1]}
"""


@pytest.mark.parametrize(
    ("ranks", "start"), [(2, 'deepspeed.init_distributed(dist_backend="gloo")'), (1, 'dist.init_process_group("gloo")')]
)
def test_the_trial_starts_torch_distributed_itself(ranks: int, start: str, tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(TRIAL.replace("START", start))
    (tmp_path / "const.yaml").write_text(CONFIG)
    command = [forked_python(), "-m", "trial_runtime.train", "const.yaml", "--run-dir", "run", "--slots", str(ranks)]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (validation,) = [line["metrics"] for line in lines if line["group"] == "validation"]
    assert validation["ranks"] == ranks
