"""Loading of files that anybody may have written: data is taken from them, and no code of theirs runs.

A file of ``torch.save`` is a pickle, which may call any function. Files of a checkpoint are therefore loaded with
``weights_only=True`` and a list of classes that hold data. What a trial's own objects need beyond the list is loaded
from checkpoints that this user's runs wrote and signed, or that the user trusts.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import io
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from trial_runtime._cluster_info import TRUST_VARIABLE
from trial_runtime.errors import InvalidCheckpointException, UntrustedCheckpointError
from trial_runtime.pytorch._checkpoints import manifest, signature

_T = TypeVar("_T")
_FORCE, _FORCE_NOT = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_NAMED = re.compile(r"GLOBAL (\S+)")
_IS_NUMPY_2 = int(np.__version__.split(".")[0]) >= 2
_MULTIARRAY: Any = importlib.import_module("numpy._core.multiarray" if _IS_NUMPY_2 else "numpy.core.multiarray")
_ARRAYS = {
    (module, name): getattr(_MULTIARRAY, name)
    for module in ("numpy._core.multiarray", "numpy.core.multiarray")  # of numpy 2 and 1
    for name in ("_reconstruct", "scalar")
}
_trusts = False


@contextlib.contextmanager
def guarded(folder: Path, is_trusted: bool) -> Iterator[None]:
    """Hold all of this process's ``torch.load`` inside, DeepSpeed's too, to plain data; or let them load all.

    Args:
        folder: the checkpoint, for messages.
        is_trusted: whether its objects may run code.

    Raises:
        UntrustedCheckpointError: a file holds something else than plain data.
    """
    global _trusts
    former, saved = _trusts, {name: os.environ.get(name) for name in (_FORCE, _FORCE_NOT)}
    _trusts = is_trusted
    if not is_trusted:
        os.environ[_FORCE] = "1"  # stronger than the argument that DeepSpeed passes
        os.environ.pop(_FORCE_NOT, None)
    try:
        with _data_allowed():
            yield
    except pickle.UnpicklingError as error:
        raise UntrustedCheckpointError(refusal(folder, [_reason(error)])) from error
    finally:
        _trusts = former
        for name, value in saved.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def read_checkpoint(folder: Path, read_files: Callable[[], _T]) -> _T:
    """Return what ``read_files`` reads from a checkpoint: plain data, and objects where this user wrote or trusts it.

    Raises:
        InvalidCheckpointException: it is damaged.
        UntrustedCheckpointError: it needs objects, and the checkpoint is not trusted.
    """
    try:
        with guarded(folder, signature.is_trust_given()):
            return read_files()
    except UntrustedCheckpointError:
        if not is_own(folder):
            raise
    except (InvalidCheckpointException, OSError):
        raise
    except Exception as error:  # what DeepSpeed raises for a damaged file depends on where it is damaged
        raise InvalidCheckpointException(f"Checkpoint {folder} cannot be read: {_first_line(error)}") from error
    with guarded(folder, is_trusted=True):
        return read_files()


def read(file: Path, **options: Any) -> Any:
    """Return the content of a file of ``torch.save``, on the CPU.

    Args:
        file: the file.
        options: further arguments of ``torch.load``.

    Raises:
        InvalidCheckpointException: it cannot be read.
        UntrustedCheckpointError: it holds something else than plain data (allowed in :func:`guarded` with trust).
    """
    try:
        with _data_allowed():
            return torch.load(file, **{"map_location": "cpu", "weights_only": not _trusts, **options})
    except pickle.UnpicklingError as error:
        raise UntrustedCheckpointError(refusal(file.parent, [f"{file.name}: {_reason(error)}"])) from error
    except OSError:
        raise
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        raise InvalidCheckpointException(f"{file} cannot be read: {_first_line(error)}") from error


def refused(folder: Path, names: Iterable[str]) -> list[str]:
    """Return a line for each of these files of a checkpoint that holds something else than plain data.

    The tensors stay on the disk.
    """
    found = []
    for name in names:
        try:
            with _data_allowed():
                _scan(folder / name)
        except pickle.UnpicklingError as error:
            found.append(f"{name}: {_reason(error)}")
        except Exception as error:
            found.append(f"{name}: {_first_line(error)}")
    return found


def is_own(folder: Path, prefix: str = "") -> bool:
    """Return whether this user wrote a checkpoint, and its files (those below ``prefix``) are as they were written."""
    try:
        described, is_signed = manifest.read_signed(folder)
    except (OSError, ValueError):
        return False
    files = [(name, about) for name, about in described["files"].items() if name.startswith(prefix)]
    if not is_signed or manifest.unlisted(folder, described):
        return False
    more = (name for name in manifest.files(folder) if prefix and name.startswith(prefix))
    return all(name in described["files"] for name in more) and not manifest.differences(folder, files)


def is_loadable(name: str) -> bool:
    """Return whether a file of a checkpoint is one that ``torch.load`` reads."""
    return name.endswith((".pt", ".pth", ".bin", ".ckpt")) and not name.startswith("code/")


def refusal(folder: Path, problems: Iterable[str]) -> str:
    """Return the message that refuses a checkpoint of unknown origin."""
    return (
        f"Checkpoint {folder} was not loaded: {'; '.join(problems)}. Such objects can run code while they are loaded, "
        "and the checkpoint is not signed as written by a run of this user. If you trust whoever wrote it, repeat with "
        f"--trust-checkpoint (in a script: {TRUST_VARIABLE}=1 in the environment)."
    )


def load_arrays(content: bytes) -> Any:
    """Return what a pickle of numbers, strings, containers and numpy arrays holds.

    Raises:
        pickle.UnpicklingError: it names anything else.
    """
    return _ArrayUnpickler(io.BytesIO(content)).load()


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = {**_ARRAYS, ("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
        if name == "_frombuffer" and module in ("numpy._core.numeric", "numpy.core.numeric"):
            return super().find_class(module, name)
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"a state of random generators names {module}.{name}")
        return allowed[module, name]


def _scan(file: Path) -> None:
    try:
        torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap can only be used" not in str(error):
            raise
        torch.load(file, map_location="cpu", weights_only=True)  # the format before torch 1.6


def _reason(error: pickle.UnpicklingError) -> str:
    named = _NAMED.search(str(error))
    return f"it holds {named[1]}" if named else "it holds objects that are no plain data"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


@contextlib.contextmanager
def _data_allowed() -> Iterator[None]:
    """Let ``torch.load`` rebuild data. Torch's own context manager, nested in itself, ends with the inner one."""
    former = torch.serialization.get_safe_globals()
    try:
        with torch.serialization.safe_globals(_allowed()):
            yield
    finally:
        torch.serialization.add_safe_globals(former)


