"""``ds-train --write-job``: files for SLURM, SkyPilot and Kubeflow, checked by what those tools check themselves."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elastic_trial
import one_node_slurm
import pytest
from forked_python import forked_python
from trial_runtime._run_metrics import read_reports
from trial_runtime.train.cli import main
from trial_runtime.train.config.document import parse_yaml

CONFIG = """\
name: My Job
entrypoint: train:Trial
hyperparameters: {global_batch_size: 64}
searcher: {name: single, metric: loss, max_length: {batches: 30}}
resources: {slots_per_trial: 16, shm_size: 4294967296}
max_restarts: 2
environment:
  image: {cuda: "images/training:1", cpu: "images/training:cpu"}
  environment_variables: [NCCL_DEBUG=INFO, "A_TEXT=two words", WANDB_API_KEY=topsecret]
bind_mounts:
  - {host_path: /data/images, container_path: /mnt/data, read_only: true}
slurm: {sbatch_args: ["--account=vision"], gpu_type: a100}
"""
SLURM = """\
#!/bin/bash
#SBATCH --job-name=my-job
#SBATCH --time=24:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=a100:8
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=my-job-%j.log
#SBATCH --account=vision
# Submit from the folder that holds the config: it and runs/ must be on a file system that all nodes share.
# 120 s before the time limit SIGUSR1 asks for a checkpoint; the job is queued again and resumes.

export A_TEXT='two words'
export NCCL_DEBUG=INFO
# WANDB_API_KEY: a secret, not written here; ds-train reads it from the config

[ -e /data/images ] || { echo 'bind_mounts: no /data/images'; exit 2; }
# the cluster showed it as /mnt/data: the trial has to read the path above

# Activate the Python environment with ds-migrate[runtime] here, unless the shell that submits has it.
run_dir=runs/my-job-$SLURM_JOB_ID
srun --kill-on-bad-exit=0 --wait=120 python -u -m trial_runtime.train c.yaml --seed 4 --run-dir "$run_dir"
code=$?
case $code in
  0) ;;  # trained
  2) echo 'the config or an option cannot be run: not queued again' ;;
  138|140|143) scontrol requeue "$SLURM_JOB_ID" ;;  # a checkpoint was saved: time limit or preemption
  *) [ "${SLURM_RESTART_COUNT:-0}" -ge 2 ] || scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit $code
"""
RUN_OF_SKYPILOT = """\
head=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc-per-node=8 --node-rank=$SKYPILOT_NODE_RANK --master-addr=$head \
--master-port=29400 --max-restarts=2 \\
  -m trial_runtime.train c.yaml --seed 4 --run-dir "runs/my-job-$SKYPILOT_TASK_ID"
