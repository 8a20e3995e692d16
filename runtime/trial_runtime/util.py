"""Helpers of ``determined.util`` that trials call."""

from __future__ import annotations

import copy
import datetime
import enum
import inspect
import itertools
import json
import logging
import math
import numbers
import os
import random
import shutil
import stat
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trial_runtime.errors import InvalidExperimentException

logger = logging.getLogger("trial_runtime")

_NO_RETRY = {401, 403, 404}  # HTTP status: not logged in, not allowed, not there


def download_gcs_blob_with_backoff(blob: Any, n_retries: int = 32, max_backoff: int = 32) -> Any:
    """Return the content of an object in Google Cloud Storage; failures are tried again after a growing pause.

    The pauses are random, and Python's generator has the same state before and after, so retries change no results.

    Args:
        blob: a ``google.cloud.storage.Blob``.
        n_retries: how often to try.
        max_backoff: the longest pause, in seconds.

    Raises:
        ModuleNotFoundError: google-cloud-storage is not installed.
        Exception: ``blob`` is something else, or no try succeeded. What cannot succeed later (the object is not there,
            or may not be read) is raised at once.
    """
    try:
        from google.cloud import storage
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "download_gcs_blob_with_backoff() needs google-cloud-storage: pip install google-cloud-storage",
            name=error.name,
        ) from error
    if not isinstance(blob, storage.Blob):
        raise Exception(f"Called download_gcs_blob_with_backoff with object of type {type(blob).__name__}")
    state = random.getstate()
    try:
        return _download(blob, n_retries, max_backoff)
    finally:
        random.setstate(state)


def _download(blob: Any, n_retries: int, max_backoff: int) -> Any:
    failure: Exception | None = None
    for n in range(n_retries):
        try:
            return blob.download_as_bytes()
        except Exception as error:
            if getattr(error, "code", None) in _NO_RETRY:
                raise
            failure = error
            time.sleep(min(2**n + random.random(), max_backoff))
    raise Exception("Max retries exceeded for downloading blob.") from failure


def calculate_batch_sizes(hparams: dict[str, Any], slots_per_trial: int, trialname: str) -> tuple[int, int]:
    """Return the samples of a batch for one slot and for all, from the hyperparameter ``global_batch_size``.

    Args:
        hparams: the hyperparameters.
        slots_per_trial: number of slots; at least 1 is used.
        trialname: what needs the batch size, for the message.

    Raises:
        InvalidExperimentException: the hyperparameter is missing, no int, or smaller than the number of slots.
    """
    from trial_runtime.pytorch._loop.settings import batch_sizes

    if "global_batch_size" not in hparams:
        raise InvalidExperimentException(
            f"Please specify an integer `global_batch_size` hyperparameter: {trialname}-based training needs it."
        )
    size = hparams["global_batch_size"]
    if not isinstance(size, int) or size < max(slots_per_trial, 1):
        raise InvalidExperimentException(
            f"The `global_batch_size` hyperparameter must be an integer of at least the number of slots, "
            f"{max(slots_per_trial, 1)}; it is {size!r}."
        )
    share, total = batch_sizes(hparams, slots_per_trial)
    return share or 0, total or 0


def filter_duplicates(in_list: list[Any], sorter: Callable[[list[Any]], list[Any]] = sorted) -> set[Any]:
    """Return the items that are in the list more than once; ``sorter`` brings equal items together."""
    items = sorter(in_list)
    return {item for previous, item in itertools.pairwise(items) if previous == item}


def force_create_symlink(src: str, dst: str) -> None:
    """Make the folder ``src`` if needed, and the link ``dst`` to it in place of whatever is at ``dst``."""
    Path(src).mkdir(parents=True, exist_ok=True)
    link = Path(dst)
    if not os.path.lexists(dst):
        link.symlink_to(src, target_is_directory=True)
        return
    try:
        if link.is_symlink() or link.is_file():
            link.unlink()
        else:
            shutil.rmtree(link)
        link.symlink_to(src, target_is_directory=True)
        link.chmod(link.stat().st_mode | stat.S_IWOTH)
    except FileExistsError:
        pass  # another rank was first
    except PermissionError as error:
        logger.warning(f"{error} trying to remove {dst}")


def get_member_func(obj: Any, func_name: str) -> Any:
    """Return the attribute when it can be called, else None."""
    member = getattr(obj, func_name, None)
    return member if callable(member) else None


def has_param(fn: Callable[..., Any], name: str, pos: int | None = None) -> bool:
    """Return whether a function has a parameter of this name, or one at this position (from 0)."""
    names = inspect.getfullargspec(fn).args
    return name in names or (pos is not None and pos < len(names))


def humanize_float(n: float) -> float:
    """Return the number rounded to four significant digits; digits before the point stay."""
    if n == 0 or not math.isfinite(n):
        return n
    digits = math.ceil(math.log10(abs(n)))
    return round(n, max(digits, 4) - digits)


def is_numerical_scalar(n: Any) -> bool:
    """Return whether ``n`` is one number: of Python, of numpy, or an array of numpy without dimensions."""
    import numpy as np

    if isinstance(n, np.ndarray):
        return n.ndim == 0 and bool(np.issubdtype(n.dtype, np.number))
    return isinstance(n, int | float | np.number)


def is_overridden(full_method: Any, parent_class: Any) -> bool:
    """Return whether a method is defined by another class than ``parent_class``; False for what is no method."""
    if not callable(full_method):
        return False
    return bool(full_method.__qualname__.partition(".")[0] != parent_class.__name__)


def json_encode(obj: Any, indent: str | None = None, sort_keys: bool = False) -> str:
    """Return ``obj`` as JSON, also with numpy's numbers and arrays, NaN and infinity, bytes, dates, enums and UUIDs.

    Raises:
        TypeError: an object has no form in JSON.
    """
    return json.dumps(_jsonable(obj), indent=indent, sort_keys=sort_keys)


def _jsonable(obj: Any) -> Any:
    import numpy as np

    if isinstance(obj, str | bool | None):
        return obj
    if isinstance(obj, numbers.Integral):
        return int(obj)
    if isinstance(obj, numbers.Number):
        number = float(obj)  # type: ignore[arg-type]
        if math.isfinite(number):
            return number
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if isinstance(obj, dict):
        return {key: _jsonable(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_jsonable(value) for value in obj]
    if isinstance(obj, np.ndarray):
        return _jsonable(obj.tolist())
    if isinstance(obj, bytes):
        return obj.decode("utf8")
    if isinstance(obj, datetime.datetime):
        return obj.isoformat()
    if isinstance(obj, enum.Enum):
        return obj.name
    if isinstance(obj, uuid.UUID):
        return str(obj)
    if hasattr(obj, "__json__"):
        return obj.__json__()
    raise TypeError(f"Unserializable object {obj} of type {type(obj)}")


def merge_dicts(base_dict: dict[Any, Any], source_dict: dict[Any, Any]) -> dict[Any, Any]:
    """Return a new dict: ``base_dict`` with the values of ``source_dict``; dicts in both are merged in turn."""
    merged = copy.deepcopy(base_dict)
    for key, value in source_dict.items():
        both = key in base_dict and isinstance(value, dict)
        merged[key] = merge_dicts(base_dict[key], value) if both else value
    return merged