def _allowed() -> list[Any]:
    """Return classes and functions that hold or rebuild data, and do nothing else."""
    arrays = [(value, f"{module}.{name}") for (module, name), value in _ARRAYS.items()]
    dtypes = {type(np.dtype(code)) for code in np.typecodes["All"]}
    # Python before 3.11.4 pickles a member of an enumeration as getattr(class, name).
    return [*arrays, (_enum_member, "builtins.getattr"), np.ndarray, np.dtype, *dtypes, *_of_deepspeed()]


def _enum_member(kind: Any, name: Any) -> enum.Enum:
    """Return a member of an enumeration; nothing else that ``getattr`` could reach."""
    if not (isinstance(kind, enum.EnumMeta) and name in kind.__members__):
        raise pickle.UnpicklingError("GLOBAL getattr of something else than an enumeration")
    member: enum.Enum = kind.__members__[name]
    return member


def _of_deepspeed() -> list[Any]:
    """Return the classes whose objects DeepSpeed writes into its files."""
    try:
        from deepspeed.runtime.fp16 import loss_scaler
        from deepspeed.runtime.zero.config import ZeroStageEnum
        from deepspeed.utils.tensor_fragment import fragment_address
    except ImportError:  # a PyTorchTrial needs no DeepSpeed
        return []
    return [loss_scaler.LossScaler, loss_scaler.DynamicLossScaler, ZeroStageEnum, fragment_address]
