"""Ranks on several machines that share no disk: noticed before training, or each machine keeps its own part."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elastic_trial
import pytest
import torch
import toys
from distributed import run_ranks
from ports import free_port
from trial_runtime import pytorch
from trial_runtime._run_metrics import read_reports
from trial_runtime.errors import CheckpointStorageError
from trial_runtime.pytorch import deepspeed as det_ds


def fit(storage: Any, folder: Path, is_shared: bool, length: int, **arguments: Any) -> toys.Outcome:
    """Train on this rank, which is a machine by itself; unless ``is_shared`` with its own disk."""
    exp_conf = {"reproducibility": {"experiment_seed": toys.SEED}, "checkpoint_storage": storage}
    recorder, rank = pytorch.MetricsRecorder(), torch.distributed.get_rank()
    hparams = {"stage": 1, "global_batch_size": 8}
    with det_ds.init(hparams=hparams, exp_conf=exp_conf, run_dir=folder) as context:
        assert context.distributed.cross_size == 2
        if not is_shared:
            context._settings.checkpoint_directory = disk(folder, rank)
        context.add_metrics_sink(recorder)
        trial = toys.SimpleDS(context)
        # a validation draws from the generators, so every run has those of an interrupted one
        given = {
            "checkpoint_policy": "none",
            "max_length": pytorch.Batch(length),
            "validation_period": pytorch.Batch(3),
            **arguments,
        }
        det_ds.Trainer(trial, context).fit(**given)
        return toys.Outcome(recorder, trial)


def disk(folder: Path, rank: int) -> Path:
    return folder / f"disk{rank}" / "checkpoints"


def on_this_rank(folder: Path, storage: Any) -> dict[str, list[str]]:
    rank = torch.distributed.get_rank()
    os.environ |= {"GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    with pytest.raises(CheckpointStorageError, match=r"separate folder on each machine \(.*\).* --run-dir"):
        fit({"type": "shared_fs", "host_path": str(folder)}, folder / "none", is_shared=False, length=1)
    shared = {"type": "shared_fs", "host_path": str(folder / "shared")}
    whole = fit(shared, folder / "whole", is_shared=True, length=6)
    fit(storage, folder / "run", is_shared=False, length=3)
    own = disk(folder / "run", rank)
    parts = sorted(path.name for path in own.glob("*/rank_*"))
    resumed: dict[str, Any] = {"latest_checkpoint": "latest", "is_shared": False, "length": 6}
    rest = fit(storage, folder / "run", **resumed)
    assert toys.difference(rest.state, whole.state) == 0.0
    assert [path.name[:8] for path in own.glob("0*")] == ["00000006"]
    torch.distributed.barrier()
    if rank == 1:  # a new machine in its place
        shutil.rmtree(own.parent)
    torch.distributed.barrier()
    again = fit(storage, folder / "run", **resumed)
    assert toys.difference(again.state, whole.state) == 0.0
    fetched = sorted(path.name for path in own.glob("00000006-*/rank_*"))
    assert not list(own.glob(".tmp-*"))
    return {"parts": parts, "fetched": fetched}


def check(folder: Path, storage: Any) -> None:
    first, second = run_ranks(on_this_rank, folder, storage)
    assert (first["parts"], second["parts"]) == (["rank_0.pt"], ["rank_1.pt"])
    assert second["fetched"] == ["rank_0.pt", "rank_1.pt"]


def test_each_machine_uploads_its_part_and_fetches_what_it_lacks(tmp_path: Path) -> None:
    check(tmp_path, {"type": "url", "url": (tmp_path / "bucket").as_uri()})
    manifests = list((tmp_path / "bucket").glob("*/manifest.json"))
    assert len(manifests) == 2
    for manifest in manifests:
        assert {"rank_0.pt", "rank_1.pt"} <= {path.name for path in manifest.parent.iterdir()}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An object store on this machine, with an empty bucket."""
    s3fs: Any = pytest.importorskip("s3fs", reason="needs the extra s3")
    pytest.importorskip("moto.server", reason="needs moto[server]")
    port = free_port()
    with (tmp_path / "moto.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    keys = {"access_key": "name", "secret_key": "topsecret", "endpoint_url": f"http://127.0.0.1:{port}"}
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    try:
        store = s3fs.S3FileSystem(
            key="name", secret="topsecret", endpoint_url=keys["endpoint_url"], use_listings_cache=False
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                store.mkdir("bucket")
                break
            except Exception:
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.5)
        yield {"type": "s3", "bucket": "bucket", **keys}
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_the_same_with_an_object_store(tmp_path: Path, s3: dict[str, str]) -> None:
    check(tmp_path, s3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_torchrun_nodes_with_separate_disks(tmp_path: Path, s3: dict[str, str]) -> None:
    """Two mount namespaces: the same path is a different folder for each node."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs the right to make mount namespaces")
    (tmp_path / "exp").mkdir()
    shutil.copy(elastic_trial.__file__, tmp_path / "exp")
    # A validation draws from the generators, so the undisturbed run has that of the interrupted one.
    config = elastic_trial.CONFIG.replace("100000", "{length}") + "min_validation_period: {batches: 7}\n"

    def train(length: int, run: str, storage: dict[str, str] | None) -> list[tuple[int, str]]:
        text = config.replace("{length}", str(length)) + (f"checkpoint_storage: {storage}\n" if storage else "")
        (tmp_path / "exp" / "c.yaml").write_text(text)
        (tmp_path / "runs").mkdir(exist_ok=True)
        port, nodes = free_port(), []
        for node in range(2):
            (tmp_path / f"node{node}").mkdir(exist_ok=True)
            script = f"""
            mount --bind {tmp_path}/node{node} {tmp_path}/runs
            exec {sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --node-rank={node} \
            --master-addr=127.0.0.1 --master-port={port} -m trial_runtime.train exp/c.yaml --run-dir runs/{run}
            """
            environment = {**os.environ, "PYTHONPATH": str(Path(elastic_trial.__file__).parent), "OMP_NUM_THREADS": "1"}
            nodes.append(
                subprocess.Popen(
                    ["unshare", "-m", "sh", "-c", textwrap.dedent(script)], cwd=tmp_path, env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
        try:
            return [_end(node) for node in nodes]
        finally:
            for started in nodes:
                started.kill()

    refused = train(10, "refused", None)
    assert all(code for code, _ in refused)
    assert re.search("separate folder on each machine", "".join(out for _, out in refused))
    assert not read_reports(tmp_path / "node0" / "refused" / "metrics.jsonl"), "it trained before it noticed"

    for length in (7, 12):
        ends = train(length, "separate", s3)
        assert [code for code, _ in ends] == [0, 0], ends
    assert not list((tmp_path / "node0" / "separate").glob("checkpoints/00000012-*/rank_1.pt"))
    assert "topsecret" not in "".join(out for _, out in ends)
    reports = read_reports(tmp_path / "node0" / "separate" / "metrics.jsonl", "training")
    losses = [float(each["loss"]) for report in reports for each in report.batch_metrics or []]
    assert len(losses) == 12
    whole = train(12, "whole", s3)
    assert [code for code, _ in whole] == [0, 0], whole
    reports = read_reports(tmp_path / "node0" / "whole" / "metrics.jsonl", "training")
    assert losses == [float(each["loss"]) for report in reports for each in report.batch_metrics or []]


def _end(node: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = node.communicate(timeout=200)
    return node.returncode, out
