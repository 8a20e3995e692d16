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
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from trial_runtime.train.run import hang_watch

from ds_verify.cuda_stand_in import cuda_on_cpu
from ds_verify.failure import report_hang, user_traceback, write_failure
from ds_verify.plain.data_order import can_share, one_order, share
from ds_verify.plain.file_isolation import detach, guard_links, module_outside
from ds_verify.plain.loaded_files import LoadedFiles
from ds_verify.plain.observer import Observer
from ds_verify.plain.printed_lines import printed_lines
from ds_verify.plain.process_group import WORLD_SIZE, ProcessGroup
from ds_verify.plain.reference import RankGroup, average_gradients, closures_by_mean, schedules_by_mean
from ds_verify.plain.script_start import module_of, started_script
from ds_verify.plain.training_loaders import Loaders, trains
from ds_verify.plain.weights import ModuleRegistry
from ds_verify.recorder import RANK, seed_everything
from ds_verify.weights import move_by_one_ulp, precision

_PROGRESS = re.compile(r"\d%\|.*\|")


class _EndedError(RuntimeError):
    """The end of a script before there is anything to compare."""


@dataclass
class _Run:
    """The run of one rank. It ends the process itself, with all that the script has started in it.

    job: what to run. files: the folder of records with the run's name. log: what the rank writes to its output.
    has_ended: whether the script came to its end. printed: lines, of the first rank.
    """

    job: dict[str, Any]
    files: Path
    log: Path
    observer: Observer
    ranks: ProcessGroup
    loaders: Loaders = field(init=False)
    loaded: LoadedFiles = field(init=False)
    has_ended: bool = False
    printed: list[str] = field(default_factory=list)
    _imported_before: frozenset[str] = frozenset(sys.modules)
    _leaves: threading.Lock = field(default_factory=threading.Lock)
    _guessed: dict[int | None, Callable[[], None]] = field(default_factory=dict)  # loaders that may train

    def __post_init__(self) -> None:
        self.home = Path(self.job["context"])
        if self.job["is_parted"] and RANK:
            self.home = self.home.with_name(f"{self.home.name}-rank{RANK}")
        self.loaders = Loaders(str(self.home), self._on_new_loader, self._on_begin)
        self.loaded = LoadedFiles(
            self.home, self.log.with_name("loaded"), RANK, lambda: self.job["is_parted"] and not self.ranks.is_used
        )
        self.observer.modules.has_batches = lambda: any(use.passes for use in self.loaders.used)
        self.observer.end, self.observer.after_backward = self.leave, self._after_backward
        self._exit, self._process = os._exit, os.getpid()

    @property
    def _is_reference(self) -> bool:
        return self.job["side"] == "original" and not self.ranks.is_used

    def _on_new_loader(self, loader: Any, number: int, site: str) -> bool:
        shareable, job = can_share(loader), self.job
        before = sum(use.site == site for use in self.loaders.used[:number])
        if job["is_parted"] and not self.ranks.is_used and shareable and trains(number, site, job["loaders"], before):
            take_back = share(loader, WORLD_SIZE, RANK)
            if site not in job["read_loaders"]:
                self._guessed[number] = take_back
        return shareable

    def _on_begin(self, number: int | None) -> None:
        """Give a loader all its data back where an evaluation reads it first, and one rank never came to it."""
        take_back = self._guessed.pop(number, None)
        is_training = any(module.training for _, module in self.observer.modules.roots())
        if take_back is not None and not (is_training and torch.is_grad_enabled()):
            take_back()

    def _after_backward(self) -> None:
        self.loaders.trained()
        if self._is_reference:
            self.loaded.advance()
            average_gradients(self.observer.modules.trained(), self.observer.group)

    def train(self) -> NoReturn:
        """Run the script until it ends, or the observer ends it."""
        try:
            self._execute()
            self.has_ended = True
        except SystemExit as end:
            self._on_exit(end.code)
        except BaseException as error:
            self.leave(error)
        self.leave()

    def _on_exit(self, code: Any) -> NoReturn:
        self.has_ended = True
        if not code:
            self.leave()
        said = f": {line}" if isinstance(code, int) and (line := last_line(self.log)) else ""
        help_ = "; arguments behind SCRIPT are the script's" if code == 2 else ""
        self.leave(_EndedError(f"the script ended with exit code {code!r}{said}{help_}"))

    def _exit_in_script(self, code: int) -> NoReturn:
        if os.getpid() != self._process:  # a worker of a loader
            self._exit(code)
        self._on_exit(code)

    def _execute(self) -> None:
        job, observer, home = self.job, self.observer, self.home
        if job["side"] != "original":
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
            started_script(home, job),
            cuda_on_cpu() if job["replaces_cuda"] else contextlib.nullcontext(),
            self.ranks.replaced(),
            one_order(),
            mock.patch.object(os, "_exit", self._exit_in_script),
            mock.patch.object(torch, "save", save_in_copy),
            self.loaded.watched(),
            self.loaders.watched(),
            printed_lines(self.printed, home) if RANK == 0 else contextlib.nullcontext(),
            observer.modules.watched(),
            observer.watching(has_engines=job["side"] != "original"),
            schedules_by_mean(observer.group, lambda: self._is_reference),
            closures_by_mean(observer.group, lambda: self._is_reference),
            nudged(observer.modules) if job["nudge"] else contextlib.nullcontext(),
        ):
            script = home / job["target"]
            if module := module_of(script):
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(script), run_name="__main__")

    def leave(self, error: BaseException | None = None) -> NoReturn:
        """Leave the record, or why there is none, and end the process."""
        if not self._leaves.acquire(blocking=False):
            threading.Event().wait()  # another thread of the script is here
        try:
            if error is not None:
                raise error
            self._write_record()
        except BaseException as raised:
            self._write_failure(raised)
            self._end(1)
        self.loaded.advance()
        self.observer.group.any(False)  # none of them leaves while another one waits for it
        self._end(0)

    def _write_record(self) -> None:
        self.observer.finish()
        if self.observer.done == 0:
            raise _EndedError("the script ended without a step of an optimizer after a backward: nothing was trained")
        if shared := module_outside(self.job["source"], self._imported_before):
            raise _EndedError(f"{shared}, not from the copy of the project: name its folder in PYTHONPATH")
        self.observer.record.save(self.files.with_name(f"{self.files.name}.rank{RANK}.values"))
        figures = _figures(self)
        self.files.with_name(f"{self.files.name}.rank{RANK}.json").write_text(json.dumps(figures))

    def _write_failure(self, error: BaseException) -> None:
        first, step = self.job["first"], self.observer.place
        is_known = isinstance(error, _EndedError)  # where is of no use
        text = f"RuntimeError: {error}" if is_known else user_traceback(error, str(self.home))
        failure = {"text": text, "step": step, "resuming": 0 < first == step, "is_script": True}
        write_failure(self.files, RANK, failure)

    def _end(self, code: int) -> NoReturn:
        _flush()
        self._exit(code)


