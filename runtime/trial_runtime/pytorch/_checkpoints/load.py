"""Trials from checkpoints, outside of training: one plain process, whatever ranks and ZeRO stage saved them."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trial_runtime import core
from trial_runtime._cluster_info import TRUST_VARIABLE
from trial_runtime._import_from_path import import_from_path
from trial_runtime._storage import remote
from trial_runtime.errors import InvalidCheckpointException, UntrustedCheckpointError
from trial_runtime.pytorch._checkpoints import manifest, restricted_load, signature
from trial_runtime.pytorch._loop.pytorch_strategy import STATE_FILE, load_models
from trial_runtime.pytorch._pytorch_context import PyTorchTrialContext


class CheckpointLoadContext(PyTorchTrialContext):
    """A context to make a PyTorchTrial with outside of training: wrapping leaves models as and where they are.

    Args:
        hparams: hyperparameters, if the trial asks for them.
        exp_conf: experiment config, if the trial asks for it.
    """

    def __init__(self, hparams: dict[str, Any] | None = None, exp_conf: dict[str, Any] | None = None) -> None:
        super().__init__(
            core_context=core._dummy_init(),
            trial_seed=0,
            hparams=hparams,
            slots_per_trial=1,
            num_gpus=0,
            exp_conf=exp_conf,
            aggregation_frequency=1,
            steps_completed=0,
            managed_training=False,
            debug_enabled=False,
        )


def load_trial_from_checkpoint_path(
    path: str | Path,
    trial_class: type | None = None,
    trial_kwargs: dict[str, Any] | None = None,
    torch_load_kwargs: dict[str, Any] | None = None,
    trust_checkpoint: bool = False,
    **kwargs: Any,
) -> Any:
    """Load a trial with the weights of a checkpoint, on one process.

    A PyTorchTrial's models are loaded as they were saved. A DeepSpeedTrial is made with engines of ZeRO stage 0, a
    pipeline with all its layers in one stage, and its models get the consolidated fp32 weights, whatever stage and
    number of ranks saved them.

    Args:
        path: the checkpoint's folder, or its URL in a storage.
        trial_class: the trial; by default it is imported from the code in the checkpoint.
        trial_kwargs: further arguments of the trial.
        torch_load_kwargs: arguments for ``torch.load`` of a PyTorchTrial's state.
        trust_checkpoint: import the checkpoint's code and load its objects, although no run of this user wrote it.
        kwargs: deprecated spelling of ``torch_load_kwargs``.

    Raises:
        InvalidCheckpointException: when the folder is no checkpoint, or a damaged one.
        UntrustedCheckpointError: when it would run code of somebody else: its own, or that of objects in its files.
        ValueError: when the trial cannot be imported.
    """
    if kwargs:
        if torch_load_kwargs:
            raise ValueError("Give torch_load_kwargs, or its entries as arguments, not both.")
        warnings.warn("Give the arguments of torch.load as torch_load_kwargs={...}.", FutureWarning, stacklevel=2)
        torch_load_kwargs = kwargs
    with remote.fetched(path) as folder, _trusting() if trust_checkpoint else contextlib.nullcontext():
        return _load(folder, trial_class, trial_kwargs or {}, torch_load_kwargs or {})


@contextlib.contextmanager
def _trusting() -> Iterator[None]:
    former = os.environ.get(TRUST_VARIABLE, "0")
    os.environ[TRUST_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ[TRUST_VARIABLE] = former


def _check_files(folder: Path) -> None:
    """Hold the files against the manifest, if there is one; but for the code, which a user may have changed."""
    try:
        files = manifest.read(folder)["files"]
    except FileNotFoundError:
        return  # Determined's have none
    except (OSError, ValueError) as error:
        raise InvalidCheckpointException(f"Checkpoint {folder} is damaged: {manifest.MANIFEST}: {error}.") from error
    saved = ((name, facts) for name, facts in files.items() if not name.startswith("code/"))
    if damage := manifest.differences(folder, saved):
        raise InvalidCheckpointException(f"Checkpoint {folder} is damaged: {'; '.join(damage)}.")


def _load(folder: Path, trial_class: type | None, trial_kwargs: dict[str, Any], load_kwargs: dict[str, Any]) -> Any:
    facts = _facts(folder)
    _check_files(folder)
    kind = trial_class or _imported(folder, facts.get("trial_cls_spec"))
    hparams, exp_conf = facts["hparams"], facts["experiment_config"]
    if not (folder / STATE_FILE).exists() and facts["trial_type"] != "PyTorchTrial":
        from trial_runtime.pytorch.deepspeed._checkpoints.single_process_load import load

        hparams = _with_own_config(folder / "code", hparams)
        return load(folder, kind, hparams, exp_conf, trial_kwargs)
    from trial_runtime.pytorch._old_api import for_todays_loop

    context = CheckpointLoadContext(hparams, exp_conf)
    trial = for_todays_loop(kind)(context, **trial_kwargs)
    checkpoint = restricted_load.read_checkpoint(
        folder, lambda: restricted_load.read(folder / STATE_FILE, **load_kwargs)
    )
    load_models(context.models, checkpoint["models_state_dict"])
    return trial


def _facts(folder: Path) -> dict[str, Any]:
    """Return the checkpoint's description of its trial. Before 0.17.8 Determined wrote it at the download, by other
    names."""
    file, old = folder / "load_data.json", folder / "metadata.json"
    facts: dict[str, Any] = {}
    if file.is_file():
        facts = _read_json(file)
    elif old.is_file() and "hparams" in (facts := _read_json(old)):
        config = facts.get("experiment_config")
        facts |= {
            "trial_type": "PyTorchTrial",
            "trial_cls_spec": config.get("entrypoint") if isinstance(config, dict) else None,
        }
    if "hparams" in facts:
        wanted: dict[str, Any] = {"hparams": dict, "experiment_config": dict, "trial_type": str, "trial_cls_spec": str}
        for name, kind in wanted.items():
            if not isinstance(facts.setdefault(name, None), kind | None):
                raise InvalidCheckpointException(f"Checkpoint {folder} is damaged: {name} of load_data.json.")
        return facts
    raise InvalidCheckpointException(f"{folder} is no checkpoint: it has no load_data.json.")


def _read_json(file: Path) -> dict[str, Any]:
    """Return the fields of a JSON file.

    Raises:
        InvalidCheckpointException: it holds something else.
    """
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCheckpointException(f"Checkpoint {file.parent} is damaged: {file.name}: {error}.") from error
    if not isinstance(fields, dict):
        raise InvalidCheckpointException(f"Checkpoint {file.parent} is damaged: {file.name} holds no fields.")
    return fields


def _imported(folder: Path, spec: str | None) -> Any:
    if spec is None:  # a DeepSpeedTrial's, from Determined
        raise ValueError(
            f"The checkpoint {folder} does not record which class it is of. Give the class as trial_class."
        )
    if not (signature.is_trust_given() or restricted_load.is_own(folder, "code/")):
        raise UntrustedCheckpointError(
            f"The trial {spec} was not imported: {folder / 'code'} is code that no run of this user saved, or that was "
            "changed since. Give the class as trial_class, or trust_checkpoint=True if you trust whoever wrote it."
        )
    module, _, name = spec.partition(":")
    try:
        with import_from_path(folder / "code"):
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            if not isinstance(found, type):
                raise TypeError(f"{name} is no class")
            return found
    except Exception as error:
        raise ValueError(
            f"The trial {spec} cannot be imported from {folder / 'code'} ({error!r}). Give the class as trial_class."
        ) from error


def _with_own_config(code: Path, hparams: dict[str, Any] | None) -> dict[str, Any] | None:
    """Point ``deepspeed_config`` to the copy in the checkpoint's code: training ran in another directory."""
    config = (hparams or {}).get("deepspeed_config")
    if isinstance(config, str) and (code / config).is_file():
        return {**(hparams or {}), "deepspeed_config": str(code / config)}
    return hparams
