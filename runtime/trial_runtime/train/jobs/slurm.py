"""A job for SLURM: an ``sbatch`` script whose ranks are tasks of ``srun``."""

from __future__ import annotations

import shlex

from trial_runtime.train.jobs.job import SAVE_SECONDS, Job


def write_slurm(job: Job) -> str:
    """Return the text of the script."""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}",
        "#SBATCH --time=24:00:00",
        *_size(job),
        f"#SBATCH --signal=USR1@{SAVE_SECONDS}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={job.name}-%{'A' if job.is_search else 'j'}.log",
        *(f"#SBATCH {argument}" for argument in job.arguments),
        "# Submit from the folder that holds the config: it and runs/ must be on a file system that all nodes share.",
        f"# {SAVE_SECONDS} s before the time limit SIGUSR1 asks for a checkpoint; the job is queued again and resumes.",
        "",
        *_environment(job),
        *_mounts(job),
        "# Activate the Python environment with ds-migrate[runtime] here, unless the shell that submits has it.",
        f"run_dir={job.run_directory}-{_job_id(job)}",
        f'srun {_srun_options(job)} python -u -m trial_runtime.train {job.command} --run-dir "$run_dir"',
        "code=$?",
        "case $code in",
        "  0) ;;  # trained",
        "  2) echo 'the config or an option cannot be run: not queued again' ;;",
        '  138|140|143) scontrol requeue "$SLURM_JOB_ID" ;;  # a checkpoint was saved: time limit or preemption',
        f'  *) [ "${{SLURM_RESTART_COUNT:-0}}" -ge {job.max_restarts} ] || scontrol requeue "$SLURM_JOB_ID" ;;',
        "esac",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _size(job: Job) -> list[str]:
    gpus = f"#SBATCH --gpus-per-node={job.gpu_type + ':' if job.gpu_type else ''}{job.slots_per_node}"
    if job.is_search:
        size = [f"#SBATCH --array=1-{job.nodes}", "#SBATCH --nodes=1", "#SBATCH --ntasks=1"]
        size += [] if job.has_gpus else [f"#SBATCH --cpus-per-task={job.slots_per_node}"]
    else:
        size = [f"#SBATCH --nodes={job.nodes}", f"#SBATCH --ntasks-per-node={job.slots_per_node}"]
    return [*size, *([gpus] if job.has_gpus else [])]


def _job_id(job: Job) -> str:
    return "$SLURM_ARRAY_JOB_ID" if job.is_search else "$SLURM_JOB_ID"


def _srun_options(job: Job) -> str:
    return "--ntasks=1" if job.is_search else "--kill-on-bad-exit=0 --wait=120"


def _environment(job: Job) -> list[str]:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(job.environment.items())]
    lines += [f"# {name}: a secret, not written here; ds-train reads it from the config" for name in job.secrets]
    return [*lines, ""] if lines else []


def _mounts(job: Job) -> list[str]:
    lines = []
    for mount in job.mounts:
        missing = shlex.quote(f"bind_mounts: no {mount.host_path}")
        lines.append(f"[ -e {shlex.quote(mount.host_path)} ] || {{ echo {missing}; exit 2; }}")
        if mount.host_path != mount.container_path:
            lines.append(f"# the cluster showed it as {mount.container_path}: the trial has to read the path above")
    return [*lines, ""] if lines else []
