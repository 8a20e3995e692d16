"""Secrets of an experiment config are in no file of a run and in no line that is printed; the trial has them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toys
from ds_migrate.redaction import MASK, is_secret_name
from forked_python import forked_python
from trial_runtime._redaction import (
    masked,
    masked_constants,
    masked_file,
    masked_hparams,
    masked_text,
    masked_words,
    restored,
    secrets_of,
    with_constants,
)
from trial_runtime.train.config.document import assign, parse_yaml, split_assignment
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import make_plan

TRIAL = """
import os
import pathlib
import toys


class Trial(toys.{base}):
    def __init__(self, context):
        assert context.get_hparam("service") == dict(api_key="KEY-hparam", url="https://me:KEY-url@host/x")
        assert context.get_data_config() == dict(password="KEY-data", path="/here", more=[dict(authToken="KEY-list")])
        assert context.get_experiment_config()["data"]["password"] == "KEY-data"
        assert context.get_experiment_config()["wandb_api_key"] == "KEY-top"
        assert os.environ["WANDB_API_KEY"] == "KEY-env" and os.environ["PLAIN"] == "KEY-plain"
        super().__init__(context)
"""
CONFIG = """
# the config of a team
name: secrets
entrypoint: model_def:Trial
wandb_api_key: KEY-top
hyperparameters:
  global_batch_size: 4
  pad_token: '<pad>'
  service: {api_key: KEY-hparam, url: 'https://me:KEY-url@host/x'}
searcher: {name: single, metric: validation_loss, max_length: {batches: 2}}
environment:
  environment_variables: [WANDB_API_KEY=KEY-env, PLAIN=KEY-plain]
  registry_auth: {username: me, password: KEY-registry}
  pod_spec: {spec: {containers: [{env: [{name: A, value: KEY-pod}]}]}}
