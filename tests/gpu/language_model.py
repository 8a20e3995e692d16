"""An original trial of any size: a decoder-only language model on generated text, one model and one AdamW."""

from __future__ import annotations

from pathlib import Path

SOURCE = '''\
import torch
import torch.nn as nn
import torch.nn.functional as F
from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext


class Counting(torch.utils.data.Dataset):
    """Token sequences that count upwards from a random start: easy to learn."""

    def __init__(self, size, length, vocabulary, seed):
        draw = torch.Generator().manual_seed(seed)
        starts = torch.randint(vocabulary, (size, 1), generator=draw)
        self.tokens = (starts + torch.arange(length + 1)) % vocabulary

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, length):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))


class LanguageModelTrial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        get = context.get_hparam
        model = LanguageModel(get("vocabulary"), get("width"), get("layers"), get("heads"), get("length"))
        self.parameters = sum(p.numel() for p in model.parameters())
        self.model = self.context.wrap_model(model)
        self.optimizer = self.context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=get("lr")))

    def _loader(self, size, seed):
        get = self.context.get_hparam
        return DataLoader(
            Counting(size, get("length"), get("vocabulary"), seed), batch_size=self.context.get_per_slot_batch_size()
        )

    def build_training_data_loader(self):
        return self._loader(256, 0)

    def build_validation_data_loader(self):
        return self._loader(8, 1)

    def train_batch(self, batch, epoch_idx, batch_idx):
        logits = self.model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "parameters": float(self.parameters)}

    def evaluate_batch(self, batch):
        logits = self.model(batch[:, :-1])
        return {"validation_loss": F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())}
'''

CONFIG = """\
name: language-model
entrypoint: model_def:LanguageModelTrial
hyperparameters:
  global_batch_size: 4
  lr: 1e-3
  vocabulary: {vocabulary}
  width: {width}
  layers: {layers}
  heads: {heads}
  length: {length}
searcher:
  name: single
  metric: validation_loss
  max_length: {{batches: {batches}}}
scheduling_unit: 1
reproducibility: {{experiment_seed: 1}}
"""


def write(folder: Path, **size: int) -> Path:
    """Write the trial and its config into `folder`; the config's path. The names of `size` are those of CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model_def.py").write_text(SOURCE)
    (folder / "const.yaml").write_text(CONFIG.format(**size))
    return folder / "const.yaml"
