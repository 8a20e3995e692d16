"""Export of a checkpoint's weights to ``safetensors`` files: ``python -m trial_runtime.export CHECKPOINT [FILE]``."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ds_migrate.command_line import CommandParser, print_error

from trial_runtime._cluster_info import TRUST_VARIABLE, newest_of_run
from trial_runtime._storage import remote
from trial_runtime.errors import CheckpointStorageError, InvalidCheckpointException

_OF_TORCH = (".pt", ".pth", ".bin")


def parser() -> argparse.ArgumentParser:
    """Build the command's argument parser."""
    made = CommandParser(
        prog="python -m trial_runtime.export",
        description="Write the whole fp32 weights of a checkpoint to a safetensors file, for each engine (or model of "
        "a PyTorchTrial) one; whatever ZeRO stage and number of ranks saved it. A FILE that ends with .pt, .pth or "
        ".bin is one of torch.save().",
    )
    made.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run directory: its newest; or its URL"
    )
    made.add_argument("file", type=Path, nargs="?", default=Path("model.safetensors"), metavar="FILE",
                      help="with several engines FILE-0, FILE-1, ... (default: %(default)s)")  # fmt: skip
    made.add_argument("--trust-checkpoint", action="store_true",
                      help="load objects that can run code from it, although no run of yours wrote it")  # fmt: skip
    made.add_argument("--engine", type=int, metavar="N", help="only this one, counted from 0")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code: 0 written, 2 not possible."""
    options = parser().parse_args(arguments)
    if options.trust_checkpoint:
        os.environ[TRUST_VARIABLE] = "1"
    try:
        for line in export(options.checkpoint, options.file, options.engine):
            print(line)
    except (InvalidCheckpointException, CheckpointStorageError, OSError) as error:
        print_error("export", str(error))
        return 2
    return 0


def export(checkpoint: str, file: Path, engine: int | None = None) -> list[str]:
    """Write the weights; a line about each file.

    Args:
        checkpoint: a checkpoint or a run directory, or its URL in a storage.
        file: where to.
        engine: number of the engine or model; None: all.

    Raises:
        InvalidCheckpointException: there is none such, or it is damaged.
    """
    from trial_runtime import core
    from trial_runtime.pytorch._checkpoints.store import CheckpointStore

    with remote.fetched(checkpoint) as given:
        newest = newest_of_run(given)
        if newest is not None and remote.is_url(newest):
            return export(newest, file, engine)
        path = Path(newest or given)
        store = CheckpointStore(path.parent, core.DummyDistributedContext())
        store.verify(store.find(str(path)))
        return list(_write(path, file, engine))


def _write(path: Path, file: Path, engine: int | None) -> Iterator[str]:
    import torch

    from trial_runtime.pytorch.deepspeed._checkpoints.export import write_safetensors

    models = _models(path)
    numbers = range(len(models)) if engine is None else [engine]
    if engine is not None and not 0 <= engine < len(models):
        raise InvalidCheckpointException(f"{path} has no engine {engine}; it has {len(models)}, counted from 0.")
    for number in numbers:
        state = models[number]()
        target = file if len(numbers) == 1 else file.with_name(f"{file.stem}-{number}{file.suffix}")
        if target.suffix in _OF_TORCH:
            target.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, target)
        else:
            write_safetensors(state, target)
        values = sum(value.numel() for value in state.values())
        yield f"{target}: {len(state)} tensors, {values:,} values, from {path.name}"


def _models(path: Path) -> list[Callable[[], dict[str, Any]]]:
    """Return a function for each engine or model that reads its weights."""
    import torch

    from trial_runtime.pytorch._checkpoints import determined_format, restricted_load
    from trial_runtime.pytorch.deepspeed._checkpoints import export

    if names := export.engines(path):
        return [functools.partial(export.consolidated_state_dict, path, number) for number in range(len(names))]
    file = determined_format.state_file(path)
    if file is None:
        raise InvalidCheckpointException(f"{path} holds neither engines (model0, ...) nor a PyTorchTrial's state.")
    found = restricted_load.read_checkpoint(path, lambda: restricted_load.read(file))
    if not isinstance(found, dict) or not isinstance(states := found.get("models_state_dict"), list):
        raise InvalidCheckpointException(f"{file} holds no state of a PyTorchTrial.")
    for state in states:
        torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    return [functools.partial(dict, state) for state in states]


if __name__ == "__main__":
    sys.exit(main())
