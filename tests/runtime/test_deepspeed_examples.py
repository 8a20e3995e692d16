"""Determined's own DeepSpeed examples train under ds-train on 2 CPU ranks, as they are written.

Data is made up, networks are smaller, and Adam is torch's.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from forked_python import forked_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DATA = """
import torch

def images(samples=32, channels=3, side=16):
    draw = torch.Generator().manual_seed(0)
    shape = (samples, channels, side, side)
    return torch.utils.data.TensorDataset(
        torch.rand(shape, generator=draw) * 2 - 1, torch.randint(0, 10, (samples,), generator=draw)
    )
"""

IMPORTS = """
import logging
from typing import Any, Dict, Iterator, Optional, Union

import deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F
from attrdict import AttrDict
from deepspeed.pipe import PipelineModule

import data
from determined.pytorch import DataLoader, TorchData
from determined.pytorch.deepspeed import DeepSpeedTrial, DeepSpeedTrialContext, overwrite_deepspeed_config
"""

DCGAN = """
from determined.tensorboard.metric_writers.pytorch import TorchWriter


class Generator(nn.Module):
    def __init__(self, ngf, nc, nz):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False), nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ndf, nc):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input).view(-1, 1).squeeze(1)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


class DCGANTrial(DeepSpeedTrial):
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.hparams = AttrDict(self.context.get_hparams())
        self.data_config = AttrDict(self.context.get_data_config())
        self.logger = TorchWriter()
        num_channels = self.data_config.channels
        gen_net = Generator(self.hparams.generator_width_base, num_channels, self.hparams.noise_length)
        gen_net.apply(weights_init)
        disc_net = Discriminator(self.hparams.discriminator_width_base, num_channels)
        disc_net.apply(weights_init)
        gen_parameters = filter(lambda p: p.requires_grad, gen_net.parameters())
        disc_parameters = filter(lambda p: p.requires_grad, disc_net.parameters())
        ds_config = overwrite_deepspeed_config(
            self.hparams.deepspeed_config, self.hparams.get("overwrite_deepspeed_args", {})
        )
        generator, _, _, _ = deepspeed.initialize(model=gen_net, model_parameters=gen_parameters, config=ds_config)
        discriminator, _, _, _ = deepspeed.initialize(
            model=disc_net, model_parameters=disc_parameters, config=ds_config
        )
        self.generator = self.context.wrap_model_engine(generator)
        self.discriminator = self.context.wrap_model_engine(discriminator)
        self.fixed_noise = self.context.to_device(
            torch.randn(self.context.train_micro_batch_size_per_gpu, self.hparams.noise_length, 1, 1)
        )
        self.criterion = nn.BCELoss()
        self.fp16 = generator.fp16_enabled()
        self.gradient_accumulation_steps = generator.gradient_accumulation_steps()
        if self.gradient_accumulation_steps > 1:
            logging.info("Disabling automatic gradient accumulation.")
            self.context.disable_auto_grad_accumulation()

    def _get_noise(self, dtype: torch.dtype) -> torch.Tensor:
        return self.context.to_device(
            torch.randn(
                self.context.train_micro_batch_size_per_gpu, self.hparams.noise_length, 1, 1, dtype=dtype
            )
        )

    def train_batch(self, iter_dataloader: Optional[Iterator[TorchData]], epoch_idx: int, batch_idx: int):
        assert iter_dataloader is not None
        precision = torch.float16 if self.fp16 else torch.float32
        real_label, fake_label = 1, 0
        self.discriminator.zero_grad()
        real_sample_count = 0
        errD_real_sum = errD_fake_sum = D_x = D_G_z1 = 0.0
        fake_sample_count = self.context.train_micro_batch_size_per_gpu * self.gradient_accumulation_steps
        for i in range(self.gradient_accumulation_steps):
            real, _ = self.context.to_device(next(iter_dataloader))
            real = real.to(precision)
            actual_batch_size = real.shape[0]
            real_sample_count += actual_batch_size
            label = torch.full((actual_batch_size,), real_label, dtype=precision, device=self.context.device)
            output = self.discriminator(real)
            errD_real = self.criterion(output, label)
            self.discriminator.backward(errD_real)
            errD_real_sum += errD_real.item() * actual_batch_size
            D_x += output.sum().item()

            fake = self.generator(self._get_noise(precision))
            label = torch.full((fake.shape[0],), fake_label, dtype=precision, device=self.context.device)
            output = self.discriminator(fake.detach())
            errD_fake = self.criterion(output, label)
            self.discriminator.backward(errD_fake)
            errD_fake_sum += errD_fake.item() * fake.shape[0]
            D_G_z1 += output.sum().item()
            self.discriminator.step()

        self.generator.zero_grad()
        errG_sum = 0.0
        for i in range(self.gradient_accumulation_steps):
            fake = self.generator(self._get_noise(precision))
            label = torch.full((fake.shape[0],), real_label, dtype=precision, device=self.context.device)
            output = self.discriminator(fake)
            errG = self.criterion(output, label)
            self.generator.backward(errG)
            errG_sum += errG.item() * fake.shape[0]
            self.generator.step()
        return {
            "errD": errD_real_sum / real_sample_count + errD_fake_sum / fake_sample_count,
            "errG": errG_sum / fake_sample_count,
            "D_x": D_x / real_sample_count,
            "D_G_z1": D_G_z1 / fake_sample_count,
        }

    def evaluate_batch(self, iter_dataloader: Optional[Iterator[TorchData]], batch_idx: int):
        assert iter_dataloader is not None
        real, _ = self.context.to_device(next(iter_dataloader))
        fake = self.generator(self.fixed_noise)
        if batch_idx == 0:
            self.logger.writer.add_image("fake", fake[0] / 2 + 0.5, 0)
        return {"D_x": self.discriminator(real).mean().item(), "D_G_z": self.discriminator(fake).mean().item()}

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(data.images(), batch_size=self.context.train_micro_batch_size_per_gpu, shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(data.images(), batch_size=self.context.train_micro_batch_size_per_gpu)
"""

MOE = """
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 6 * 6, 32)
        self.moe_layer_list = nn.ModuleList(
            deepspeed.moe.layer.MoE(
                hidden_size=32,
                expert=nn.Linear(32, 32),
                num_experts=n_e,
                ep_size=args.ep_world_size,
                use_residual=args.mlp_type == "residual",
                k=args.top_k,
                min_capacity=args.min_capacity,
                noisy_gate_policy=args.noisy_gate_policy,
            )
            for n_e in args.num_experts
        )
        self.fc4 = nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = F.relu(self.fc1(x.view(-1, 6 * 6 * 6)))
        for layer in self.moe_layer_list:
            x, _, _ = layer(x)
        return self.fc4(x)


