"""Imports, base classes and annotations in every style that real trials use."""

from __future__ import annotations

from pathlib import Path

from idiom_case import Idiom, idioms

BODY = '''\

import torch
from torch import nn

from net import Net


class MyTrial({base}):
    """A PyTorchTrial, which wraps its model."""

    def __init__(self, context: {annotation}) -> None:
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {{"loss": loss}}

    def evaluate_batch(self, batch):
        return {{"loss": self.model(batch).mean()}}

    def build_training_data_loader(self):
        return {loader}(make_data(), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return {loader}(make_data(), batch_size=self.context.get_per_slot_batch_size())
'''


def trial(header: str, prefix: str = "", **names: str) -> str:
    """A trial below an import block; ``prefix`` stands before each of Determined's names unless one is given."""
    usual = {"base": "PyTorchTrial", "annotation": "PyTorchTrialContext", "loader": "DataLoader"}
    return header + BODY.format(**{key: names.get(key, prefix + name) for key, name in usual.items()})


NAMED = "from trial_runtime.pytorch.deepspeed import DeepSpeedTrial, DeepSpeedTrialContext, overwrite_deepspeed_config"
ROWS = ("from trial_runtime.pytorch.deepspeed import (", "DeepSpeedTrial,", "DeepSpeedTrialContext,")

