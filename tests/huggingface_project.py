"""A project with trials over a tiny model of transformers, made from a config: nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path

MODEL = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}

TRIALS = '''\
import logging
from typing import Any, Dict

import determined.pytorch as det_torch
import model_hub.huggingface as hf
import torch
from attrdict import AttrDict
from model_hub import utils


class PlainTrial(hf.BaseTransformerTrial):
    """The base class trains it."""

    def __init__(self, context: det_torch.PyTorchTrialContext) -> None:
        self.logger = logging.getLogger(__name__)
        self.hparams = AttrDict(context.get_hparams())
        self.context = context
        super(PlainTrial, self).__init__(context)
        self.logger.info(self.config)
        self.reducer = context.wrap_reducer(
            lambda rows: float(utils.expand_like(rows, fill=0.0).mean()), name="logits", for_training=False
        )

    def examples(self, count: int):
        generator = torch.Generator().manual_seed(count)
        words = torch.randint(5, 40, (count, 8), generator=generator)
        return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.sum() % 2} for row in words]

    def build_training_data_loader(self) -> det_torch.DataLoader:
        return det_torch.DataLoader(self.examples(32), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> det_torch.DataLoader:
        return det_torch.DataLoader(self.examples(8), batch_size=self.context.get_per_slot_batch_size())

    def evaluate_batch(self, batch: det_torch.TorchData, batch_idx: int) -> Dict[str, Any]:
        outputs = self.model(**batch)
        loss, logits = outputs[:2]
        self.reducer.update(utils.numpify(logits))
        return {"loss": loss}


class StepTrial(PlainTrial):
    """It steps itself."""

    def train_batch(self, batch: det_torch.TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
        outputs = self.model(**batch)
        self.context.backward(outputs.loss)
        self.context.step_optimizer(self.optimizer, self.grad_clip_fn)
        return {"loss": outputs.loss, "lr": self.lr_scheduler.get_last_lr()[0]}


class InitTrial(PlainTrial):
    """It makes its model and optimizer itself, and leaves the step to the base class."""

    def __init__(self, context: det_torch.PyTorchTrialContext) -> None:
        self.context = context
        self.hparams = utils.AttrDict(context.get_hparams())
        self.check_hparams()
        kwargs = hf.default_parse_config_tokenizer_model_kwargs(self.hparams)
        optimizer_kwargs, scheduler_kwargs = hf.default_parse_optimizer_lr_scheduler_kwargs(self.hparams)
        self.config, self.tokenizer, model = hf.build_using_auto(kwargs[0], kwargs[1], "base", kwargs[2], False)
        self.model = self.context.wrap_model(Classifier(model))
        self.optimizer = self.context.wrap_optimizer(hf.build_default_optimizer(self.model, optimizer_kwargs))
        self.lr_scheduler = self.context.wrap_lr_scheduler(
            hf.build_default_lr_scheduler(self.optimizer, scheduler_kwargs),
            det_torch.LRScheduler.StepMode.STEP_EVERY_BATCH,
        )
        self.grad_clip_fn = lambda x: torch.nn.utils.clip_grad_norm_(x, 0.05)
        self.reducer = context.wrap_reducer(lambda rows: 0.0, name="logits", for_training=False)


class Classifier(torch.nn.Module):
    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = torch.nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask, labels):
        logits = self.head(self.body(input_ids, attention_mask).pooler_output)
        return torch.nn.functional.cross_entropy(logits, labels), logits
'''

CONFIG = """\
name: tiny
entrypoint: model_def:{trial}
hyperparameters:
  global_batch_size: 8
  model_mode: sequence-classification
  pretrained_model_name_or_path: tiny_bert
  use_pretrained_weights: false
  use_apex_amp: false
  learning_rate: 0.003
  weight_decay: 0.01
  max_grad_norm: 0.5
  num_warmup_steps: 2
searcher:
  name: single
  metric: loss
  max_length:
    batches: 8
min_validation_period:
  batches: 4
optimizations:
  aggregation_frequency: {aggregation}
"""


def write_model(folder: Path) -> Path:
    """Write a model that has a config and a tokenizer, and no weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(35))]
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def write_project(folder: Path, trial: str, aggregation: int = 1) -> Path:
    """Write model, trials and experiment config; return the config."""
    write_model(folder / "tiny_bert")
    (folder / "model_def.py").write_text(TRIALS)
    config = folder / "const.yaml"
    config.write_text(CONFIG.format(trial=trial, aggregation=aggregation))
    return config
