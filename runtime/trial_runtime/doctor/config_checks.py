"""Checks of a DeepSpeed config: problems, ranks, ops to compile, drives, memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ds_migrate.deepspeed_facts import optimizer_states, training_state

from trial_runtime.doctor import machine
from trial_runtime.doctor.render import Row, Section, State
from trial_runtime.pytorch.deepspeed._config_lint import Problem, Setup, lint
from trial_runtime.pytorch.deepspeed._config_lint.problems import enabled, stage_of, value_at
from trial_runtime.pytorch.deepspeed._config_lint.zero import offload_device
from trial_runtime.pytorch.deepspeed._patches import jit_notice

_FUSED = {"adam": "fused_adam", "adamw": "fused_adam", "lamb": "fused_lamb", "lion": "fused_lion"}
_ON_CPU = {"adam": "cpu_adam", "adamw": "cpu_adam", "lion": "cpu_lion", "adagrad": "cpu_adagrad"}


def check(config: dict[str, Any], source: str, known: int | None) -> list[Section]:
    """Check everything that a config needs, memory apart.

    Args:
        config: the config.
        source: the file that it is from.
        known: data-parallel ranks; None when they are not known.
    """
    sections = [problems(config, source, known), ranks(config, known), ops(config)]
    offload = drives(config)
    return [*sections, offload] if offload is not None else sections


def problems(config: dict[str, Any], source: str, known: int | None) -> Section:
    """Return the problems of the config. What a trial usually adds in code is only a note."""
    sure = lint(config, Setup(ranks=known, complete=False, here=False))
    maybe = [problem for problem in lint(config, Setup(ranks=known, here=False)) if problem not in sure]
    rows = [Row("from", source)]
    rows += [_row(problem, "bad" if problem.fatal else "note") for problem in sure]
    rows += [_row(problem, _state(problem, config)) for problem in maybe]
    return Section("Config", rows if len(rows) > 1 else [*rows, Row("problems", "none", "good")])


def _row(problem: Problem, state: State) -> Row:
    return Row(problem.path, problem.text, state)


def _state(problem: Problem, config: dict[str, Any]) -> State:
    """Return ``bad`` for values that do not fit; what is missing or "auto" is filled in by code."""
    there = value_at(config, problem.path) is not None
    return "bad" if problem.fatal and there else "note"


def ranks(config: dict[str, Any], known: int | None) -> Section:
    """Return the numbers of ranks that the config trains on."""
    train, micro, steps = (
        value_at(config, name)
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    rows = [Row("ranks", str(known) if known else "not given: --ranks N shows what each would need")]
    if all(isinstance(size, int) and size > 0 for size in (train, micro)):
        share = micro * (steps if isinstance(steps, int) else 1)
        text = f"train_batch_size {train}, micro-batch {micro}"
        if isinstance(steps, int):
            only = "no number of ranks" if train % share else f"{train // share} ranks only"
            rows.append(Row("fixed", f"{text} and accumulation {steps} fit {only}", "note"))
        else:
            rows.append(Row("at most", f"{text}: {train // micro} ranks"))
    return Section("Ranks", rows)


def ops(config: dict[str, Any]) -> Section:
    """Return what DeepSpeed would compile at the start, and whether that is possible here."""
    needed = needed_ops(config)
    if not needed:
        return Section("Ops", [Row("to compile", "none", "good")])
    return Section(
        "Ops", [Row(name, f"{why}; {_availability(name)[0]}", _availability(name)[1]) for name, why in needed]
    )


def needed_ops(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return DeepSpeed's ops that the config asks for, with the reason."""
    needed: list[tuple[str, str]] = []
    block = config.get("optimizer")
    kind = block.get("type", "") if isinstance(block, dict) else ""
    name = str(kind).lower()
    offload = offload_device(config, "offload_optimizer")
    if not value_at(config, "optimizer.params.torch_adam", False):
        op = _ON_CPU.get(name) if offload else _FUSED.get(name)
        if op:
            hint = ' ("torch_adam": true does without)' if name in ("adam", "adamw") and not offload else ""
            needed.append((op, f"optimizer {kind}{' with offload' if offload else ''}{hint}"))
    if "nvme" in (offload, offload_device(config, "offload_param")):
        needed.append(("async_io", "offload to nvme"))
    if any(
        value_at(config, f"zero_optimization.{key}", False)
        for key in ("zero_quantized_weights", "zero_quantized_gradients")
    ):
        needed.append(("quantizer", "ZeRO++ quantization"))
    if value_at(config, "compile.deepcompile", False):
        needed.append(("dc", "compile.deepcompile"))
    return needed


