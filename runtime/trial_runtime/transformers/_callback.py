"""Reports, checkpoints and stops of a ``transformers.Trainer``."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trial_runtime._cluster_info import Length, get_cluster_info

if TYPE_CHECKING:
    from trial_runtime.core import Context

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:  # the names can be imported without it, as the rest of the package
    TrainerCallback = object

logger = logging.getLogger("trial_runtime.transformers")

EVAL, TEST, TRAIN = "eval_", "test_", "train_"
_SPEEDS = ("_runtime", "_per_second", "_compilation_time")


class DetCallback(TrainerCallback):  # type: ignore[misc]
    """Callback for the ``callbacks`` of a ``transformers.Trainer``.

    Metrics go to the run's ``metrics.jsonl`` and TensorBoard, each save of the Trainer becomes a checkpoint of the run,
    and a request to stop (SIGTERM or SIGINT) ends the training with a save. Under ``ds-train`` a run resumes from its
    newest checkpoint: pass ``args.resume_from_checkpoint`` to ``Trainer.train``.

    Args:
        core_context: what ``core.init()`` returned.
        args: the ``TrainingArguments`` of the Trainer. ``resume_from_checkpoint`` is set to the newest checkpoint.
        filter_metrics: report only metrics whose names contain one of these; ``searcher.metric`` always is reported.
        user_data: kept in ``my_data.json`` of each checkpoint; must be JSON.

    Raises:
        ImportError: transformers is not installed.
        ValueError: ``searcher.max_length`` differs from ``max_steps`` or ``num_train_epochs`` of ``args``.
    """

    def __init__(
        self,
        core_context: Context,
        args: Any,
        filter_metrics: list[str] | None = None,
        user_data: dict[str, Any] | None = None,
    ) -> None:
        if TrainerCallback is object:
            raise ImportError("DetCallback needs transformers, which is not installed: pip install transformers")
        super().__init__()
        self.core_context = core_context
        self.filter_metrics = filter_metrics
        self.user_data = user_data
        self.last_train_metrics = self.last_eval_metrics = self.last_save = -1
        self.last_progress = 0
        self.info = get_cluster_info()
        self.searcher_metric: str | None = None
        self.time_metric: str | None = None
        self._target: Length | None = None
        self._force_final_save = self._force_final_evaluate = True  # a script may switch them off
        if self.info is None:
            return
        self._load_last_checkpoint(args)
        searcher: dict[str, Any] = self.info.trial._config.get("searcher") or {}
        _check_length(searcher, args)
        self.searcher_metric, self.time_metric = searcher.get("metric"), searcher.get("time_metric")
        self._target = self.info.run.fit.max_length
        if self.filter_metrics:
            self.filter_metrics += filter(None, (self.searcher_metric, self.time_metric))

    def _load_last_checkpoint(self, args: Any) -> None:
        assert self.info is not None
        if self.info.latest_checkpoint is None:
            return
        if getattr(args, "overwrite_output_dir", False):  # transformers 5 has no such argument
            logger.info("overwrite_output_dir is set: the newest checkpoint is not loaded")
            return
        from transformers.trainer_utils import get_last_checkpoint

        self.core_context.checkpoint.download(self.info.latest_checkpoint, args.output_dir)
        args.resume_from_checkpoint = get_last_checkpoint(args.output_dir)
        logger.info(f"resuming from {args.resume_from_checkpoint}")

    # -- events of the Trainer -----------------------------------------------------------------------------------------

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Report metrics, each kind once a step, and ask whether to stop. All ranks must call it."""
        del args
        if logs is None:
            return
        metrics, kind = self._reported(logs), get_metric_type(logs)
        metrics.setdefault("batches", state.global_step)
        metrics.setdefault("epochs", state.epoch or 0.0)
        if kind == TRAIN:
            is_new, self.last_train_metrics = self.last_train_metrics != state.global_step, state.global_step
        elif kind == EVAL:
            is_new, self.last_eval_metrics = self.last_eval_metrics != state.global_step, state.global_step
        else:
            is_new = False
            logger.warning("metrics of a test set are not reported")
        if is_new and state.is_world_process_zero:
            if kind == EVAL:
                self._check_evaluation(metrics)
            group = "training" if kind == TRAIN else "validation"
            self.core_context.train.report_metrics(group=group, steps_completed=state.global_step, metrics=metrics)
        if self.core_context.preempt.should_preempt():
            control.should_training_stop = True  # on_epoch_end saves, once

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save what the Trainer has saved as a checkpoint of the run. All ranks must call it."""
        del control
        self.last_save = state.global_step
        name = f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and self.user_data is not None:
            (Path(args.output_dir) / name / "my_data.json").write_text(json.dumps(self.user_data), encoding="utf-8")
        metadata: dict[str, Any] = {"steps_completed": state.global_step}
        if self.info is not None:
            metadata["trial_id"] = self.info.trial.trial_id
        self.core_context.distributed.barrier()  # ranks of a node share the folder, and some are still writing
        self.core_context.checkpoint.upload(
            args.output_dir,
            metadata=metadata,
            shard=True,
            selector=lambda path: path.startswith((f"{name}/", "runs/")),
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report progress at each new percent, and stop at the length of the run."""
        if self._is_over("batches", state.global_step):
            control.should_training_stop = True
        if state.is_world_process_zero and args.max_steps > -1:
            progress = state.global_step / args.max_steps
            if int(progress * 100) > self.last_progress:
                self.last_progress = int(progress * 100)
                self.core_context.train.report_progress(min(progress, 1.0))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate and save where training ends. All ranks must call it."""
        if self._is_over("epochs", state.epoch):
            control.should_training_stop = True
        if args.max_steps > -1:
            is_end = state.global_step >= args.max_steps
        else:
            is_end = state.epoch >= args.num_train_epochs
        if is_end or control.should_training_stop:
            is_preempted = self.core_context.preempt.should_preempt()
            if state.global_step > self.last_eval_metrics and self._force_final_evaluate and not is_preempted:
                control.should_evaluate = True
            if state.global_step > self.last_save and (self._force_final_save or is_preempted):
                control.should_save = True
        if state.is_world_process_zero and args.max_steps == -1:
            self.core_context.train.report_progress(min(state.epoch / args.num_train_epochs, 1.0))

    # ------------------------------------------------------------------------------------------------------------------

    def _is_over(self, unit: str, done: float) -> bool:
        return self._target is not None and self._target.unit == unit and done >= self._target.value

    def _reported(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics without speeds, the rounded epoch, and what the filter leaves out."""
        wanted = self.filter_metrics
        return {
            name: value
            for name, value in logs.items()
            if name != "epoch" and not name.endswith(_SPEEDS) and (not wanted or any(part in name for part in wanted))
        }

    def _check_evaluation(self, metrics: dict[str, Any]) -> None:
        fields = {"searcher.metric": self.searcher_metric, "searcher.time_metric": self.time_metric}
        for field, name in fields.items():
            if name is not None and name not in metrics:
                raise ValueError(
                    f"{field} is {name!r} in the experiment config, and the evaluation has no such metric; it has "
                    f"{', '.join(metrics)}"
                )