"""
FILES = {"slurm": "my-job.sbatch", "skypilot": "my-job.sky.yaml", "kubeflow": "my-job.trainjob.yaml"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def written(folder: Path, kind: str, *options: str) -> str:
    assert main(["c.yaml", "--seed", "4", "--write-job", kind, *options]) == 0
    text = (folder / FILES[kind]).read_text()
    assert "topsecret" not in text
    assert "WANDB_API_KEY" in text
    return text


def test_a_slurm_script_has_all_that_the_config_states(folder: Path) -> None:
    assert written(folder, "slurm") == SLURM
    subprocess.run(["bash", "-n", FILES["slurm"]], check=True)


def test_a_skypilot_task_starts_torchrun_on_each_node(folder: Path) -> None:
    task = parse_yaml(written(folder, "skypilot"))
    assert task == {
        "name": "my-job", "num_nodes": 2, "workdir": ".", "setup": "pip install 'CLONE[runtime]'",
        "resources": {"infra": "ssh", "accelerators": "a100:8", "job_recovery": {"max_restarts_on_errors": 2}},
        "envs": {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120", "A_TEXT": "two words", "NCCL_DEBUG": "INFO"},
        "secrets": {"WANDB_API_KEY": None}, "run": RUN_OF_SKYPILOT,
    }  # fmt: skip


def test_a_trainjob_mounts_what_the_config_binds(folder: Path) -> None:
    job = parse_yaml(written(folder, "kubeflow"))
    trainer, (patch,) = job["spec"]["trainer"], job["spec"]["runtimePatches"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (2, 8, "images/training:1")
    assert trainer["command"][-1] == (
        "cd /workspace && exec torchrun --max-restarts=2 -m trial_runtime.train c.yaml --seed 4 --run-dir runs/my-job"
    )
    node = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert node["volumes"][1] == {"name": "mount-0", "hostPath": {"path": "/data/images"}}
    assert node["containers"][0]["volumeMounts"][1] == {"name": "mount-0", "mountPath": "/mnt/data", "readOnly": True}


def test_a_search_is_an_array_of_jobs_in_one_run_directory(folder: Path) -> None:
    searcher = "{name: random, metric: loss, max_trials: 6, max_concurrent_trials: 3, max_length: {batches: 9}}"
    text = CONFIG.replace("{name: single, metric: loss, max_length: {batches: 30}}", searcher)
    (folder / "c.yaml").write_text(text.replace("slots_per_trial: 16", "slots_per_trial: 4"))
    script = written(folder, "slurm")
    assert "#SBATCH --array=1-2\n#SBATCH --nodes=1\n#SBATCH --ntasks=1\n#SBATCH --gpus-per-node=a100:8\n" in script
    assert "run_dir=runs/my-job-$SLURM_ARRAY_JOB_ID\nsrun --ntasks=1 python" in script


def test_slots_that_machines_cannot_share_evenly_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["c.yaml", "--write-job", "slurm", "--slots-per-node", "5"]) == 2
    assert "16 slots on machines with 5: every machine needs as many" in capsys.readouterr().err
    assert not (folder / FILES["slurm"]).exists()


def test_a_file_that_was_changed_is_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder, "slurm")
    (folder / FILES["slurm"]).write_text("# mine\n")
    assert main(["c.yaml", "--write-job", "slurm"]) == 2
    assert "my-job.sbatch is there already, with another content" in capsys.readouterr().err


HOSTILE: dict[str, dict[str, Any]] = {
    "a command in a path": {"bind_mounts": [{"host_path": "/data/'; touch hacked; '", "container_path": "/x"}]},
    "a substitution in a path": {"bind_mounts": [{"host_path": "/data/$(touch hacked)`touch hacked`"}]},
    "a substitution in a value": {"environment": {"environment_variables": ["A=$(touch hacked)'; touch hacked"]}},
    "a YAML tag in a value": {"environment": {"environment_variables": ["A=!!python/object/apply:os.system [x]"]}},
    "YAML in a name": {"name": "a: b\n# c\n---\n- d $(touch hacked)", "environment": {"image": "i: &a [*a]"}},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a line in a path": ({"bind_mounts": [{"host_path": "/x\ntouch hacked"}]}, "bind_mounts"),
    "a line in a container's path": ({"bind_mounts": [{"host_path": "/x", "container_path": "/y\nz"}]}, "bind_mounts"),
    "a line in an option": ({"slurm": {"sbatch_args": ["--account=a\ntouch hacked"]}}, "slurm.sbatch_args"),
    "a line in a GPU type": ({"slurm": {"gpu_type": "a100\ntouch hacked"}}, "slurm.gpu_type"),
    "a command as a variable": (
        {"environment": {"environment_variables": ["A;touch hacked;B=1"]}}, "environment.environment_variables",
    ),
    "a line in a secret's name": (
        {"environment": {"environment_variables": ["A\ntouch hacked\nTOKEN=1"]}}, "environment.environment_variables",
    ),
    "an escape code in an image": ({"environment": {"image": "\x1b[2J"}}, "environment.image"),
}  # fmt: skip


def write_config(folder: Path, **changes: Any) -> None:
    document = {**parse_yaml(CONFIG), **changes}
    (folder / "c.yaml").write_text(json.dumps(document))


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_nothing_in_a_config_becomes_a_command_or_a_field_of_a_job(changes: dict[str, Any], folder: Path) -> None:
    write_config(folder, **changes)
    kinds = ("slurm", "skypilot", "kubeflow")
    assert [main(["c.yaml", "--write-job", kind]) for kind in kinds] == [0, 0, 0]
    (script,) = folder.glob("*.sbatch")
    stubs = "srun() { :; }; scontrol() { :; }; exit() { :; }\n"
    subprocess.run(["bash", "-c", stubs + script.read_text()], cwd=folder, check=True, timeout=60)
    assert not (folder / "hacked").exists()
    (sky,), (trainjob,) = folder.glob("*.sky.yaml"), folder.glob("*.trainjob.yaml")
    task, job = (parse_yaml(path.read_text()) for path in (sky, trainjob))
    assert [name for name in task if name != "secrets"] == [
        "name", "num_nodes", "resources", "workdir", "envs", "setup", "run"
    ]  # fmt: skip
    assert list(job) == ["apiVersion", "kind", "metadata", "spec"]
    variables = changes.get("environment", {}).get("environment_variables", [])
    for variable in variables:
        name, _, value = variable.partition("=")
        assert task["envs"][name] == value


@pytest.mark.parametrize(("changes", "field"), REFUSED.values(), ids=REFUSED)
def test_what_would_be_a_line_more_in_a_job_is_refused(
    changes: dict[str, Any], field: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(folder, **changes)
    assert main(["c.yaml", "--write-job", "slurm"]) == 2
    assert f"ds-train: {field}" in capsys.readouterr().err
    assert not list(folder.glob("*.sbatch"))


def test_a_secret_on_the_command_line_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    option = "environment.environment_variables=[A_TOKEN=topsecret]"
    assert main(["c.yaml", "--config", option, "--write-job", "slurm"]) == 2
    assert "an option holds a secret" in capsys.readouterr().err
    assert not (folder / FILES["slurm"]).exists()


# What the tools themselves check.


def test_skypilot_accepts_the_task(folder: Path) -> None:
    schemas = pytest.importorskip("sky.utils.schemas", reason="needs skypilot")
    import jsonschema

    task = parse_yaml(written(folder, "skypilot"))
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


def test_kubeflow_accepts_the_trainjob(folder: Path) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="needs kubeflow-trainer-api")
    job = parse_yaml(written(folder, "kubeflow"))
    read = models.TrainerV1alpha1TrainJob.from_dict(job).to_dict()
    assert read == job, "a field that the schema does not know is dropped"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if reason := one_node_slurm.why_not():
        pytest.skip(reason)
    with one_node_slurm.slurm(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.mark.slow
def test_slurm_accepts_the_script(cluster: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the node has no GPU
    (folder / "c.yaml").write_text(CONFIG.replace("slurm:", "labels:"))  # nor accounts
    written(folder, "slurm", "--slots", "2")
    done = subprocess.run(
        ["sbatch", "--test-only", FILES["slurm"]], env=cluster, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_that_reaches_its_time_limit_is_requeued_and_loses_nothing(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    config = elastic_trial.CONFIG.replace("100000", "100") + "resources: {slots_per_trial: 2}\n"
    (tmp_path / "c.yaml").write_text(config)
    shutil.copy(elastic_trial.__file__, tmp_path)
    environment = cluster | {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(elastic_trial.__file__).parent),
        "PATH": os.pathsep.join([str(Path(forked_python()).parent), cluster["PATH"]]),
    }

    # Until the job was requeued, a batch takes so long that it cannot end before its limit, on any machine.
    def run(*command: str, seconds: str = "2") -> str:
        shown = subprocess.run(
            command, cwd=tmp_path, env={**environment, "SECONDS_A_BATCH": seconds}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stdout + shown.stderr
        return shown.stdout

    train = [forked_python(), "-m", "trial_runtime.train", "c.yaml"]
    run(*train, "--write-job", "slurm")
    limits = ["--time=2", "--signal=USR1@60", "--overcommit", "--parsable"]
    job = run("sbatch", *limits, "elastic.sbatch").strip()
    output = tmp_path / f"elastic-{job}.log"

    def state() -> dict[str, Any]:
        fields = run("scontrol", "show", "job", job).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    deadline = time.monotonic() + 900
    failed_since = math.inf  # SLURM shows a job as failed before it queues it again, on busy cores for long
    while (now := state())["JobState"] not in ("COMPLETED", "TIMEOUT", "CANCELLED"):
        failed_since = min(failed_since, time.monotonic()) if now["JobState"] == "FAILED" else math.inf
        if time.monotonic() - failed_since > 120:
            break
        assert time.monotonic() < deadline, f"{now}\n{output.read_text()[-3000:]}"
        if now["JobState"] == "PENDING" and int(now["Restarts"]):
            subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], env=environment, check=False)
        time.sleep(2)
    text = output.read_text()
    assert now["JobState"] == "COMPLETED", text[-3000:]
    assert int(now["Restarts"]) > 0
    disturbed = losses(tmp_path / "runs" / f"elastic-{job}")
    run(*train, "--run-dir", "runs/undisturbed", seconds="0")
    assert len(disturbed) == 100
    assert disturbed == losses(tmp_path / "runs" / "undisturbed")


def losses(run: Path) -> list[float]:
    reports = read_reports(run / "metrics.jsonl", "training")
    return [float(each["loss"]) for report in reports for each in report.batch_metrics or []]
