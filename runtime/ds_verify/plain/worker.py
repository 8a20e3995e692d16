"""One rank of a script's run: ``python -m ds_verify.plain.worker JOB.json``, see :mod:`ds_verify.plain.runs`.

It leaves the files of :mod:`ds_verify.worker`: a record and figures, or an error.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import re
import resource
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from trial_runtime.train.run import hang_watch

from ds_verify.cuda_stand_in import cuda_on_cpu
from ds_verify.failure import report_hang, user_traceback, write_failure
from ds_verify.plain.data_order import can_share, one_order, share
from ds_verify.plain.file_isolation import detach, guard_links
from ds_verify.plain.observer import Observed, Observer
from ds_verify.plain.reference import RankGroup, average_gradients, schedules_by_mean
from ds_verify.plain.training_loaders import Loaders, trains
from ds_verify.plain.weights import ModuleRegistry
from ds_verify.recorder import RANK, seed_everything
from ds_verify.weights import move_by_one_ulp, precision

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


@dataclass
class _ProcessGroup:
    """The script's default process group. is_used: whether the script makes one."""

    store: Path
    is_used: bool = False

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Connect the ranks through a file, whatever address and backend the script names; leave that to the end."""
        connect = dist.init_process_group

        def init_process_group(*_: Any, **__: Any) -> None:
            self.is_used = True
            if not dist.is_initialized():
                backend = "nccl" if torch.cuda.is_available() else "gloo"
                connect(backend, f"file://{self.store}", timedelta(minutes=5), world_size=WORLD_SIZE, rank=RANK)

        def spawn(function: Any, args: Any = (), *_: Any, **__: Any) -> None:
            function(RANK, *args)  # the ranks are there already

        with (
            mock.patch.object(dist, "init_process_group", init_process_group),
            mock.patch.object(dist, "destroy_process_group", lambda *_, **__: None),
            mock.patch.object(torch.multiprocessing, "spawn", spawn),
        ):
            yield


def main(path: str) -> int:
    """Train the run of a job file; return 0 when it has trained."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    files = Path(job["records"], job["name"])
    folder = Path(path).parent
    group = RankGroup(folder / "ranks", RANK, WORLD_SIZE)
    progress = files.with_name(f"{files.name}.rank{RANK}.progress")
    observer = Observer(
        group,
        ModuleRegistry(),
        job["steps"],
        job["first"],
        job["saves_from"],
        report_progress=lambda step: _write_progress(progress, step),
    )
    if WORLD_SIZE > 1:
        hang_watch.watch(folder, RANK, WORLD_SIZE, job["hang"], functools.partial(report_hang, files, RANK))
    try:
        figures = _run(job, observer, _ProcessGroup(folder / "store"))
        observer.record.save(files.with_name(f"{files.name}.rank{RANK}.npz"))
        files.with_name(f"{files.name}.rank{RANK}.json").write_text(json.dumps(figures))
    except BaseException as error:
        failure = {
            "text": user_traceback(error, job["context"]),
            "step": observer.done,
            "resuming": job["first"] > 0 and observer.done == job["first"],
        }
        write_failure(files, RANK, failure)
        return 1
    group.any(False)  # none of them leaves while another one waits for it
    return 0


def _run(job: dict[str, Any], observer: Observer, ranks: _ProcessGroup) -> dict[str, Any]:
    home = Path(job["context"])
    if job["is_parted"] and RANK:
        home = home.with_name(f"{home.name}-rank{RANK}")
    is_original = job["side"] == "original"

    def on_new(loader: Any, number: int, site: str) -> bool:
        shareable = can_share(loader)
        if job["is_parted"] and not ranks.is_used and shareable and trains(number, site, job["loaders"]):
            share(loader, WORLD_SIZE, RANK)
        return shareable

    loaders = Loaders(str(home), on_new)

    def is_reference() -> bool:
        return is_original and not ranks.is_used

    def after_backward() -> None:
        loaders.trained()
        if is_reference():
            average_gradients(dict.fromkeys(observer.modules.optimized), observer.group)

    observer.after_backward = after_backward
    if not is_original:
        comm: Any = importlib.import_module("deepspeed.comm.torch")
        comm.build_shm_op = lambda: None  # or init_distributed compiles it
    guard_links(home)
    save = torch.save

    def save_in_copy(value: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | os.PathLike):
            detach(Path(f), home)  # torch opens it itself
        save(value, f, *args, **kwargs)

    seed_everything(job["seed"])
    with (
        _place(home, job),
        cuda_on_cpu() if job["replaces_cuda"] else contextlib.nullcontext(),
        ranks.replaced(),
        one_order(),
        mock.patch.object(torch, "save", save_in_copy),
        loaders.watched(),
        observer.modules.watched(),
        observer.watching(has_engines=not is_original),
        schedules_by_mean(observer.group, is_reference),
        _nudged(observer.modules) if job["nudge"] else contextlib.nullcontext(),
    ):
        try:
            runpy.run_path(str(home / job["target"]), run_name="__main__")
        except Observed:
            pass
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"the script ended with exit code {end.code!r}") from end
        observer.finish()
    if observer.done == job["first"]:
        raise RuntimeError("the script ended without a step of an optimizer after a backward, so nothing was trained")
    return _figures(observer, loaders, ranks)


@contextlib.contextmanager
def _place(home: Path, job: dict[str, Any]) -> Iterator[None]:
    """Give the script the working directory, arguments and path that it has when it is started."""
    script = home / job["target"]
    words = list(job["args"])
    if WORLD_SIZE > 1 and takes_local_rank(script):
        words = [f"--local_rank={RANK}", *words]
    os.chdir(home)
    importlib.invalidate_caches()
    with (
        mock.patch.object(sys, "argv", [job["target"], *words]),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path[1:]]),
    ):
        yield


def takes_local_rank(script: Path) -> bool:
    """Return whether a script defines the argument by which older launchers pass the rank."""
    return re.search(rb"""add_argument\(\s*["']--local_rank["']""", script.read_bytes()) is not None


@contextlib.contextmanager
def _nudged(modules: ModuleRegistry) -> Iterator[None]:
    """Move every weight by one ulp before the first forward that may be followed by a backward."""

    def before(module: torch.nn.Module, inputs: Any) -> None:
        del inputs
        if torch.is_grad_enabled() and next(module.parameters(), None) is not None:
            handle.remove()
            move_by_one_ulp(modules.tensors())

    handle = torch.nn.modules.module.register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


def _write_progress(progress: Path, step: int) -> None:
    if RANK == 0:
        progress.write_text(str(step))


def _figures(observer: Observer, loaders: Loaders, ranks: _ProcessGroup) -> dict[str, Any]:
    times = sorted(observer.times)
    gpu = torch.cuda.is_available()
    return {
        "steps": observer.done,
        "saved": observer.saved,
        "seconds_a_batch": times[len(times) // 2] if times else None,
        "samples": None,
        "peak_bytes": torch.cuda.max_memory_allocated()
        if gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "precision": precision(observer.modules.tensors()),
        "zero_stages": [engine.zero_optimization_stage() for engine in observer.engines],
        "trial_classes": [],
        "training_samples": 0,
        "validation_samples": [],
        "optimized": observer.modules.optimized_names(),
        "loaders": loaders.training(),
        "unshared_loaders": loaders.unshared,
        "is_distributed": ranks.is_used,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
