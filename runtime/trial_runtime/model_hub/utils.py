"""Helpers of ``model_hub`` trials: hyperparameters as attributes, padded arrays, downloads, lengths."""

from __future__ import annotations

import fcntl
import logging
import shutil
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

_logger = logging.getLogger(__name__)


class AttrDict(dict[str, Any]):
    """Dict whose keys are attributes as well. Dicts in the values it is made of become ``AttrDict``, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for key, value in self.items():
            if isinstance(value, dict):
                self[key] = AttrDict(value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r} among {', '.join(map(str, self))}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r} among {', '.join(map(str, self))}") from None


def expand_like(arrays: Sequence[np.ndarray], fill: float = -100) -> np.ndarray:
    """Return arrays stacked along dimension 0, padded with ``fill`` to the largest dimension 1.

    Args:
        arrays: of shapes [n_i, m_i, ...], equal from dimension 2; arrays of one dimension are concatenated.
        fill: the value of the padding.

    Returns:
        an array of shape [sum(n_i), max(m_i), ...] and of the type of ``fill``, as ``numpy.full`` makes it.
    """
    import numpy as np

    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    rows = sum(array.shape[0] for array in arrays)
    columns = max(array.shape[1] for array in arrays)
    result = np.full((rows, columns, *arrays[0].shape[2:]), fill)
    start = 0
    for array in arrays:
        result[start : start + array.shape[0], : array.shape[1]] = array
        start += array.shape[0]
    return result


def numpify(x: list[Any] | np.ndarray | torch.Tensor) -> np.ndarray:
    """Return a list, array or tensor (from any device) as an array. Raises TypeError for anything else."""
    import numpy as np
    import torch

    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, list):
        return np.array(x)
    if isinstance(x, torch.Tensor):
        found: np.ndarray = x.cpu().numpy()
        return found
    raise TypeError(f"expected a list, an array or a tensor, got {type(x).__name__}")


def download_url(download_directory: str, url: str) -> str:
    """Return the path of a file of the network in a folder, downloaded where it is not there yet.

    Processes of one machine download it once. A download that breaks off leaves no file behind.

    Raises:
        ValueError: the URL names no file.
    """
    name = urllib.parse.urlparse(url).path.rpartition("/")[2]
    if name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"{url!r} does not end with the name of a file")
    folder = Path(download_directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with path.with_name(f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        if not path.exists():
            _logger.info("downloading %s to %s", url, path)
            partial = path.with_name(f"{path.name}.part")
            with urllib.request.urlopen(url) as response, partial.open("wb") as file:
                shutil.copyfileobj(response, file)
            partial.replace(path)
    return str(path)


def compute_num_training_steps(experiment_config: Mapping[str, Any], global_batch_size: int) -> int:
    """Return the number of batches of a run, from the ``searcher.max_length`` of its experiment config.

    Raises:
        ValueError: the config has no ``max_length`` with a unit, or counts epochs and has no ``records_per_epoch``.
    """
    length = (experiment_config.get("searcher") or {}).get("max_length")
    if not isinstance(length, Mapping) or not length:
        raise ValueError(
            f"cannot compute num_training_steps from searcher.max_length = {length!r}: write it as "
            "max_length: {batches: N}, or set the hyperparameter num_training_steps"
        )
    unit, count = next(iter(length.items()))
    if unit == "batches":
        return int(count)
    if unit == "records":
        return int(count / global_batch_size)
    if "records_per_epoch" not in experiment_config:
        raise ValueError(
            f"cannot compute num_training_steps from searcher.max_length = {dict(length)}: set the hyperparameter "
            "num_training_steps, or records_per_epoch in the experiment config"
        )
    return int(count) * int(experiment_config["records_per_epoch"] / global_batch_size)