def _availability(op: str) -> tuple[str, State]:
    import torch
    from deepspeed.git_version_info import installed_ops

    if installed_ops.get(op):
        return "built with DeepSpeed", "good"
    if (lock := jit_notice.lock_of(op)).exists():
        return f"is being compiled; if not, a process was killed while compiling it: remove {lock}", "bad"
    if not machine.cxx():
        return "needs a C++ compiler, and there is none: install one, or leave the setting out", "bad"
    if torch.cuda.is_available() and not machine.nvcc():
        return "needs nvcc, and there is none: set CUDA_HOME, or leave the setting out", "bad"
    if jit_notice.is_compiled(op):
        return f"was compiled before, in {jit_notice.folder_of(op)}", "good"
    return "is compiled at the first start, about a minute", "note"


def drives(config: dict[str, Any]) -> Section | None:
    """Check the folders that states are offloaded to; None without any."""
    rows = []
    for what in ("offload_optimizer", "offload_param"):
        path = value_at(config, f"zero_optimization.{what}.nvme_path")
        if offload_device(config, what) == "nvme" and path:
            there = Path(path).is_dir() and os.access(path, os.W_OK)
            text = "can be written to" if there else "is not a folder that can be written to on this machine"
            rows.append(Row(what, f"{path} {text}", "good" if there else "bad"))
    return Section("Drives", rows) if rows else None


def model_states(
    config: dict[str, Any], parameters: int, known: int | None, available: tuple[int, str] | None = None
) -> Section:
    """Return the memory a rank at every stage, with the config's marked.

    Args:
        available: bytes that a rank can have, and whose they are; None: compared with nothing.
        config: the config.
        parameters: of the model.
        known: ranks; 1 is taken when they are not known.
    """
    count = known or 1
    name = str(value_at(config, "optimizer.type", "")) if isinstance(config.get("optimizer"), dict) else ""
    states = optimizer_states(name, momentum=bool(value_at(config, "optimizer.params.momentum")))
    half = next((kind for kind in ("fp16", "bf16") if enabled(config, kind)), "fp32")
    optimizer, weights = offload_device(config, "offload_optimizer"), offload_device(config, "offload_param")
    rows = [
        Row(
            "model",
            f"{parameters:,} parameters in {half}, {name or 'Adam assumed'}, {count} rank{'s' if count > 1 else ''}; "
            "activations and buffers come on top",
        )
    ]
    where = "drive" if "nvme" in (optimizer, weights) else "host"
    for stage in range(4):
        offload = "parameters" if optimizer and weights else "optimizer" if optimizer else "none"
        need = training_state(stage, half, offload, states)
        host, device = need.on_host(count) * parameters, need.on_device(count) * parameters
        is_own, lacks = stage == stage_of(config), ""
        if is_own and available is not None and device > available[0]:
            lacks = f": more than the {_size(available[0])} of {available[1]}"
        rows.append(
            Row(
                f"stage {stage}",
                f"{_size(device)} a rank"
                + (f" and {_size(host)} on the {where}" if host else "")
                + (" (this config)" if is_own else "")
                + lacks,
                "bad" if lacks else "good" if is_own else "",
            )
        )
    if weights and not optimizer:
        rows.append(Row("offload_param", "not counted without offload_optimizer", "note"))
    return Section("Memory", rows)


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