IMPORTS = {
    "one line": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext, LRScheduler, TorchData\n"),
        ("from trial_runtime.pytorch import DataLoader, LRScheduler, TorchData", *ROWS,
         "class MyTrial(DeepSpeedTrial):", "def __init__(self, context: DeepSpeedTrialContext) -> None:"),
    ),
    "the base class under another name": Idiom(
        trial(
            "from determined.pytorch import DataLoader, PyTorchTrialContext\n"
            "from determined.pytorch import PyTorchTrial\n\nBase = PyTorchTrial\n"
        ).replace("class MyTrial(PyTorchTrial)", "class MyTrial(Base)"),
        (*ROWS, "Base = DeepSpeedTrial", "class MyTrial(Base):"),
    ),
    "in parentheses": Idiom(
        trial("from determined.pytorch import (\n    DataLoader,  # loads\n    PyTorchTrial,  # trains\n"
              "    PyTorchTrialContext,\n    TorchData,\n)\n"),
        ("from trial_runtime.pytorch import (", "DataLoader,  # loads", "TorchData,", ")", *ROWS,
         "class MyTrial(DeepSpeedTrial):"),
    ),
    "backslash": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, \\\n    PyTorchTrialContext\n"),
        ("from trial_runtime.pytorch import DataLoader", *ROWS, "class MyTrial(DeepSpeedTrial):"),
    ),
    "nothing stays": Idiom(
        trial("from determined.pytorch import PyTorchTrial, PyTorchTrialContext\n", loader="make_loader"),
        (*ROWS, "class MyTrial(DeepSpeedTrial):"),
    ),
    "from determined import pytorch": Idiom(
        trial("from determined import pytorch\n", "pytorch."),
        ("from trial_runtime import pytorch", "from trial_runtime.pytorch import deepspeed as det_ds",
         "class MyTrial(det_ds.DeepSpeedTrial):", "def __init__(self, context: det_ds.DeepSpeedTrialContext) -> None:",
         "ds_config = det_ds.overwrite_deepspeed_config(",
         "return pytorch.DataLoader(make_data(), batch_size=self.context.get_train_micro_batch_size_per_gpu())"),
    ),
    "module under an alias": Idiom(
        trial("import determined.pytorch as det_torch\n", "det_torch."),
        ("import trial_runtime.pytorch as det_torch", "class MyTrial(det_ds.DeepSpeedTrial):"),
    ),
    "from determined import pytorch as": Idiom(
        trial("from determined import pytorch as pt\n", "pt."),
        ("from trial_runtime import pytorch as pt", "class MyTrial(det_ds.DeepSpeedTrial):"),
    ),
    "import determined as det": Idiom(
        trial("import determined as det\nimport determined.pytorch\n", "det.pytorch."),
        ("import trial_runtime as det", "class MyTrial(det_ds.DeepSpeedTrial):"),
    ),
    "import determined": Idiom(
        trial("import determined\nimport determined.pytorch\n", "determined.pytorch."),
        ("import trial_runtime", "import trial_runtime.pytorch", "class MyTrial(det_ds.DeepSpeedTrial):",
         "return trial_runtime.pytorch.DataLoader(",
         "make_data(), batch_size=self.context.get_train_micro_batch_size_per_gpu()", ")"),
    ),
    "import determined.pytorch": Idiom(
        trial("import determined.pytorch\n", "determined.pytorch."),
        ("import trial_runtime.pytorch", "class MyTrial(det_ds.DeepSpeedTrial):"),
    ),
    "both ways": Idiom(
        trial("from determined import pytorch\nfrom determined.pytorch import DataLoader, PyTorchTrial\n",
              annotation="pytorch.PyTorchTrialContext"),
        ("from trial_runtime import pytorch", "from trial_runtime.pytorch import DataLoader",
         "class MyTrial(DeepSpeedTrial):", "def __init__(self, context: DeepSpeedTrialContext) -> None:"),
    ),
    "names under aliases": Idiom(
        trial("from determined.pytorch import DataLoader as DetDataLoader, PyTorchTrial as Base\n"
              "from determined.pytorch import PyTorchTrialContext as Ctx\n",
              base="Base", annotation="Ctx", loader="DetDataLoader"),
        ("from trial_runtime.pytorch import DataLoader as DetDataLoader", "class MyTrial(DeepSpeedTrial):",
         "def __init__(self, context: DeepSpeedTrialContext) -> None:"),
    ),
    "several modules in one import": Idiom(
        trial("import os, determined.pytorch as dp\n", "dp."),
        ("import os, trial_runtime.pytorch as dp", "class MyTrial(det_ds.DeepSpeedTrial):"),
    ),
    "behind a semicolon": Idiom(
        trial("import os; from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"),
        ("import os; from trial_runtime.pytorch import DataLoader", "class MyTrial(DeepSpeedTrial):"),
    ),
    "in a try": Idiom(
        trial("try:\n    from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"
              "except ImportError:\n    raise\n"),
        ("from trial_runtime.pytorch import DataLoader", "class MyTrial(DeepSpeedTrial):"),
    ),
    "for type checkers only": Idiom(
        trial("from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
              "from determined.pytorch import DataLoader, PyTorchTrial\n"
              "if TYPE_CHECKING:\n    from determined.pytorch import PyTorchTrialContext\n"),
        ("class MyTrial(DeepSpeedTrial):", "def __init__(self, context: DeepSpeedTrialContext) -> None:"),
    ),
    "quoted annotation": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n",
              annotation='"PyTorchTrialContext"'),
        ('def __init__(self, context: "DeepSpeedTrialContext") -> None:',),
    ),
    "quoted annotation with more in it": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n",
              annotation='"Optional[PyTorchTrialContext]"'),
        ('def __init__(self, context: "Optional[DeepSpeedTrialContext]") -> None:',),
    ),
    "quoted part of an annotation": Idiom(
        trial("from typing import Optional\nfrom determined.pytorch import DataLoader, PyTorchTrial, "
              "PyTorchTrialContext\n", annotation='Optional["PyTorchTrialContext"]'),
        ('def __init__(self, context: Optional["DeepSpeedTrialContext"]) -> None:',),
    ),
    "optional annotation": Idiom(
        trial("from typing import Optional\nfrom determined.pytorch import DataLoader, PyTorchTrial, "
              "PyTorchTrialContext\n", annotation="Optional[PyTorchTrialContext]"),
        ("def __init__(self, context: Optional[DeepSpeedTrialContext]) -> None:",),
    ),
    "old annotation": Idiom(
        trial("import determined as det\nfrom determined.pytorch import DataLoader, PyTorchTrial\n",
              annotation="det.TrialContext"),
        ("import trial_runtime as det", "def __init__(self, context: det.TrialContext) -> None:"),
    ),
    "star": Idiom(
        trial("from determined.pytorch import *\nfrom determined.pytorch import PyTorchTrial\n"),
        blocked=("DSM101", "hides which names"),
    ),
    "tensorboard": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"
              "from determined.tensorboard.metric_writers.pytorch import TorchWriter\n\nwriter = TorchWriter()\n"),
        ("from trial_runtime.tensorboard.metric_writers.pytorch import TorchWriter",),
    ),
    "tensorboard as a module": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"
              "from determined.tensorboard.metric_writers import pytorch\n\nwriter = pytorch.TorchWriter()\n"),
        ("from trial_runtime.tensorboard.metric_writers import pytorch",),
    ),
    "a name that is not there, unused": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"
              "from determined.experimental import core_v2\nimport determined.common.api\n"),
        ("class MyTrial(DeepSpeedTrial):",), ("determined.experimental", "determined.common"),
    ),
    "the other packages of the library": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"
              "from determined_common import check\n\ncheck.true(1 == 1)\n"),
        ("from trial_runtime.common import check",),
    ),
    "cluster information": Idiom(
        trial("import determined as det\nfrom determined.pytorch import DataLoader, PyTorchTrial, "
              "PyTorchTrialContext\n\ninfo = det.get_cluster_info()\n"),
        ("import trial_runtime as det", "info = det.get_cluster_info()"),
    ),
    "under a docstring and a licence": Idiom(
        trial('#!/usr/bin/env python\n# Licence\n"""PyTorchTrial with wrap_model."""\n'
              "from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"),
        ("#!/usr/bin/env python", "# Licence", '"""PyTorchTrial with wrap_model."""'), review=("DSM201",),
    ),
}  # fmt: skip

