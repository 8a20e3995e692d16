"""Mutated inputs of the runtime: experiment configs, and every file of a checkpoint. Each gives a result or one error.

``FUZZ_CASES`` in the environment gives the number of cases of each kind, ``FUZZ_SEED`` another beginning.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trial_runtime._cluster_info import newest_checkpoint, newest_of_run  # noqa: E402
from trial_runtime._redaction import masked, masked_file, masked_text, restored, secrets_of  # noqa: E402
from trial_runtime.core import DummyDistributedContext  # noqa: E402
from trial_runtime.errors import InvalidCheckpointException  # noqa: E402
from trial_runtime.experimental.client import Checkpoint  # noqa: E402
from trial_runtime.pytorch import load_trial_from_checkpoint_path  # noqa: E402
from trial_runtime.pytorch._checkpoints import determined_format, restricted_load  # noqa: E402
from trial_runtime.pytorch._checkpoints.restored import read_rank_state  # noqa: E402
from trial_runtime.pytorch._checkpoints.store import CheckpointStore  # noqa: E402
from trial_runtime.train.config.document import dump_yaml, parse_yaml  # noqa: E402
from trial_runtime.train.config.errors import ConfigError  # noqa: E402
from trial_runtime.train.config.run_plan import make_plan  # noqa: E402

CASES = int(os.environ.get("FUZZ_CASES", "60"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
ODD: list[Any] = [
    None, True, 0, -1, 3, 1e300, float("nan"), float("inf"), 2**70, "", "..", "a\0b", "é", "x" * 300, "{", [], {}, [[]],
    {"": 1}, {"val": {}}, {1: 2}, ["a", 1], "s3://b", {"type": "int"}, {"batches": "1"}, {"batches": 10**30},
]  # fmt: skip
CONFIG: dict[str, Any] = {
    "name": "n",
    "entrypoint": "model_def:Trial",
    "hyperparameters": {
        "global_batch_size": 8,
        "lr": {"type": "const", "val": 0.1},
        "g": {"x": [1, 2], "api_key": "k"},
    },
    "searcher": {"name": "single", "metric": "loss", "max_length": {"epochs": 2}, "smaller_is_better": True},
    "resources": {"slots_per_trial": 2},
    "environment": {"environment_variables": {"cpu": ["A=1"], "cuda": ["A=2"]}, "registry_auth": {"password": "p"}},
    "checkpoint_storage": {"type": "s3", "bucket": "b", "access_key": "a", "secret_key": "s", "save_trial_best": 1},
    "min_validation_period": {"batches": 5},
    "optimizations": {"aggregation_frequency": 2},
    "reproducibility": {"experiment_seed": 1},
    "data": {"path": "/x", "token": "t"},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    if path:
        yield path
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(inner, (*path, name))


def mutated(document: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """A copy in which one to three values are replaced, removed, or moved elsewhere."""
    changed = copy.deepcopy(document)
    for _ in range(draw.randint(1, 3)):
        every = list(places(changed))
        if not every:
            break
        *parents, last = draw.choice(every)
        node: Any = changed
        for name in parents:
            node = node[name]
        what = draw.random()
        if what < 0.2:
            del node[last]
        elif what < 0.3 and isinstance(node, dict):
            node[draw.choice(["", "x", 7, "type", "api_key"])] = node.pop(last)
        else:
            node[last] = copy.deepcopy(draw.choice(ODD))
    return changed


def test_mutated_configs_are_plans_or_one_error(tmp_path: Path) -> None:
    plans = 0
    for case in range(CASES):
        document = mutated(CONFIG, random.Random(f"config {SEED} {case}"))
        hidden = masked(document)
        restored(hidden, secrets_of(document))
        try:
            text = dump_yaml(document)
        except Exception:  # no YAML can hold it
            text = ""
        if text and (read := parse_yaml(text)) and isinstance(read, dict):
            masked_text(text, read)
            masked_file(text.encode())
        try:
            make_plan(document, "c.yaml", tmp_path)
            plans += 1
        except ConfigError:
            continue
        except Exception as error:
            raise AssertionError(f"case {case}: {document}") from error
    assert 0 < plans < CASES


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """A copy that is cut, or in which some bytes are replaced, doubled or exchanged."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        at, what = draw.randrange(len(changed) or 1), draw.random()
        if what < 0.1:
            del changed[at:]
        elif what < 0.2:
            changed[at:at] = changed[at : at + draw.randint(1, 40)]
        elif changed:
            changed[at % len(changed)] = draw.randrange(256)
    return bytes(changed)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed checkpoint with the files that the runtime reads."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"

    def write(path: Path) -> None:
        torch.save({"rng_state": None, "data": {"taken": 3, "passes": []}, "callbacks": {}}, path / "rank_0.pt")
        torch.save({"models_state_dict": [{"w": torch.ones(3)}]}, path / "state_dict.pth")
        facts = {"hparams": {"a": 1}, "experiment_config": None, "trial_type": "PyTorchTrial", "trial_cls_spec": "a:B"}
        (path / "load_data.json").write_text(json.dumps(facts))

    facts = {"progress": {"batches": 3, "epochs": 1}, "world_size": 1, "data_parallel_size": 1, "best_metric": 0.5}
    CheckpointStore(folder, DummyDistributedContext()).save("00000003-0a0b0c0d", write, facts).result()
    return folder / "00000003-0a0b0c0d"


class Nothing:
    """A trial without models."""

    def __init__(self, context: Any) -> None:
        self.context = context


def read_all(path: Path) -> None:
    """Read a checkpoint in all ways; the errors that are for users are none here."""
    for read in (
        lambda: read_rank_state(path, CheckpointStore(path.parent, DummyDistributedContext()).verify(path), 0),
        lambda: restricted_load.read(path / "rank_0.pt"),
        lambda: restricted_load.refused(path, ["rank_0.pt", "state_dict.pth"]),
        lambda: restricted_load.is_own(path),
        lambda: determined_format.progress(path),
        lambda: load_trial_from_checkpoint_path(path, Nothing),
        lambda: Checkpoint(path).metadata,
        lambda: Checkpoint(path).resources,
        lambda: newest_checkpoint(path.parent),
        lambda: newest_of_run(path.parent),
    ):
        try:
            read()
        except (InvalidCheckpointException, OSError):
            continue


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["manifest.json", "load_data.json", "rank_0.pt", "state_dict.pth", "../latest"])
def test_mutated_files_of_a_checkpoint_are_errors_for_users(name: str, checkpoint: Path, tmp_path: Path) -> None:
    content = (checkpoint / name).read_bytes()
    shutil.copytree(checkpoint.parent, tmp_path / "copy")
    path = tmp_path / "copy" / checkpoint.name
    for case in range(CASES // 2):
        draw = random.Random(f"{name} {SEED} {case}")
        if name.endswith(".json") and case % 2:
            changed = json.dumps(mutated(json.loads(content), draw)).encode()
        else:
            changed = mutated_bytes(content, draw)
        (path / name).write_bytes(changed)
        try:
            read_all(path)
        except Exception as error:
            raise AssertionError(f"case {case} of {name}: {changed[:400]!r}") from error
