"""Secrets of an experiment config are masked in what people are shown, and are as they were in what machines apply."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from ds_migrate.cli import main
from ds_migrate.redaction import masked_lines
from examples import module

FIELDS = """\
name: x
entrypoint: python3 -m determined.launch.torch_distributed --trial model_def:MyTrial --api-key {0} --password "{0} b"
environment:
  environment_variables:
    - WANDB_API_KEY={0}variable,more
    - "OTHER={0} quoted"
  registry_auth: {{username: me, password: {0}flow, serveraddress: here}}
  pod_spec:
    spec:
      containers:
        - env:
          - name: X
            value: {0}pod
hyperparameters:
  global_batch_size: 8
  hf_token: {0}plain, with a comma
  api_key: &anchor "{0}: # quoted"
  private_key: |
    {0}block
    {0}more
  credentials:
  - {0}item
  pad_token: shown
  tokens_per_batch: 12
checkpoint_storage:
  type: s3
  url: s3://user:{0}url@host/bucket
  options:
    anything: {0}option
  secret_key: {0}storage
data: {{token: "{0}a, b", urls: [https://me:{0}@host/x], "client_secret": {0}b}}
searcher: {{name: single, metric: loss, max_length: {{batches: 4}}}}
optimizations: {{aggregation_frequency: 2}}
"""
PLANTED = "PLANTED7"
CONFIG = FIELDS.format(PLANTED)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A trial whose config is changed at many lines, so that all its fields are in hunks."""
    (tmp_path / "model_def.py").write_text(module())
    (tmp_path / "const.yaml").write_text(CONFIG)
    return tmp_path


def preview(project: Path) -> str:
    """Return what a terminal gets of a preview."""
    outside, inside = pty.openpty()
    command = [sys.executable, "-m", "ds_migrate", "."]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
    with subprocess.Popen(command, cwd=project, stdin=inside, stdout=inside, stderr=inside, env=environment) as process:
        os.close(inside)
        shown = b""
        while True:
            try:
                if not (part := os.read(outside, 65536)):
                    break
            except OSError:  # the terminal's other end was closed
                break
            shown += part
    os.close(outside)
    assert process.returncode == 0
    return shown.decode()


def test_every_line_is_masked_and_nothing_else() -> None:
    shown = masked_lines(CONFIG.splitlines())
    assert PLANTED not in "\n".join(shown)
    assert len(shown) == len(CONFIG.splitlines())
    same = [line for line, other in zip(CONFIG.splitlines(), shown, strict=True) if line == other]
    assert [line for line in CONFIG.splitlines() if PLANTED not in line] == same
    for kept in ("username: me", "here}", "pad_token: shown", "model_def:MyTrial", "WANDB_API_KEY="):
        assert kept in "\n".join(shown)


def test_people_see_no_secret_and_machines_get_the_bytes(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    shown = {"preview": preview(project)}
    for name in ("html", "github"):
        main([".", "--format", name])
        shown[name] = "".join(capfd.readouterr())
    for name, text in shown.items():
        assert PLANTED not in text, name
    assert "&lt;masked&gt;" in shown["html"] and "<masked>" in shown["preview"]
    patch = subprocess.run(
        [sys.executable, "-m", "ds_migrate", "."], cwd=project, capture_output=True, check=True, timeout=120
    ).stdout
    assert PLANTED.encode() in patch and b"<masked>" not in patch
    main([".", "--write"])
    written = (project / "const.yaml").read_text()
    assert written.count(PLANTED) == CONFIG.count(PLANTED) - 2 and "<masked>" not in written  # the launcher's go