data: {password: KEY-data, path: /here, more: [{authToken: KEY-list}]}
"""


def files_with_keys(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in ("const.yaml", "model_def.py"):
            content = path.read_bytes()
            if b"KEY-" in content:
                at = content.index(b"KEY-")
                yield f"{path}: {content[max(0, at - 60) : at + 30]!r}"


@pytest.mark.parametrize(("base", "slots"), [("SimplePT", 1), ("SimpleDS", 2)])
def test_keys_in_every_field_reach_the_trial_and_nothing_else(base: str, slots: int, tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(TRIAL.format(base=base))
    (tmp_path / "const.yaml").write_text(CONFIG)
    environment = {**os.environ, "PYTHONPATH": str(Path(toys.__file__).parent)}
    for length in (2, 4):  # anew, and resumed
        options = ["--run-dir", "run", "--slots", slots, "--config", f"searcher.max_length.batches={length}"]
        command = [forked_python(), "-m", "trial_runtime.train", "const.yaml", *map(str, options)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "KEY-" not in done.stdout + done.stderr
    for code in (tmp_path / "run").rglob("code"):
        for name in ("const.yaml", "model_def.py"):
            assert name == "model_def.py" or "KEY-" not in (code / name).read_text()
            (code / name).rename(code / f"seen-{name}")
    for seen in (tmp_path / "run").rglob("seen-model_def.py"):
        seen.unlink()  # the trial's own code, which has its own copy of them
    assert list(files_with_keys(tmp_path / "run")) == []
    copied = (tmp_path / "run" / "config.yaml").read_text()
    assert "# the config of a team" in copied
    assert f"WANDB_API_KEY={MASK}" in copied and "<pad>" in copied


@pytest.mark.parametrize(
    "config",
    [
        {"environment": {"environment_variables": ["KEY-x"]}},
        {"environment": {"environment_variables": "KEY-x"}},
        {"environment": {"environment_variables": {"cpu": {"A": "KEY-x"}}}},
        {"environment": {"environment_variables": {"cup": ["A=KEY-x"]}}},
        {"environment": {"environment_variables": [["A=KEY-x"]]}},
        {"environment": "A=KEY-x"},
        {"data": "KEY-x"},
        {"hyperparameters": "KEY-x"},
        {"checkpoint_storage": {"type": "s3", "bucket": "b", "access_key": 1, "secret_key": ["KEY-x"]}},
        {"checkpoint_storage": {"type": "url", "url": "https://me:KEY-x@"}},
        {"checkpoint_storage": {"type": "url", "url": "s3://b", "options": "KEY-x"}},
        {"checkpoint_storage": {"type": "azure", "container": "c", "account_url": "http://me:KEY-x@h"}},
    ],
)
def test_no_error_shows_a_key(config: dict[str, Any], tmp_path: Path) -> None:
    whole = {"entrypoint": "a:B", "searcher": {"max_length": 3, "metric": 5}, **config}
    with pytest.raises(ConfigError) as error:
        make_plan(whole, "c.yaml", tmp_path)
    assert "KEY-" not in str(error.value)


def test_errors_about_the_command_line_show_none() -> None:
    with pytest.raises(ConfigError) as error:
        split_assignment("--config", "data.api_key=[KEY-x")
    assert "KEY-" not in str(error.value)
    with pytest.raises(ConfigError) as error:
        assign({"data": {"api_key": "KEY-x"}}, "data.api_key.more", 1)
    assert "KEY-" not in str(error.value)
    words = ["c.yaml", "--config", "environment.environment_variables=[A=KEY-1]", "--hparam=api_key=KEY-2"]
    words += ["--config=data={token: KEY-3}", "--hparam", "lr=0.1", "--config", "wandb_key=KEY-4"]
    shown = masked_words(words)
    assert [word for word in shown if "KEY-" in word] == ["wandb_key=KEY-4"]  # no name of a secret
    assert shown[-3:-1] == ["lr=0.1", "--config"]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("api_key", True), ("wandbApiKey", True), ("AWS_SECRET_ACCESS_KEY", True), ("secret", True), ("token", True),
        ("hf-token", True), ("password", True), ("db_passwd", True), ("connection_string", True), ("apikey", True),
        ("pad_token", False), ("tokens", False), ("num_tokens", False), ("tokenizer", False), ("key", False),
        ("key_dim", False), ("secretary", False), ("passing", False), ("eos_token", False), ("token_dropout", False),
    ],
)  # fmt: skip
def test_names_of_secrets(name: str, is_one: bool) -> None:
    assert is_secret_name(name) == is_one


def test_what_is_masked_comes_back() -> None:
    document = parse_yaml(CONFIG)
    hidden = masked(document)
    whole = restored(hidden, json.loads(json.dumps(secrets_of(document))))
    assert {**whole, "environment": None} == {**document, "environment": None}
    assert restored({"data": 3}, secrets_of(document)) == {"data": 3}  # the config has changed since
    assert masked_hparams({"token": 5, "lr": 0.1, "n": True}) == {"token": MASK, "lr": 0.1, "n": True}


def test_what_a_search_draws_hides_constants_alone() -> None:
    spaces = {
        "api_key": "KEY-1", "inner": {"password": {"type": "const", "val": "KEY-2"}, "url": "s3://me:KEY-3@h"},
        "token": {"type": "categorical", "vals": ["cls", "mean"]}, "lr": {"type": "double", "minval": 0, "maxval": 1},
    }  # fmt: skip
    drawn = {
        "api_key": "KEY-1", "inner": {"password": "KEY-2", "url": "s3://me:KEY-3@h"}, "token": "cls", "lr": 0.5,
    }  # fmt: skip
    hidden = masked_constants(drawn, spaces)
    assert "KEY-" not in str(hidden)
    assert (hidden["token"], hidden["lr"]) == ("cls", 0.5)
    assert with_constants(json.loads(json.dumps(hidden)), spaces) == drawn


def test_entrypoints_hide_the_values_of_secret_options() -> None:
    text = "python3 train.py --api-key KEY-1 --token=KEY-2 --epochs 3"
    assert masked({"entrypoint": text})["entrypoint"] == f"python3 train.py --api-key {MASK} --token={MASK} --epochs 3"
    words = ["python3", "train.py", "--api-key", "KEY-1", "--token=KEY-2", "--epochs", "3"]
    assert "KEY-" not in str(masked({"entrypoint": words}))


def test_files_beside_the_code() -> None:
    assert b"KEY-" not in masked_file(b'{"api_key": "KEY-x", "n": 1}')
    assert b"KEY-" not in masked_file(b"a: {password: KEY-x}\n")
    for content in (b'{"secretary": 1}', b"[1, 2]", b"\xff secret", b"a: [secret", b"secret"):
        assert masked_file(content) == content
    text = "a: {password: 1}  # one\nb: 1\n"
    assert parse_yaml(masked_text(text, parse_yaml(text))) == {"a": {"password": MASK}, "b": 1}
