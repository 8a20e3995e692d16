"""Arguments of configs, tokenizers, models, optimizers, schedules and data sets, read from hyperparameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trial_runtime.model_hub.utils import AttrDict

_UNSET = object()


def _unset() -> Any:
    """Return the default of a field that is an attribute only where a value is given."""
    return _UNSET


class _Kwargs:
    """Base of the dataclasses, which lets a field be absent."""

    def __post_init__(self) -> None:
        for name in [name for name, value in vars(self).items() if value is _UNSET]:
            delattr(self, name)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that have a value."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields if hasattr(self, field.name)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self.as_dict().items())})"


@dataclasses.dataclass(repr=False)
class DatasetKwargs(_Kwargs):
    """Arguments of ``default_load_dataset``, from the ``data`` of the experiment config.

    ``dataset_name`` is a data set of the hub or a local folder, else ``train_file`` and ``validation_file`` are read.
    ``validation_split_percentage``: the part of the training data that validates, where there is no other.
    """

    dataset_name: str | None = None
    dataset_config_name: str | None = None
    validation_split_percentage: float | None = None
    train_file: str | None = None
    validation_file: str | None = None


@dataclasses.dataclass(repr=False)
class ConfigKwargs(_Kwargs):
    """Arguments of ``AutoConfig.from_pretrained``. ``num_labels`` and ``finetuning_task`` are absent if not given."""

    num_labels: int = dataclasses.field(default_factory=_unset)
    finetuning_task: str = dataclasses.field(default_factory=_unset)
    pretrained_model_name_or_path: str | None = None
    cache_dir: str | None = None
    revision: str | None = "main"
    use_auth_token: bool | str | None = False


@dataclasses.dataclass(repr=False)
class TokenizerKwargs(_Kwargs):
    """Arguments of ``AutoTokenizer.from_pretrained``. ``do_lower_case`` is absent if not given."""

    do_lower_case: bool = dataclasses.field(default_factory=_unset)
    pretrained_model_name_or_path: str | None = None
    cache_dir: str | None = None
    revision: str | None = "main"
    use_auth_token: bool | str | None = False
    use_fast: bool | None = True


@dataclasses.dataclass(repr=False)
class ModelKwargs(_Kwargs):
    """Arguments of a model class's ``from_pretrained``."""

    pretrained_model_name_or_path: str | None = None
    cache_dir: str | None = None
    revision: str | None = "main"
    use_auth_token: bool | str | None = False


@dataclasses.dataclass(repr=False)
class OptimizerKwargs(_Kwargs):
    """Arguments of ``build_default_optimizer``: AdamW, or Adafactor with ``scale_parameter`` and ``relative_step``.

    ``max_grad_norm``: the L2 norm to which gradients are clipped, 0 for no limit.
    """

    weight_decay: float = 0
    adafactor: bool = False
    learning_rate: float = 5e-5
    max_grad_norm: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    scale_parameter: bool = False
    relative_step: bool = False


@dataclasses.dataclass(repr=False)
class LRSchedulerKwargs(_Kwargs):
    """Arguments of ``transformers.get_scheduler``; steps are batches."""

    num_training_steps: int
    lr_scheduler_type: str = "linear"
    num_warmup_steps: int = 0


def parse_dict_to_dataclasses(
    dataclass_types: tuple[Any, ...], args: Mapping[str, Any], as_dict: bool = False
) -> tuple[Any, ...]:
    """Return one object of each dataclass, filled in with the arguments that it has a field for.

    Args:
        dataclass_types: dataclasses, these or a trial's own.
        args: arguments by name; one may go to several classes, others to none.
        as_dict: return ``AttrDict`` instead of the dataclasses.

    Raises:
        TypeError: an argument that a dataclass requires is missing.
    """
    found: list[Any] = []
    for kind in dataclass_types:
        names = {field.name for field in dataclasses.fields(kind) if field.init}
        made = kind(**{name: value for name, value in args.items() if name in names})
        if as_dict:
            made = AttrDict(made.as_dict() if hasattr(made, "as_dict") else dataclasses.asdict(made))
        found.append(made)
    return tuple(found)


def default_parse_config_tokenizer_model_kwargs(hparams: Mapping[str, Any]) -> tuple[AttrDict, AttrDict, AttrDict]:
    """Return the arguments of the config, the tokenizer and the model.

    All take ``pretrained_model_name_or_path``; ``config_name``, ``tokenizer_name``, ``model_name`` replace it for one.

    Raises:
        AssertionError: one of them has no name or path.
    """
    found = parse_dict_to_dataclasses((ConfigKwargs, TokenizerKwargs, ModelKwargs), hparams, as_dict=True)
    for kwargs, part in zip(found, ("config", "tokenizer", "model"), strict=True):
        if f"{part}_name" in hparams:
            kwargs.pretrained_model_name_or_path = hparams[f"{part}_name"]
        assert kwargs.pretrained_model_name_or_path is not None, (
            f"the {part} has no name or path: set the hyperparameter pretrained_model_name_or_path or {part}_name"
        )
    config, tokenizer, model = found
    return config, tokenizer, model


def default_parse_optimizer_lr_scheduler_kwargs(
    hparams: Mapping[str, Any],
) -> tuple[OptimizerKwargs, LRSchedulerKwargs]:
    """Return the arguments of the optimizer and of its learning rate schedule."""
    optimizer, scheduler = parse_dict_to_dataclasses((OptimizerKwargs, LRSchedulerKwargs), hparams)
    return optimizer, scheduler
