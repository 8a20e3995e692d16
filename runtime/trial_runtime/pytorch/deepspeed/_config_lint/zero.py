"""ZeRO stages, and what goes with which: offload, unmanaged accumulation, pipelines, several engines, checkpoints."""

from __future__ import annotations

from typing import Any

from trial_runtime.pytorch.deepspeed._config_lint.problems import Problem, Problems, Setup, shown, stage_of, value_at


def check_zero(config: dict[str, Any], setup: Setup) -> Problems:
    """Check for combinations that a stage or a kind of engine does not have."""
    yield from _offload(config)
    yield from _unmanaged_accumulation(config, setup)
    yield from _reduction(config)
    yield from _groups(config, setup)
    yield from _checkpoints(config)


def offload_device(config: dict[str, Any], what: str) -> str:
    """Return ``cpu`` or ``nvme`` where ``"offload_optimizer"`` or ``"offload_param"`` is on, else empty."""
    device = value_at(config, f"zero_optimization.{what}.device", "none")
    return device if device in ("cpu", "nvme") else ""


def _offload(config: dict[str, Any]) -> Problems:
    stage = stage_of(config)
    optimizer, parameters = offload_device(config, "offload_optimizer"), offload_device(config, "offload_param")
    zero = "zero_optimization"
    if parameters and stage != 3:
        yield Problem(
            f"{zero}.offload_param", f'stage {stage} does not shard parameters: write "stage": 3, or remove it'
        )
    if optimizer and stage == 0:
        yield Problem(f"{zero}.offload_optimizer", 'stage 0 does not shard anything: write "stage": 1 (or 2, 3)')
    for what, device in (("offload_optimizer", optimizer), ("offload_param", parameters)):
        if device != "nvme":
            continue
        if not value_at(config, f"{zero}.{what}.nvme_path"):
            yield Problem(f"{zero}.{what}.nvme_path", 'missing: write the folder on the drive, or "device": "cpu"')
        if stage != 3:
            yield Problem(f"{zero}.{what}.device", f'"nvme" needs stage 3, this is {stage}: write "cpu"')
    for name, off in (("ratio", 1.0), ("super_offload", False)):
        value = value_at(config, f"{zero}.offload_optimizer.{name}", off)
        if value != off and stage != 3:
            yield Problem(f"{zero}.offload_optimizer.{name}", f"{shown(value)} needs stage 3: write {shown(off)}")
    if value_at(config, f"{zero}.zenflow") is not None and not (optimizer and stage):
        yield Problem(f"{zero}.zenflow", "needs a stage (1, 2 or 3) and an offload_optimizer: add them, or remove it")


def _unmanaged_accumulation(config: dict[str, Any], setup: Setup) -> Problems:
    stage = stage_of(config)
    managed = value_at(config, "managed_gradient_accumulation", True)
    if setup.kind == "pipeline" and stage > 1:
        yield Problem("zero_optimization.stage", f"a pipeline works with stages 0 and 1, not {stage}: write 1")
    if setup.kind == "engine module":
        if stage > 1:
            yield Problem(
                "zero_optimization.stage",
                f"ZeRO stage {stage}, but the engine is around an EngineModule: forwards go through the models, past "
                "the engine, which stages 0 and 1 allow only: write 1",
            )
        if managed:
            yield Problem(
                "managed_gradient_accumulation",
                'an engine around an EngineModule needs "managed_gradient_accumulation": false, else gradients that '
                "reach its parameters through other engines' losses are not shared among ranks: write false",
            )
    if managed:
        return
    here = "managed_gradient_accumulation"
    if setup.kind == "pipeline":
        yield Problem(here, "a pipeline counts its micro-batches itself: write true, or leave it out")
    if value_at(config, "compile.deepcompile"):
        yield Problem(here, "false does not go with compile.deepcompile: write true")
    if stage in (1, 3) and value_at(config, "zero_optimization.overlap_comm", stage == 3):
        yield Problem("zero_optimization.overlap_comm", f"needs {here}: true at stage {stage}: write false")


def _reduction(config: dict[str, Any]) -> Problems:
    operation = value_at(config, "gradient_allreduce_op", "mean")
    if not isinstance(operation, str) or operation.lower() not in ("mean", "sum"):
        yield Problem("gradient_allreduce_op", f'invalid value {shown(operation)}: write "mean" or "sum"')
    elif operation.lower() == "sum":
        for excluded, what in (
            (stage_of(config) == 3, "ZeRO stage 3"),
            (value_at(config, "zero_optimization.zenflow") is not None, "ZenFlow"),
            (value_at(config, "compile.deepcompile"), "DeepCompile"),
        ):
            if excluded:
                yield Problem("gradient_allreduce_op", f'"sum" does not go with {what}: write "mean"')
    clip = value_at(config, "gradient_clipping", 0.0)
    if isinstance(clip, int | float) and not isinstance(clip, bool) and not clip >= 0:
        yield Problem("gradient_clipping", f"{shown(clip)} is no norm: write the norm to clip at, 0.0 for no clipping")


def _groups(config: dict[str, Any], setup: Setup) -> Problems:
    """Check groups of ranks, which must all have one size."""
    for path in ("zero_optimization.zero_hpz_partition_size", "tensor_parallel.autotp_size"):
        size = value_at(config, path, 1)
        if setup.ranks and isinstance(size, int) and size > 1 and setup.ranks % size:
            yield Problem(path, f"{size} does not divide the {setup.ranks} ranks")


def _checkpoints(config: dict[str, Any]) -> Problems:
    if value_at(config, "checkpoint.writer") is not None:
        yield Problem(
            "checkpoint.writer",
            "what DeepSpeed's fast and decoupled writers write cannot be loaded again with torch 2.6 or later: "
            "remove it",
        )
    if value_at(config, "checkpoint.load_universal"):
        yield Problem(
            "checkpoint.load_universal",
            "the runtime converts a checkpoint itself where the number of ranks asks for it: write false",
        )
    if value_at(config, "checkpoint.use_node_local_storage"):
        yield Problem(
            "checkpoint.use_node_local_storage",
            "a checkpoint is verified as one directory that all ranks see: write false",
        )
    if value_at(config, "zero_optimization.legacy_stage1"):
        yield Problem("zero_optimization.legacy_stage1", "DeepSpeed does not have the old stage 1 any more: remove it")
