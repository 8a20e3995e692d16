"""One rank of a job: ``python -m ds_verify.worker JOB.json``, see :class:`ds_verify.job.Job`.

It leaves a file: ``NAME.rankN.values`` (its record) and ``NAME.rankN.json`` (memory, speed), or ``NAME.rankN.error``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import resource
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from trial_runtime._cluster_info import ENV_VAR, get_cluster_info
from trial_runtime.train import determined_alias
from trial_runtime.train.run import hang_watch
from trial_runtime.train.run import rank as train_rank

from ds_verify import host_batches, oracle
from ds_verify.cuda_stand_in import cuda_on_cpu
from ds_verify.failure import report_hang, user_traceback, write_failure
from ds_verify.job import VARIABLES
from ds_verify.recorder import RANK, Observation, Observed, observed, seed_everything

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


def main(path: str) -> int:
    """Train the run of a job file; return 0 when it has trained."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling new tensors makes ZeRO write its whole bucket, two gigabytes, in each step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if job["oracle"]:
        oracle.prepare(job["is_deepspeed_trial"])
    else:
        determined_alias.install()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if WORLD_SIZE > 1 or job["is_deepspeed_trial"]:
        _join(str(Path(path).with_name("store")))
    dist.destroy_process_group = lambda *_, **__: None
    files = Path(job["records"], job["name"])
    if WORLD_SIZE > 1:
        hang_watch.watch(Path(path).parent, RANK, WORLD_SIZE, job["hang"], functools.partial(report_hang, files, RANK))
    try:
        observation = _run(job, files.with_name(f"{files.name}.rank{RANK}.progress"))
        observation.record.save(files.with_name(f"{files.name}.rank{RANK}.values"))
        files.with_name(f"{files.name}.rank{RANK}.json").write_text(json.dumps(_figures(observation)))
    except BaseException as error:
        occasion = getattr(error, "_occasion", {"step": 0, "resuming": False})
        write_failure(files, RANK, {"text": user_traceback(error, job["context"]), **occasion})
        return 1
    if dist.is_initialized():
        dist.barrier()
    return 0


def _join(store: str) -> None:
    """Make one process group for both parts of the run; a script that makes one gets this one and cannot end it."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, f"file://{store}", timedelta(minutes=5), world_size=WORLD_SIZE, rank=RANK)
    dist.init_process_group = lambda *_, **__: None


def _run(job: dict[str, Any], progress: Path) -> Observation:
    """Train the run, in two parts when it is resumed."""
    checkpoint, before = None, None
    for part in (1, 2) if job["resumed"] else (0,):
        observation = Observation(
            steps=job["steps"],
            window=job["window"],
            validates=job["validates"],
            part=part,
            seed=job["seed"] + 1,
            home=job["context"],
            nudge=job["nudge"],
            host_batches=job["host_batches"],
            checkpoint=checkpoint,
            report_progress=lambda step: _write_progress(progress, step),
        )
        if before is not None:
            observation.record, observation.trained = before.record, before.trained
            observation.times = before.times
            observation.training_samples |= before.training_samples
        before_trained = observation.trained
        try:
            _train(job, observation)
        except BaseException as error:
            resuming = part == 2 and observation.trained == before_trained
            error._occasion = {"step": observation.trained, "resuming": resuming}  # type: ignore[attr-defined]
            raise
        checkpoint, before = observation.checkpoint, observation
    return observation


def _train(job: dict[str, Any], observation: Observation) -> None:
    os.environ |= json.loads(os.environ.get(VARIABLES, "{}"))
    os.environ[ENV_VAR] = json.dumps(job["info"])
    info = get_cluster_info()
    assert info is not None
    package = importlib.import_module("determined.pytorch" if job["oracle"] else "trial_runtime.pytorch")
    hook = torch.nn.modules.module.register_module_forward_pre_hook(host_batches.refuse_in_forward)
    if not observation.host_batches:
        hook.remove()
    seed_everything(job["seed"])  # off its cluster, determined does not
    try:
        cuda = cuda_on_cpu() if job["replaces_cuda"] else contextlib.nullcontext()
        with cuda, _place(Path(job["context"])), observed(_trainer(job), package, observation):
            run_entrypoint = oracle.run_entrypoint if job["oracle"] else train_rank.run_entrypoint
            with contextlib.suppress(Observed):
                run_entrypoint(info, job["kind"], job["target"], job["args"])
    finally:
        hook.remove()
    if not observation.finished:
        raise RuntimeError("the entrypoint ended without a call of Trainer.fit(), so nothing was trained")


def _trainer(job: dict[str, Any]) -> Any:
    """Return the class whose ``fit`` trains."""
    if not job["oracle"]:
        return importlib.import_module("trial_runtime.pytorch._trainer").BaseTrainer
    name = "determined.pytorch.deepspeed" if job["is_deepspeed_trial"] else "determined.pytorch"
    return importlib.import_module(name).Trainer


@contextlib.contextmanager
def _place(folder: Path) -> Iterator[None]:
    """Make a folder the working directory and the first place to import from; forget its modules afterwards."""
    before, where, arguments, path = set(sys.modules), Path.cwd(), sys.argv, sys.path[:]
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        os.chdir(where)
        sys.argv, sys.path[:] = arguments, path
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and folder in Path(file).parents:
                del sys.modules[name]


def _write_progress(progress: Path, step: int) -> None:
    if RANK == 0:
        progress.write_text(str(step))


def _figures(observation: Observation) -> dict[str, Any]:
    times = sorted(observation.times)
    gpu = torch.cuda.is_available()
    return {
        "steps": observation.trained,
        "seconds_a_batch": times[len(times) // 2] if times else None,
        "samples": observation.samples,
        # KiB on Linux; of the whole process, torch included.
        "peak_bytes": torch.cuda.max_memory_allocated()
        if gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "precision": observation.precision,
        "zero_stages": observation.zero_stages,
        "is_deepspeed_trial": observation.is_deepspeed_trial,
        "trial_classes": observation.trial_classes,
        "training_samples": max(observation.training_samples) if len(observation.training_samples) == 1 else 0,
        "validation_samples": observation.validation_samples if all(observation.validation_samples) else [],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
