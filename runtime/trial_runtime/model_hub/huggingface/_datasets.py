"""Data sets of Hugging Face ``datasets``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trial_runtime.model_hub.huggingface import _packages
from trial_runtime.model_hub.huggingface._kwargs import DatasetKwargs, parse_dict_to_dataclasses


def default_load_dataset(data_config_input: Mapping[str, Any]) -> Any:
    """Return the data sets "train" and "validation" (and others there are) by name.

    A named data set without validation data gives the first ``validation_split_percentage`` of its training data away.
    Without a name, ``train_file`` and ``validation_file`` are read, their kind by their extension.

    Args:
        data_config_input: the ``data`` of the experiment config, with the fields of ``DatasetKwargs``.

    Raises:
        ValueError: there is no data to validate with, or neither a name nor a file.
        ImportError: datasets is not installed.
    """
    (config,) = parse_dict_to_dataclasses((DatasetKwargs,), data_config_input)
    load = _packages.datasets().load_dataset
    if config.dataset_name is None:
        return _load_files(load, config)
    found = load(config.dataset_name, config.dataset_config_name)
    if "validation" not in found:
        percentage = config.validation_split_percentage
        if percentage is None:
            raise ValueError(
                f"{config.dataset_name} has no validation data: set validation_split_percentage in the data config"
            )
        for part, split in (("validation", f"train[:{percentage}%]"), ("train", f"train[{percentage}%:]")):
            found[part] = load(config.dataset_name, config.dataset_config_name, split=split)
    return found


def _load_files(load: Any, config: DatasetKwargs) -> Any:
    files = {"train": config.train_file, "validation": config.validation_file}
    given = {part: file for part, file in files.items() if file is not None}
    if not given:
        raise ValueError("the data config has neither a dataset_name nor a train_file")
    extension = Path(next(iter(given.values()))).suffix.removeprefix(".")
    return load("text" if extension == "txt" else extension, data_files=given)


def remove_unused_columns(model: torch.nn.Module, dataset: Any) -> None:
    """Let a data set give only the columns that are parameters of the model's ``forward``, and its labels.

    Args:
        model: the model, or a wrapper with the model as its ``module``.
        dataset: a ``datasets.Dataset``; its format is changed in place.
    """
    inner = getattr(model, "module", model)
    wanted = [*inspect.signature(inner.forward).parameters, "label", "label_ids"]
    columns = [name for name in wanted if name in dataset.column_names]
    dataset.set_format(type=dataset.format["type"], columns=columns)
