"""A job for Kubernetes: a TrainJob of the Kubeflow Trainer, version 2."""

from __future__ import annotations

from typing import Any

from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.jobs.job import SAVE_SECONDS, SHUTDOWN_VARIABLE, Job, Mount, yaml_text

_WORK = "/workspace"


def write_kubeflow(job: Job) -> str:
    """Return the text of the TrainJob.

    Raises:
        ConfigError: the config is a search, whose trials one TrainJob does not start on several machines.
    """
    if job.is_search and job.nodes > 1:
        raise ConfigError(
            f"--write-job kubeflow: the search runs on {job.nodes} machines, and one TrainJob's nodes are ranks of one "
            "run; run it on one with --slots-per-node N, or lower searcher.max_concurrent_trials"
        )
    slots = job.slots_per_node
    trainer: dict[str, Any] = {
        **({"image": job.image} if job.image else {}),
        "numNodes": job.nodes,
        "numProcPerNode": 1 if job.is_search else slots,
        "command": ["bash", "-c", _script(job)],
        "env": [
            {"name": SHUTDOWN_VARIABLE, "value": str(SAVE_SECONDS)},
            *({"name": name, "value": value} for name, value in sorted(job.environment.items())),
            *(
                {
                    "name": name,
                    "valueFrom": {"secretKeyRef": {"name": f"{job.name}-secrets", "key": name, "optional": True}},
                }
                for name in job.secrets
            ),
        ],
    }
    if job.has_gpus:
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": slots}}
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": trainer,
            "runtimePatches": [_volumes(job)],
        },
    }
    notes = [
        f"kubectl apply -f {job.name}.trainjob.yaml",
        f"The claim {job.name} holds the folder with the config, and gets runs/: all nodes have to see it.",
        "The image needs ds-migrate[runtime]." if job.image else "The runtime's image needs ds-migrate[runtime].",
        *(f"{name}: put it into the secret {job.name}-secrets" for name in job.secrets),
    ]
    return yaml_text(notes, document)


def _script(job: Job) -> str:
    launcher = "exec python -u" if job.is_search else f"exec torchrun --max-restarts={job.max_restarts}"
    return f"cd {_WORK} && {launcher} -m trial_runtime.train {job.command} --run-dir {job.run_directory}"


def _volumes(job: Job) -> dict[str, Any]:
    """Return the patch that mounts the working folder, ``bind_mounts`` and shared memory into each node."""
    volumes: list[dict[str, Any]] = [{"name": "work", "persistentVolumeClaim": {"claimName": job.name}}]
    mounts: list[dict[str, Any]] = [{"name": "work", "mountPath": _WORK}]
    for number, mount in enumerate(job.mounts):
        volumes.append({"name": f"mount-{number}", "hostPath": {"path": mount.host_path}})
        mounts.append(_mount(f"mount-{number}", mount))
    memory = {"medium": "Memory", **({"sizeLimit": job.shm_size} if job.shm_size else {})}
    volumes.append({"name": "shm", "emptyDir": memory})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    pod = {
        "terminationGracePeriodSeconds": SAVE_SECONDS + 10,
        "volumes": volumes,
        "containers": [{"name": "node", "volumeMounts": mounts}],
    }
    node = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {"manager": "ds-migrate", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}}}


def _mount(name: str, mount: Mount) -> dict[str, Any]:
    only = {"readOnly": True} if mount.is_read_only else {}
    return {"name": name, "mountPath": mount.container_path, **only}