def create_moe_param_groups(model):
    parameters = {"params": [p for p in model.parameters()], "name": "parameters"}
    return split_params_into_different_moe_groups_for_optimizer(parameters)


class CIFARTrial(DeepSpeedTrial):
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.args = AttrDict(self.context.get_hparams())
        net = Net(self.args)
        parameters = filter(lambda p: p.requires_grad, net.parameters())
        if self.args.moe_param_group:
            parameters = create_moe_param_groups(net)
        ds_config = overwrite_deepspeed_config(
            self.args.deepspeed_config, self.args.get("overwrite_deepspeed_args", {})
        )
        model_engine, optimizer, _, _ = deepspeed.initialize(
            args=self.args, model=net, model_parameters=parameters, config=ds_config
        )
        self.model_engine = self.context.wrap_model_engine(model_engine)
        self.fp16 = model_engine.fp16_enabled()
        self.criterion = nn.CrossEntropyLoss().to(self.context.device)

    def train_batch(self, dataloader_iter: Optional[Iterator[TorchData]], epoch_idx: int, batch_idx: int):
        inputs, labels = self.context.to_device(next(dataloader_iter))
        if self.fp16:
            inputs = inputs.half()
        loss = self.criterion(self.model_engine(inputs), labels)
        self.model_engine.backward(loss)
        self.model_engine.step()
        return {"loss": loss.item()}

    def evaluate_batch(self, dataloader_iter: Optional[Iterator[TorchData]], batch_idx: int):
        inputs, labels = self.context.to_device(next(dataloader_iter))
        outputs = self.model_engine(inputs)
        _, predicted = torch.max(outputs.data, 1)
        return {"loss": self.criterion(outputs, labels), "accuracy": (predicted == labels).float().mean()}

    def build_training_data_loader(self) -> Any:
        return DataLoader(data.images(), batch_size=self.context.train_micro_batch_size_per_gpu, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(data.images(), batch_size=self.context.train_micro_batch_size_per_gpu)
"""

PIPELINE = """
class AlexNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, kernel_size=5, stride=2, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, kernel_size=3, padding=1), nn.ReLU(inplace=True),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(32, 16), nn.ReLU(inplace=True), nn.Linear(16, num_classes)
        )


