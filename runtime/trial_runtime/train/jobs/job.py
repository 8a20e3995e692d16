"""Facts of a job, read from an experiment config: what every scheduler's file is written from."""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_migrate.redaction import is_secret_name
from ruamel.yaml import YAML

from trial_runtime._redaction import masked_words
from trial_runtime.search.config import Search
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import RunPlan

SAVE_SECONDS = 120
"""How long before the end of its time a job is asked to save and leave."""
SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Environment variable with the seconds that ``torchrun`` gives its ranks to save after a signal; by default 30."""
_CONCURRENT_TRIALS = 16  # Determined's, of a search whose config does not limit them
_MAX_GPUS_OF_A_NODE = 8
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GPU_TYPE = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Mount:
    """One of ``bind_mounts``: a folder of the machine, and where the trial expects it."""

    host_path: str
    container_path: str
    is_read_only: bool


@dataclass(frozen=True)
class Job:
    """A job, before a scheduler's file is written from it.

    Attributes:
        name: of the experiment, as file names and Kubernetes allow it.
        words: of ``ds-train``: the config, the context directory and options, without the run directory.
        nodes: how many machines.
        slots_per_node: processes on each, one GPU each.
        has_gpus: whether slots are GPUs.
        gpu_type: as ``slurm.gpu_type`` names it; None: any.
        environment: variables of the config that hold no secret.
        secrets: names of those that may.
        mounts: ``bind_mounts``.
        image: ``environment.image`` for the device.
        max_restarts: after failures.
        is_search: whether each node runs trials of one search, rather than ranks of one trial.
        arguments: further ``sbatch`` options of the config.
        shm_size: ``resources.shm_size``.
    """

    name: str
    words: Sequence[str]
    nodes: int
    slots_per_node: int
    has_gpus: bool
    gpu_type: str | None
    environment: Mapping[str, str]
    secrets: Sequence[str]
    mounts: Sequence[Mount]
    image: str | None
    max_restarts: int
    is_search: bool
    arguments: Sequence[str]
    shm_size: str | None

    @property
    def run_directory(self) -> str:
        """Return the run directory below ``runs/``, up to the part that distinguishes jobs."""
        return f"runs/{self.name}"

    @property
    def command(self) -> str:
        """Return the words after ``python -m trial_runtime.train``, quoted for a shell."""
        return shlex.join(self.words)


def read_job(
    document: Mapping[str, Any],
    plan: RunPlan,
    search: Search | None,
    words: Sequence[str],
    slots_per_node: int | None,
    is_cpu: bool,
) -> Job:
    """Return the job of a checked config.

    Args:
        document: the experiment config.
        plan: of the run, or of a search's first trial.
        search: None: a single run.
        words: of ``ds-train``.
        slots_per_node: how many processes a machine runs; None: as ``slurm.slots_per_node``, else at most 8.
        is_cpu: slots are CPU processes.

    Raises:
        ConfigError: the slots cannot be shared out evenly, or a secret is on the command line.
    """
    if masked_words(words) != list(words):
        raise ConfigError("--write-job: an option holds a secret, which no job file may; put it into the config")
    slurm = _mapping(document.get("slurm"))
    given = slots_per_node or slurm.get("slots_per_node")
    per_node = int(given) if given else min(plan.slots, _MAX_GPUS_OF_A_NODE)
    if search is not None:
        at_once = min(search.max_trials, search.max_concurrent_trials or _CONCURRENT_TRIALS)
        per_node = max(per_node, plan.slots) if given else min(at_once * plan.slots, _MAX_GPUS_OF_A_NODE)
        nodes = math.ceil(at_once * plan.slots / per_node)
    elif plan.slots % min(per_node, plan.slots):
        raise ConfigError(
            f"resources.slots_per_trial: {plan.slots} slots on machines with {per_node}: every machine needs as many; "
            f"name a divisor with --slots-per-node N"
        )
    else:
        per_node = min(per_node, plan.slots)
        nodes = plan.slots // per_node
    environment = _mapping(document.get("environment"))
    job = Job(
        name=_name(plan.name),
        words=words,
        nodes=nodes,
        slots_per_node=per_node,
        has_gpus=not is_cpu,
        gpu_type=None if is_cpu or slurm.get("gpu_type") is None else str(slurm["gpu_type"]),
        environment={name: value for name, value in plan.environment.items() if not _is_secret(name, value)},
        secrets=sorted(name for name, value in plan.environment.items() if _is_secret(name, value)),
        mounts=[_mount(each) for each in document.get("bind_mounts") or [] if isinstance(each, Mapping)],
        image=_image(environment.get("image"), is_cpu),
        max_restarts=plan.max_restarts,
        is_search=search is not None,
        arguments=[str(each) for each in slurm.get("sbatch_args") or []],
        shm_size=str(size) if (size := _mapping(document.get("resources")).get("shm_size")) is not None else None,
    )
    _check_texts(job)
    return job


def yaml_text(notes: Sequence[str], document: Mapping[str, Any]) -> str:
    """Return a YAML file in the order of ``document``, one field a line, after comments."""
    yaml = YAML()
    yaml.width = 1000
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(document, stream)
    return "".join(f"# {note}\n" for note in notes) + stream.getvalue()


def _check_texts(job: Job) -> None:
    """Refuse what would become a line or a word more in a job file than the config has.

    Raises:
        ConfigError: a name of a variable is none for a shell, or a line break or control character is in a value.
    """
    for name in (*job.environment, *job.secrets):
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(f"environment.environment_variables: {name!r:.80} is no name of a variable")
    if not _GPU_TYPE.fullmatch(job.gpu_type or "any"):
        raise ConfigError(f"slurm.gpu_type: {job.gpu_type!r:.80}; write a name such as a100")
    texts = {
        "bind_mounts": [path for mount in job.mounts for path in (mount.host_path, mount.container_path)],
        "slurm.sbatch_args": job.arguments,
        "environment.image": [job.image or ""],
        "resources.shm_size": [job.shm_size or ""],
        "--write-job, an option": job.words,
    }
    for field, values in texts.items():
        for value in values:
            if not value.isprintable():
                raise ConfigError(f"{field}: {value!r:.80} holds a line break or a control character")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or ("://" in value and "@" in value)


def _mount(fields: Mapping[str, Any]) -> Mount:
    host = str(fields.get("host_path", ""))
    container = Path("/run/determined/workdir", str(fields.get("container_path", host)))
    return Mount(host, str(container), bool(fields.get("read_only", False)))


def _image(value: object, is_cpu: bool) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("cpu") if is_cpu else value.get("cuda") or value.get("gpu")
    return None if value is None else str(value)


def _name(text: str) -> str:
    """Return the name with letters, digits and ``-`` only, as each scheduler allows it."""
    words = "".join(letter if letter.isascii() and letter.isalnum() else " " for letter in text.lower()).split()
    return ("-".join(words) or "run")[:40].strip("-")
