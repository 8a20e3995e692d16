"""``ds-train CONFIG.yaml --write-job KIND``: writes one text file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trial_runtime._atomic_file import write_whole
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.searcher import is_search
from trial_runtime.train.jobs.job import Job, read_job
from trial_runtime.train.jobs.kubeflow import write_kubeflow
from trial_runtime.train.jobs.skypilot import write_skypilot
from trial_runtime.train.jobs.slurm import write_slurm
from trial_runtime.train.run.prepare import plan_from
from trial_runtime.train.search.command import SearchCommand

WRITERS: Mapping[str, tuple[str, Callable[[Job], str], str]] = {
    "slurm": ("{}.sbatch", write_slurm, "sbatch {}"),
    "skypilot": ("{}.sky.yaml", write_skypilot, "sky launch {}"),
    "kubeflow": ("{}.trainjob.yaml", write_kubeflow, "kubectl apply -f {}"),
}
"""For each scheduler the name of the file, its writer, and the command that submits it."""

_OWN_OPTIONS = ("--write-job", "--slots-per-node", "--run-dir")


def write_job(options: argparse.Namespace, document: dict[str, Any]) -> str:
    """Write the job file that ``options`` ask for into the working directory; a line for the user.

    Raises:
        ConfigError: the config cannot be run as a job, or the file is there with another content.
    """
    searcher = document.get("searcher")
    if isinstance(searcher, Mapping) and is_search(searcher):
        command = SearchCommand(options, document, lambda line: None)  # noqa: ARG005
        plan, search = command.plan, command.search
    else:
        plan, search = plan_from(options, document), None
    is_cpu = os.environ.get("CUDA_VISIBLE_DEVICES") == "" or getattr(options, "device", None) == "cpu"
    words = _without_own_options(options.words)
    job = read_job(document, plan, search, words, options.slots_per_node, is_cpu)
    name, write, submit = WRITERS[options.write_job]
    path, text = Path(name.format(job.name)), write(job)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise ConfigError(f"--write-job: {path} is there already, with another content: remove it first")
    write_whole(path, text)
    machines = "1 machine" if job.nodes == 1 else f"{job.nodes} machines"
    return f"wrote {path}: {machines} with {job.slots_per_node} slots each; read it, then: {submit.format(path)}"


def _without_own_options(words: Sequence[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if (
            not skip
            and not word.startswith(tuple(f"{option}=" for option in _OWN_OPTIONS))
            and word not in _OWN_OPTIONS
        ):
            kept.append(word)
        skip = not skip and word in _OWN_OPTIONS
    return kept