def join_layers(vision_model):
    return [
        *vision_model.features,
        vision_model.avgpool,
        lambda x: torch.flatten(x, 1),
        *vision_model.classifier,
    ]


class CIFARTrial(DeepSpeedTrial):
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.args = AttrDict(self.context.get_hparams())
        model = AlexNet(10)
        model = PipelineModule(
            layers=join_layers(model),
            loss_fn=torch.nn.CrossEntropyLoss(),
            num_stages=self.args.pipe_parallel_size,
            partition_method=self.args.part,
            activation_checkpoint_interval=0,
        )
        ds_config = overwrite_deepspeed_config(
            self.args.deepspeed_config, self.args.get("overwrite_deepspeed_args", {})
        )
        model_engine, optimizer, _, _ = deepspeed.initialize(
            args=self.args,
            model=model,
            model_parameters=[p for p in model.parameters() if p.requires_grad],
            config=ds_config,
        )
        self.model_engine = self.context.wrap_model_engine(model_engine)

    def train_batch(self, dataloader_iter: Optional[Iterator[TorchData]], epoch_idx: int, batch_idx: int):
        loss = self.model_engine.train_batch(dataloader_iter)
        return {"loss": loss.item()}

    def evaluate_batch(self, dataloader_iter: Optional[Iterator[TorchData]], batch_idx: int):
        loss = self.model_engine.eval_batch(dataloader_iter)
        return {"loss": loss.item()}

    def build_training_data_loader(self) -> Any:
        return DataLoader(data.images(), batch_size=self.context.train_micro_batch_size_per_gpu, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(data.images(), batch_size=self.context.train_micro_batch_size_per_gpu)
"""

CONFIG = """
name: example
entrypoint: python3 -m determined.launch.deepspeed --trial model_def:%(trial)s
data: {channels: 3}
hyperparameters: {deepspeed_config: ds_config.json, %(hparams)s}
resources: {slots_per_trial: 2}
searcher: {name: single, metric: %(metric)s, max_length: {batches: 4}, smaller_is_better: true}
min_validation_period: {batches: 2}
records_per_epoch: 32
environment: {environment_variables: [NCCL_DEBUG=INFO], image: determinedai/environments:deepspeed}
"""

ADAM = {
    "type": "Adam",
    "params": {
        "lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7,
        "torch_adam": True,  # DeepSpeed's own would be compiled here, for minutes
    },
}  # fmt: skip
WARMUP = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}}

EXAMPLES = {
    "dcgan": (
        DCGAN, "DCGANTrial", "D_x",
        "generator_width_base: 4, discriminator_width_base: 4, noise_length: 8, "
        "overwrite_deepspeed_args: {gradient_accumulation_steps: 2, train_batch_size: 16}",
        {"train_batch_size": 32, "optimizer": ADAM, "steps_per_print": 1000},
    ),
    "moe": (
        MOE, "CIFARTrial", "loss",
        "moe: true, ep_world_size: 2, num_experts: [2], mlp_type: standard, top_k: 1, min_capacity: 0, "
        "noisy_gate_policy: RSample, moe_param_group: true",
        {
            "train_batch_size": 16, "optimizer": ADAM, "scheduler": WARMUP, "gradient_clipping": 1.0,
            "prescale_gradients": False, "wall_clock_breakdown": False, "zero_optimization": {"stage": 0},
        },
    ),
    "pipeline": (
        PIPELINE, "CIFARTrial", "loss",
        "pipe_parallel_size: 2, part: parameters, overwrite_deepspeed_args: {steps_per_print: 500}",
        {
            "train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "optimizer": ADAM, "steps_per_print": 10,
            "wall_clock_breakdown": False,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_as_it_is_written(name: str, tmp_path: Path) -> None:
    code, trial, metric, hparams, config = EXAMPLES[name]
    folder = tmp_path / name
    folder.mkdir()
    (folder / "data.py").write_text(DATA)
    (folder / "model_def.py").write_text(IMPORTS + code)
    (folder / "ds_config.json").write_text(json.dumps(config))
    (folder / "const.yaml").write_text(CONFIG % {"trial": trial, "hparams": hparams, "metric": metric})

    command = [forked_python(), "-m", "trial_runtime.train", "const.yaml", "--run-dir", "run"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["steps_completed"] for line in lines if line["group"] == "validation"] == [2, 4]
    assert all(metric in line["metrics"] for line in lines if line["group"] == "validation")
    gives_both = name != "dcgan"
    assert done.stderr.count("config= is used") == gives_both, done.stderr
