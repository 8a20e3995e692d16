"""Base classes of libraries, whose converted form the runtime has: what a trial built on one has of it.

The conversion reads such a class as if it stood in a file of the project, and leaves that file out of what it writes.
The runtime's class has the same attributes and methods, with an engine (``trial_runtime.model_hub``).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ds_migrate.project.module_index import ModuleFacts, module_facts

TRANSFORMER_TRIAL = "BaseTransformerTrial"
TRANSFORMER_TRIALS = tuple(
    f"model_hub.huggingface.{module}{TRANSFORMER_TRIAL}" for module in ("", "_trial.")
)  # as a trial may import it

UNMAINTAINED = "model_hub.mmdetection."  # nothing replaces it: its library does not run on current versions of torch

LIBRARY_PATH = Path("model_hub/huggingface/_trial.py")  # relative, so that no file of a project has this name
LIBRARY_BASE = (LIBRARY_PATH, TRANSFORMER_TRIAL)
LIBRARY_SOURCE = b"""\
import determined.pytorch as det_torch
import torch
import transformers


class BaseTransformerTrial(det_torch.PyTorchTrial):
    def __init__(self, context: det_torch.PyTorchTrialContext) -> None:
        self.context = context
        self.check_hparams()
        self.model = transformers.AutoModel.from_config(self.config)
        self.model = self.context.wrap_model(self.model)
        self.optimizer = self.context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))
        self.lr_scheduler = self.context.wrap_lr_scheduler(
            transformers.get_scheduler("linear", self.optimizer), det_torch.LRScheduler.StepMode.STEP_EVERY_BATCH
        )
        self.grad_clip_fn = None
        if self.hparams.max_grad_norm > 0:
            self.grad_clip_fn = lambda x: torch.nn.utils.clip_grad_norm_(x, self.hparams.max_grad_norm)

    def check_hparams(self):
        self.hparams.num_training_steps = self.context.get_global_batch_size()

    def train_batch(self, batch, epoch_idx, batch_idx):
        outputs = self.model(**batch)
        loss = outputs["loss"]
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, self.grad_clip_fn)
        return loss
"""


@cache
def library_facts() -> ModuleFacts:
    """Return what is known of the class's module."""
    return module_facts(LIBRARY_SOURCE)