def main(path: str) -> NoReturn:
    """Train the run of a job file and end the process, with 0 when it has trained."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    tempfile.tempdir = None  # of the process that this one is a fork of
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]  # a script may save it
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    files = Path(job["records"], job["name"])
    folder = Path(path).parent
    progress = files.with_name(f"{files.name}.rank{RANK}.progress")
    observer = Observer(
        RankGroup(folder / "ranks", RANK, WORLD_SIZE),
        ModuleRegistry(),
        job["steps"],
        job["first"],
        job["saves_from"],
        report_progress=lambda step: _write_progress(progress, step),
    )
    if WORLD_SIZE > 1:
        hang_watch.watch(folder, RANK, WORLD_SIZE, job["hang"], functools.partial(report_hang, files, RANK))
    _Run(job, files, folder / f"rank{RANK}.log", observer, ProcessGroup(folder / "store")).train()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed or replaced it
            stream.flush()


def last_line(log: Path) -> str:
    """Return the last line that was written to a log, as the error of a parser of arguments; no progress bar."""
    _flush()
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip() and not _PROGRESS.search(line)), "")


@contextlib.contextmanager
def nudged(modules: ModuleRegistry) -> Iterator[None]:
    """Move every weight by one ulp before the first forward that may be followed by a backward.

    One that is traced is left, as for a graph that a log shows: the trace would hold the move.
    """

    def before(module: torch.nn.Module, inputs: Any) -> None:
        del inputs
        if torch.is_grad_enabled() and not torch._C._is_tracing() and next(iter(module.parameters()), None) is not None:
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


def _figures(run: _Run) -> dict[str, Any]:
    observer, loaders = run.observer, run.loaders
    times = sorted(observer.times)
    gpu = torch.cuda.is_available()
    return {
        "steps": observer.done,
        "saved": observer.saved.last,
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
        "passes": loaders.passes,
        "read_loaders": loaders.read_sites,
        "guessed_loaders": loaders.guessed,
        "unstepped": observer.unstepped,
        "unreached": [*observer.unreached_schedules, *(f"the loader of {line}" for line in loaders.unread)],
        "is_distributed": run.ranks.is_used,
        "has_ended": run.has_ended,
        "evaluations": observer.evaluations.count,
        "files": len(observer.saved.counts),
        "paths": sorted(observer.saved.paths),
        "printed": run.printed,
        "has_engine_checkpoint": observer.saved.has_engine_checkpoint,
    }


if __name__ == "__main__":
    main(sys.argv[1])
