"""A job for SkyPilot: a task for a pool of machines with ssh, or for any cloud that it knows."""

from __future__ import annotations

from typing import Any

from ruamel.yaml.scalarstring import LiteralScalarString

from trial_runtime.train.jobs.job import SAVE_SECONDS, SHUTDOWN_VARIABLE, Job, yaml_text

_PORT = 29400


def write_skypilot(job: Job) -> str:
    """Return the text of the task."""
    resources: dict[str, Any] = {"infra": "ssh"}
    if job.has_gpus:
        resources["accelerators"] = f"{job.gpu_type or 'H100'}:{job.slots_per_node}"
    if job.max_restarts:
        resources["job_recovery"] = {"max_restarts_on_errors": job.max_restarts}
    task: dict[str, Any] = {
        "name": job.name,
        "num_nodes": job.nodes,
        "resources": resources,
        "workdir": ".",
    }
    task["envs"] = {SHUTDOWN_VARIABLE: str(SAVE_SECONDS), **dict(sorted(job.environment.items()))}
    if job.secrets:
        task["secrets"] = dict.fromkeys(job.secrets)
    task["setup"] = "pip install 'CLONE[runtime]'"
    task["run"] = LiteralScalarString(_run(job))
    notes = [
        f"sky launch -c {job.name} {job.name}.sky.yaml, or sky jobs launch for a job that is recovered.",
        "infra: ssh is a pool of your own machines (~/.sky/ssh_node_pools.yaml); name its pool as ssh/POOL.",
        "setup: CLONE is a clone of ds-migrate that each machine has, or git+ and its URL; it is not on PyPI.",
        "runs/ has to be on storage that all machines share, or checkpoint_storage has to be a bucket.",
        *(f"{name}: pass it with --secret {name}" for name in job.secrets),
        *(f"bind_mounts: {mount.host_path} has to exist on each machine" for mount in job.mounts),
    ]
    return yaml_text(notes, task)


def _run(job: Job) -> str:
    run_directory = f"{job.run_directory}-$SKYPILOT_TASK_ID"
    if job.is_search:
        return f'python -u -m trial_runtime.train {job.command} --run-dir "{run_directory}"\n'
    return (
        'head=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\n'
        f"torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc-per-node={job.slots_per_node} "
        f"--node-rank=$SKYPILOT_NODE_RANK --master-addr=$head --master-port={_PORT} "
        f"--max-restarts={job.max_restarts} \\\n"
        f'  -m trial_runtime.train {job.command} --run-dir "{run_directory}"\n'
    )
