"""``init()`` and ``Trainer`` for a DeepSpeedTrial."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trial_runtime import core
from trial_runtime.core._rank_groups import is_init_manual
from trial_runtime.pytorch._loop import process_setup
from trial_runtime.pytorch._loop.settings import RunSettings
from trial_runtime.pytorch._trainer import BaseTrainer, closing
from trial_runtime.pytorch.deepspeed._context import DeepSpeedTrialContext
from trial_runtime.pytorch.deepspeed._controller import DeepSpeedTrialController
from trial_runtime.pytorch.deepspeed._engine import engine_setup, initialize
from trial_runtime.pytorch.deepspeed._trial import DeepSpeedTrial


class Trainer(BaseTrainer):
    """Trainer of a DeepSpeedTrial.

    Args:
        trial: an instance of the trial.
        context: the context that ``init()`` gave.
    """

    _controller_class = DeepSpeedTrialController
    _trial_class = DeepSpeedTrial

    def __init__(self, trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
        super().__init__(trial, context)
        context.distributed._use_torch_distributed()


@contextlib.contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: core.DistributedContext | None = None,
    enable_tensorboard_logging: bool = True,
    run_dir: Path | str | None = None,
) -> Iterator[DeepSpeedTrialContext]:
    """Yield a context to make a DeepSpeedTrial with; train inside the ``with`` block.

    Works from plain ``python``, ``torchrun`` and ``deepspeed``, on CPU (gloo) and GPU (nccl). Every rank gets the same
    seed.

    Args:
        hparams: hyperparameters; under ``ds-train`` by default those of the experiment config.
        exp_conf: experiment config.
        distributed: the ranks, when the script knows better.
        enable_tensorboard_logging: write reported metrics to TensorBoard when there is a run directory.
        run_dir: where metrics, TensorBoard files and checkpoints go. By default checkpoints go to ``checkpoints`` (or
            the directory that the experiment config names), and nothing else is written.

    With ``DET_MANUAL_INIT_DISTRIBUTED`` in the environment the trial starts torch.distributed itself, in its
    ``__init__``.
    """
    settings = RunSettings.collect(hparams, exp_conf, run_dir)
    manual = is_init_manual()
    with (
        process_setup.run_session(distributed, settings, manual) as ranks,
        engine_setup.started(ranks, manual),
    ):
        initialize.check_named(settings.hparams, ranks.size)
        run = core.Context(ranks, settings)
        context = DeepSpeedTrialContext._make(
            run, settings.hparams, settings.exp_conf, enable_tensorboard_logging=enable_tensorboard_logging
        )
        with closing(context):
            yield context


DeepSpeedTrial.trial_controller_class = DeepSpeedTrialController  # here, because the controller knows the trial