CHECKPOINT_HOOKS = """

class Words(PyTorchCallback):
    def on_checkpoint_save_start(self, checkpoint):
        {}
"""

REGISTRY_CALLBACK = """

class Watcher(PyTorchCallback):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.model = context.models[0]
        self.optimizers = context.optimizers

    def on_validation_end(self, metrics):
        print(self.model, self.optimizers)
"""

BASES = {
    "mixin first": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"
              "class Mixin:\n    pass\n", base="Mixin, PyTorchTrial"),
        ("class MyTrial(Mixin, DeepSpeedTrial):",),
    ),
    "metaclass": Idiom(
        trial("import abc\nfrom determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n",
              base="PyTorchTrial, metaclass=abc.ABCMeta"),
        ("class MyTrial(DeepSpeedTrial, metaclass=abc.ABCMeta):",),
    ),
    "subclass in the same file": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        + "\n\nclass Tuned(MyTrial):\n    lr = 0.2\n\n    def train_batch(self, batch, epoch_idx, batch_idx):\n"
        "        return super().train_batch(batch, epoch_idx, batch_idx)\n",
        ("class MyTrial(DeepSpeedTrial):", "class Tuned(MyTrial):",
         "def train_batch(self, dataloader_iter, epoch_idx, batch_idx):",
         "return super().train_batch(dataloader_iter, epoch_idx, batch_idx)"),
    ),
    "nested in a function": Idiom(
        "def make():\n    from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"
        + "\n".join("    " + line if line else "" for line in trial("").replace("MyTrial", "Inner").splitlines())
        + "\n    return Inner\n",
        ("def make():", "from trial_runtime.pytorch import DataLoader", "class Inner(DeepSpeedTrial):"),
    ),
    "name that says nothing": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n").replace(
            "MyTrial", "CatDogModel"),
        ("class CatDogModel(DeepSpeedTrial):",),
    ),
    "explicit base call": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n").replace(
            "        self.context = context\n",
            "        PyTorchTrial.__init__(self, context)\n        self.context = context\n"),
        ("DeepSpeedTrial.__init__(self, context)",),
    ),
    "isinstance in the same file": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        + "\n\nassert issubclass(MyTrial, PyTorchTrial)\n",
        ("assert issubclass(MyTrial, DeepSpeedTrial)",),
    ),
    "a trial's name is taken": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n"
              "def overwrite_deepspeed_config(x):\n    return x\n"),
        ("ds_config = overwrite_deepspeed_config_(",),
    ),
}  # fmt: skip