def _check_length(searcher: dict[str, Any], args: Any) -> None:
    """Check that the experiment config gives the length that the Trainer trains."""
    if args.max_steps > -1:
        ours, option = ("batches", args.max_steps), "--max_steps"
    else:
        ours, option = ("epochs", args.num_train_epochs), "--num_train_epochs"
    length = searcher.get("max_length")
    field = "max_length"
    if isinstance(length, int):
        raise ValueError(
            f"searcher.max_length: {length} has no unit: remove it, or write max_length: {{{ours[0]}: {length}}}"
        )
    if isinstance(length, dict):
        theirs = next(iter(length.items()))
    elif searcher.get("time_metric") in ("batches", "epochs") and "max_time" in searcher:
        theirs, field = (searcher["time_metric"], searcher["max_time"]), "max_time"
    else:
        return
    if theirs != ours:
        raise ValueError(
            f"searcher.{field} is {theirs[1]} {theirs[0]}, and the Trainer trains {ours[1]} {ours[0]} ({option}): make "
            "them equal, or remove the field of the experiment config"
        )


def get_metric_type(d: dict[str, Any]) -> str:
    """Return ``"eval_"``, ``"test_"`` or ``"train_"``, by the beginning of the metrics' names."""
    return next((kind for kind in (EVAL, TEST) if any(name.startswith(kind) for name in d)), TRAIN)


def get_ds_config_path_from_args(args: Sequence[str]) -> str | None:
    """Return the word after ``--deepspeed``; None without one."""
    for index, word in enumerate(args):
        if word == "--deepspeed" and index + 1 < len(args):
            return args[index + 1]
    return None
