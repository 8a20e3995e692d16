"""The Native API: a script that trains a trial class by one call, from a config that it holds itself."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trial_runtime._cluster_info import ENV_VAR, ClusterInfo, get_cluster_info

if TYPE_CHECKING:
    from trial_runtime.train.config.run_plan import RunPlan


def create(
    trial_def: type,
    config: dict[str, Any] | None = None,
    local: bool = False,
    test: bool = False,
    context_dir: str = "",
    command: list[str] | None = None,
    master_url: str | None = None,
) -> None:
    """Train a trial class from a config, as ``ds-train`` does from a config file.

    A plain ``python SCRIPT`` starts ``ds-train`` with the script as entrypoint. In the processes that ``ds-train``
    starts, this call trains the class and ends the process, as on a cluster; there the fields of the config file win
    over those of ``config``.

    Args:
        trial_def: a PyTorchTrial or DeepSpeedTrial.
        config: the experiment config, without ``entrypoint``.
        local: with ``test``, train and validate one batch in this process; otherwise without effect.
        test: train and validate one batch.
        context_dir: the folder with the code; by default that of the script.
        command, master_url: accepted and not used.

    Raises:
        ConfigError: the config cannot be run.
        RuntimeError: the program is no script, so that it cannot be started again.
        SystemExit: in a process of ``ds-train``, at the end; in the script, when the training failed.
    """
    del command, master_url
    if local and test:
        test_one_batch(trial_def, config)
        return
    info = get_cluster_info()
    if info is None:
        _start(config or {}, test, context_dir)
        return
    from trial_runtime.train.run.rank import train_class

    described = _described(info, trial_def, config or {}, test)
    os.environ[ENV_VAR] = described.to_json()
    train_class(described, trial_def)
    raise SystemExit(0)


def test_one_batch(trial_class: type, config: dict[str, Any] | None = None) -> None:
    """Train and validate one batch of a trial class in this process; nothing is kept.

    Raises:
        ConfigError: a hyperparameter is a search space, or the class is no trial.
    """
    from trial_runtime import pytorch

    hparams = _plan(trial_class, config or {}, test=True).hparams
    package: Any = pytorch
    if not issubclass(trial_class, pytorch.PyTorchTrial):
        from trial_runtime.pytorch import deepspeed

        package = deepspeed
    with (
        tempfile.TemporaryDirectory() as folder,
        package.init(hparams=hparams, exp_conf=config, run_dir=folder) as context,
    ):
        package.Trainer(trial_class(context), context).fit(max_length=pytorch.Batch(1), test_mode=True)


def create_trial_instance(
    trial_def: type,
    checkpoint_dir: str,
    config: dict[str, Any] | None = None,
    hparams: dict[str, Any] | None = None,
) -> Any:
    """Return an instance of a trial class in this process, to try it out.

    Args:
        trial_def: a PyTorchTrial or DeepSpeedTrial.
        checkpoint_dir: where its checkpoints would go.
        config: the experiment config.
        hparams: hyperparameters; by default those of the config.
    """
    from trial_runtime import core, pytorch

    kind: Any = pytorch.PyTorchTrialContext
    if not issubclass(trial_def, pytorch.PyTorchTrial):
        from trial_runtime.pytorch import deepspeed

        kind = deepspeed.DeepSpeedTrialContext
    given = _plan(trial_def, config or {}, test=True).hparams if hparams is None else hparams
    context = kind._make(core._dummy_init(checkpoint_storage=checkpoint_dir), given, config)
    context._prepare_standalone()
    return trial_def(context)


def _start(config: dict[str, Any], test: bool, context_dir: str) -> None:
    """Run ``ds-train`` on the config, with this script as entrypoint."""
    from trial_runtime.train.cli import main

    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        raise RuntimeError("experimental.create() starts its script again in each process: put it into a file.")
    context = Path(context_dir or Path(script).parent).resolve()
    entry = shlex.join(["python3", os.path.relpath(Path(script).resolve(), context), *sys.argv[1:]])
    document = {"name": Path(script).stem, **config, "entrypoint": entry}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(json.dumps(document, indent=2), encoding="utf-8")  # JSON is YAML
        code = main([str(file), str(context), *(["--test"] if test else [])])
    if code != 0:
        raise SystemExit(code)


def _described(info: ClusterInfo, trial_class: type, config: dict[str, Any], test: bool) -> ClusterInfo:
    """Return the description of the run with what the script's config adds to the config file."""
    from trial_runtime.train.config.defaults import DEFAULTS

    document = _completed(config, info.trial._config, DEFAULTS)
    document["hyperparameters"] = {**(config.get("hyperparameters") or {}), **info.trial.hparams}
    plan = _plan(trial_class, document, test or info.run.fit.test_mode)
    trial = dataclasses.replace(info.trial, hparams=plan.hparams, _config=plan.document)
    run = dataclasses.replace(
        info.run,
        fit=plan.fit,
        searcher_metric=plan.searcher_metric,
        smaller_is_better=plan.smaller_is_better,
        aggregation_frequency=plan.aggregation_frequency,
        average_aggregated_gradients=plan.average_aggregated_gradients,
    )
    return dataclasses.replace(info, trial=trial, run=run)


def _plan(trial_class: type, config: dict[str, Any], test: bool) -> RunPlan:
    from trial_runtime.train.config.run_plan import make_plan

    document = {**config, "entrypoint": f"{trial_class.__module__}:{trial_class.__qualname__}"}
    return make_plan(document, "experimental.create()", Path.cwd(), test_mode=test)


def _completed(own: dict[str, Any], file: dict[str, Any], defaults: Any) -> dict[str, Any]:
    """Return the script's config with the fields of the config file, except those that only have their default."""
    merged = dict(own)
    for name, value in file.items():
        default = defaults.get(name) if isinstance(defaults, dict) else None
        if isinstance(value, dict) and isinstance(own.get(name), dict):
            merged[name] = _completed(own[name], value, default or {})
        elif name not in own or value != default:
            merged[name] = value
    return merged