CONTEXTS = {
    "trial_context": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("self.context", "self.trial_context").replace("context: ", "trial_context: ")
        .replace("= context\n", "= trial_context\n"),
        ("def __init__(self, trial_context: DeepSpeedTrialContext) -> None:", "self.trial_context = trial_context",
         "hparams = self.trial_context.get_hparams()", "self.model = self.trial_context.wrap_model_engine(engine)",
         "batch = self.trial_context.to_device(next(dataloader_iter))"),
    ),
    "a short name": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("self.context = context", "self.ctx = ctx").replace("self.context", "self.ctx")
        .replace("context: ", "ctx: "),
        ("self.model = self.ctx.wrap_model_engine(engine)", "batch = self.ctx.to_device(next(dataloader_iter))"),
    ),
    "not annotated": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("context: PyTorchTrialContext", "context"),
        ("def __init__(self, context) -> None:", "self.model = self.context.wrap_model_engine(engine)"),
    ),
    "raw and attribute in one body": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("self.context.wrap_", "context.wrap_"),
        ("self.model = context.wrap_model_engine(engine)", "batch = self.context.to_device(next(dataloader_iter))"),
    ),
    "kept by super().__init__": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("self.context = context", "super().__init__(context)"),
        ("super().__init__(context)", "self.model = self.context.wrap_model_engine(engine)",
         "batch = self.context.to_device(next(dataloader_iter))"),
    ),
    "local alias": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("        loss = self.model(batch).mean()\n        self.context.backward(loss)\n"
                 "        self.context.step_optimizer(self.optimizer)\n",
                 "        ctx = self.context\n        loss = self.model(batch).mean()\n        ctx.backward(loss)\n"
                 "        ctx.step_optimizer(self.optimizer)\n"),
        ("ctx = self.context", "self.model.backward(loss)", "self.model.step()"),
    ),
    "more parameters": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("context: PyTorchTrialContext)", 'context: PyTorchTrialContext, hparams=None, device="cuda")'),
        ('def __init__(self, context: DeepSpeedTrialContext, hparams=None, device="cuda") -> None:',),
    ),
    "bound method of the context": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("self.context = context", "self.context = context\n        self.hparam = self.context.get_hparam"),
        ("self.hparam = self.context.get_hparam",),
    ),
    "never kept": Idiom(
        "import torch\nfrom determined.pytorch import PyTorchTrial, PyTorchTrialContext\nfrom net import Net\n\n\n"
        "class Stepper:\n    def __init__(self, context):\n        self.context = context\n\n"
        "    def step(self, loss, optimizer):\n        self.context.backward(loss)\n"
        "        self.context.step_optimizer(optimizer)\n\n\n"
        "class MyTrial(PyTorchTrial):\n    def __init__(self, context: PyTorchTrialContext):\n"
        "        self.model = context.wrap_model(Net())\n"
        "        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))\n"
        "        self.stepper = Stepper(context)\n\n"
        "    def train_batch(self, batch, epoch_idx, batch_idx):\n        loss = self.model(batch).mean()\n"
        "        self.stepper.step(loss, self.optimizer)\n        return {'loss': loss}\n\n"
        "    def evaluate_batch(self, batch):\n        return {'loss': self.model(batch).mean()}\n\n"
        "    def build_training_data_loader(self):\n        return make_loader()\n\n"
        "    def build_validation_data_loader(self):\n        return make_loader()\n",
        ("self.context.engines.backward(loss)", "if self.context.is_gradient_accumulation_boundary():",
         "self.context.engines[optimizer].step()", "self.context = context", "self.model = "
         "context.engines.add_model(Net())", "batch = self.context.to_device(next(dataloader_iter))"),
    ),
    "feature test": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("        self.optimizer =", "        if self.context.wrap_model is not None:\n"
                 "            print('on a cluster')\n        self.optimizer ="),
        ("print('on a cluster')",),
        ("if True",),
    ),
    "feature test around the wraps": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n").replace(
            "        self.optimizer = self", "        if self.context.wrap_optimizer is not None:\n"
            "            self.optimizer = self",
        ),
        ("self.context.engines.initialize(ds_config)",),
        ("if True", "wrap_optimizer"),
    ),
    "feature test with comments": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n").replace(
            "        self.optimizer =",
            "        # above\n        if self.context.wrap_model is not None:  # beside\n            # within\n"
            "            print('on a cluster')\n            if context:\n                print(1)\n"
            "        self.optimizer =",
        ),
        ("# above", "# beside", "# within", "print('on a cluster')", "if context:", "print(1)"),
        ("if True",),
    ),
    "feature test with a comment at its end": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n").replace(
            "        self.optimizer =",
            "        if self.context.wrap_model is not None:\n            print('on a cluster')\n            # last\n"
            "        self.optimizer =",
        ),
        ("print('on a cluster')", "# last"),
    ),
    "feature test with another branch": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n").replace(
            "        self.optimizer =",
            "        if self.context.wrap_model is not None:\n            print('on a cluster')\n        else:\n"
            "            print('off')\n        self.optimizer =",
        ),
        ("print('on a cluster')",),
        ("if True", "else:", "print('off')"),
    ),
    "feature test with another branch that has a comment": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n").replace(
            "        self.optimizer =",
            "        if self.context.wrap_model is not None:\n            print('on a cluster')\n        else:\n"
            "            print('off')  # at home\n        self.optimizer =",
        ),
        ("if True:", "else:"),
    ),
    "hasattr": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("        self.optimizer =", "        if hasattr(self.context, 'wrap_model'):\n"
                 "            print('on a cluster')\n        self.optimizer ="),
        ("self.model = self.context.wrap_model_engine(engine)",),
        ("hasattr",),
    ),
    "hasattr not": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("        self.optimizer =", "        if not hasattr(context, 'wrap_model'):\n"
                 "            raise ValueError('old')\n        else:\n            # fine\n            x = 1\n"
                 "        self.optimizer ="),
        ("# fine", "x = 1"),
        ("hasattr", "raise"),
    ),
    "getattr": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("        self.optimizer =", "        step = getattr(self.context, 'step_optimizer', None)\n"
                 "        self.optimizer ="),
        blocked=("DSM390", "tests whether its context has"),
    ),
    "the experimental group": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("        self.optimizer =",
                 "        wrap = (context.experimental.wrap_reducer if hasattr(context.experimental, 'wrap_reducer')\n"
                 "                else context.wrap_reducer)\n"
                 "        reset = getattr(self.context.experimental, 'reset_reducers', None)\n"
                 "        new = hasattr(context.experimental, 'a_name_of_tomorrow') and context.tomorrow()\n"
                 "        if hasattr(context.experimental, 'disable_dataset_reproducibility_checks'):\n"
                 "            context.experimental.disable_dataset_reproducibility_checks()\n"
                 "        else:\n"
                 "            context.disable_dataset_reproducibility_checks()\n"
                 "        self.optimizer ="),
        ("wrap = (context.wrap_reducer)", "reset = self.context.reset_reducers",
         "new = False and context.tomorrow()", "context.disable_dataset_reproducibility_checks()"),
        ("hasattr", "experimental", "else:"),
    ),
    "packages only": Idiom(
        trial("import torch\nfrom determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("def train_batch(self, batch,", "def train_batch(self, batch: dict,"),
        ("from collections.abc import Iterator", "from pathlib import Path", "", "import deepspeed", "import torch"),
    ),
    "early spellings": Idiom(
        trial("from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial, PyTorchTrialContext\n")
        .replace("wrap_model(", "_Model(").replace("wrap_optimizer(", "_Optimizer(")
        .replace("context.backward(", "context._backward(").replace("step_optimizer(", "_step_optimizer(")
        .replace("    def train_batch", "        self.schedule = self.context._LRScheduler(torch.optim.lr_scheduler."
                 "StepLR(self.optimizer, 1), LRScheduler.StepMode.STEP_EVERY_EPOCH)\n\n    def train_batch", 1),
        ("self.model = Net()", "self.schedule = self.context.wrap_lr_scheduler(torch.optim.lr_scheduler.StepLR("
         "self.optimizer, 1), LRScheduler.StepMode.STEP_EVERY_EPOCH)", "self.model.backward(loss)",
         "self.model.step()"),
    ),
    "early spellings, without the underscore": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("wrap_model(", "Model(").replace("wrap_optimizer(", "Optimizer("),
        ("self.model = Net()", "self.model.backward(loss)", "self.model.step()"),
    ),
    "registries": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("loss = self.model(batch).mean()", "loss = self.context.models[0](batch).mean()"),
        ("loss = self.model(batch).mean()",),
    ),
    "registries, by a number known later": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext\n")
        .replace("loss = self.model(batch).mean()", "loss = self.context.models[batch_idx](batch).mean()"),
        ("loss = [self.model][batch_idx](batch).mean()",),
    ),
    "a schedule made by a helper": Idiom(
        trial("from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial, PyTorchTrialContext\n")
        .replace("    def train_batch", "        self.schedule = make_schedule(self.context, self.optimizer)\n\n"
                 "    def train_batch", 1)
        + "\n\ndef make_schedule(context: PyTorchTrialContext, optimizer):\n    schedule = "
        "torch.optim.lr_scheduler.StepLR(optimizer, 1)\n    return context.wrap_lr_scheduler(schedule, "
        "LRScheduler.StepMode.STEP_EVERY_EPOCH)\n",
        ("self.schedule = make_schedule(self.context, self.optimizer)", "engine, self.optimizer, _, _ = "
         "deepspeed.initialize(", "def make_schedule(context: DeepSpeedTrialContext, optimizer):",
         "return context.wrap_lr_scheduler(schedule, LRScheduler.StepMode.STEP_EVERY_EPOCH)"),
    ),
    "checkpoint hooks": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext\n")
        + CHECKPOINT_HOOKS.format("checkpoint['vocabulary'] = self.words"), ("checkpoint['vocabulary'] = self.words",),
    ),
    "checkpoint hooks that look for the models": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext\n")
        + CHECKPOINT_HOOKS.format("del checkpoint['models_state_dict'][0]"), review=("DSM350",),
    ),
    "checkpoint hooks that restore a copy of the model": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext\n")
        + CHECKPOINT_HOOKS.format("checkpoint['ema'] = self.ema.state_dict()")
        + "    def on_checkpoint_load_start(self, checkpoint):\n        self.ema.load_state_dict(checkpoint['ema'])\n",
        review=("DSM350",),
    ),
    "registries, in a callback": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext\n")
        + REGISTRY_CALLBACK,
        ("self.model = context.models[0].module", "self.optimizers = [context.models[0].optimizer]"),
    ),
    "registries, in a helper that __init__ calls": Idiom(
        trial("from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext\n")
        .replace("        self.optimizer =", "        self.watcher = Watcher(self.context)\n        self.optimizer =")
        + REGISTRY_CALLBACK,
        blocked=("DSM390", "has no models"),
    ),
}  # fmt: skip


@idioms(IMPORTS)
def test_imports(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@idioms(BASES)
def test_bases(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@idioms(CONTEXTS)
def test_context_names(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)
