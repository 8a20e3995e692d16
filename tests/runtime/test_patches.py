"""Every patch of DeepSpeed does its work, and the installed DeepSpeed still has the fault that it is for."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import inspect
import logging
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed
import pytest
import torch
import toys
from deepspeed.accelerator import get_accelerator, real_accelerator
from deepspeed.ops.op_builder.builder import OpBuilder
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
from deepspeed.runtime.dataloader import RepeatingLoader
from torch import nn
from trial_runtime.errors import InvalidDeepSpeedConfigException, InvalidExperimentException
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch.deepspeed import _patches

RUNTIME = Path(det_ds.__file__).parents[2]


def initialized(
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, net: nn.Module | None = None, **config: Any
) -> tuple[Any, nn.Module]:
    net = net or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = make(net.parameters(), lr=0.1)
    return deepspeed.initialize(model=net, optimizer=optimizer, config=toys.ds_config(**config))[0], net


def wrapped(context: Any, *arguments: Any, **config: Any) -> Any:
    return context.wrap_model_engine(initialized(*arguments, **config)[0])


@contextlib.contextmanager
def messages_of(name: str) -> Iterator[list[str]]:
    """The messages that a logger lets through at its usual level, whatever earlier tests made of it."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler, logger = Keep(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        with mock.patch.object(logger, "disabled", False), mock.patch.object(logger, "level", logging.WARNING):
            logger.manager._clear_cache()  # type: ignore[attr-defined]
            yield found
    finally:
        logger.manager._clear_cache()  # type: ignore[attr-defined]
        logger.removeHandler(handler)


def accelerator_notice() -> bool:
    with (
        messages_of("DeepSpeed") as found,
        mock.patch.object(real_accelerator, "ds_accelerator", None),
        mock.patch.object(real_accelerator, "accel_logger", logging.getLogger("DeepSpeed")),
    ):
        real_accelerator.get_accelerator()
    return any("Setting accelerator to CPU" in message for message in found)


def future_warnings() -> bool:
    with det_ds.init(), warnings.catch_warnings(record=True) as found, contextlib.ExitStack() as stack:
        warnings.resetwarnings()  # pytest replaces the filters of the process, among them the patch's
        warnings.simplefilter("always")
        for patch in _patches.active():
            if patch.name == "future_warnings" and patch.in_process is not None:
                stack.enter_context(patch.in_process())
        deepspeed.comm.all_gather_into_tensor(torch.zeros(1), torch.ones(1))
        deepspeed.comm.reduce_scatter_tensor(torch.zeros(1), torch.ones(1))
    return any(issubclass(warning.category, FutureWarning) for warning in found)


def repeating_loader() -> bool:
    return not hasattr(RepeatingLoader([1]), "__len__")


def gradient_dtypes() -> bool:
    with det_ds.init():
        for dtype, number in ((torch.float64, 1 / 3), (torch.complex64, 1 + 2j)):
            engine, net = initialized(net=nn.Linear(4, 1, dtype=dtype), stage=0)
            (weight, _), x = net.parameters(), torch.full((1, 4), number, dtype=dtype)
            try:
                engine.backward(net(x).sum().abs())
            except AssertionError:
                return True
            (expected,) = torch.autograd.grad(net(x).sum().abs(), weight)
            assert weight.grad is not None and torch.equal(weight.grad, expected)
    return False


def gradient_hooks() -> bool:
    with det_ds.init():
        engine, net = initialized(stage=1)
        kept = weakref.ref(net)
        engine.backward(engine(torch.zeros(1, 4)).sum())
        engine.step()
        del engine, net
        gc.collect()
    return kept() is not None


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


def scalar_clipping() -> bool:
    with det_ds.init():
        net = Scaled()
        engine, _ = initialized(net=net, stage=0, gradient_clipping=0.5)
        engine.backward(engine(torch.full((2,), 2.0)).sum())  # a gradient of 4, clipped to 0.5
        try:
            engine.step()
        except RuntimeError as error:
            assert "broadcast" in str(error)
            return True
    torch.testing.assert_close(net.scale.detach(), torch.tensor(3.0 - 0.1 * 0.5), atol=1e-6, rtol=0)
    return False


def shared_memory_comm() -> bool:
    table = mock.patch.dict(deepspeed.ops.__compatible_ops__, {"deepspeed_shm_comm": True})  # there is a compiler
    compiled = mock.patch.object(ShareMemCommBuilder, "load")
    with table, compiled as load, det_ds.init():
        importlib.import_module("deepspeed.comm.torch").build_shm_op()
    return bool(load.called)


def muon_compilation() -> bool:
    modules = {name: module for name, module in sys.modules.items() if ".muon" not in name}
    compiled = mock.patch.object(torch, "compile", side_effect=lambda function: function)
    with mock.patch.dict(sys.modules, modules, clear=True), compiled as compile_:
        muon = importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
        is_set_up = bool(compile_.called)
        assert muon.muon_update(torch.ones(4, 4), torch.zeros(4, 4)).any()
    assert compile_.called  # when it is used
    return is_set_up


def initialize_notices() -> bool:
    with messages_of("DeepSpeed") as found, det_ds.init():
        initialized(stage=1)
    return any("untested optimizer" in message for message in found)


def second_config() -> bool:
    net = nn.Linear(4, 4)
    args = det_ds.AttrDict({"deepspeed_config": toys.ds_config(stage=2)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with det_ds.init():
        try:
            engine = deepspeed.initialize(args, model=net, optimizer=optimizer, config=toys.ds_config(stage=1))[0]
        except AssertionError:
            return True
    assert (engine.zero_optimization_stage(), args.deepspeed_config["zero_optimization"]["stage"]) == (1, 2)
    return False


def config_check() -> bool:
    with det_ds.init():
        try:
            initialized(gradient_cliping=1.0)
        except InvalidDeepSpeedConfigException:
            return False
    return True


def jit_notice() -> bool:
    class Builder(OpBuilder):  # type: ignore[misc]
        def absolute_name(self) -> str:
            return "deepspeed.ops.some_op"

        def sources(self) -> list[str]:
            return []

    with (
        messages_of("trial_runtime.pytorch.deepspeed") as ours,
        messages_of("DeepSpeed") as theirs,
        mock.patch("deepspeed.ops.op_builder.builder.OpBuilder.jit_load", return_value=None),
        det_ds.init(),
    ):
        Builder("some_op").jit_load()
    return not any("some_op" in message for message in ours + theirs)


def initial_step() -> bool:
    with det_ds.init():
        engine, _ = initialized(torch.optim.Adam, bf16={"enabled": True})
    return any(int(state.get("step", 0)) > 0 for state in engine.optimizer.optimizer.state.values())


def adagrad() -> bool:
    net = nn.Linear(4, 4)
    groups: list[dict[str, Any]] = [{"params": [net.weight], "lr": 0.5}, {"params": [net.bias]}]
    optimizer = torch.optim.Adagrad(groups, lr=0.1)
    with det_ds.init():
        engine = deepspeed.initialize(model=net, optimizer=optimizer, config=toys.ds_config(stage=1))[0]
    return [group["lr"] for group in engine.optimizer.optimizer.param_groups] != [0.5, 0.1]


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))


def parameter_broadcast() -> bool:
    with det_ds.init():
        try:
            initialized(net=Scalar())
        except RuntimeError as error:
            assert "to view Float as Byte" in str(error)
            return True
    return False


def plain_engines() -> bool:
    with det_ds.init(), _patches.applied_to_load():
        engine, _ = initialized(stage=1, bf16={"enabled": True})
    return bool(engine.zero_optimization_stage() or engine.bfloat16_enabled())


def loss_scaling() -> bool:
    with mock.patch.object(type(get_accelerator()), "is_fp16_supported", lambda _: True), det_ds.init() as context:
        engine = wrapped(context, fp16={"enabled": True, "loss_scale": 128})
        before = engine.module[1].bias.detach().float().clone()
        engine.backward(engine(torch.ones(1, 4).half()).float().sum())
        engine.step()
    return not torch.allclose(before - engine.module[1].bias.float(), torch.full((4,), 0.1), atol=1e-2)


def fp32_master_names() -> bool:
    with det_ds.init() as context:
        engine = wrapped(context, bf16={"enabled": True})
        return "0.weight" not in repr(engine.optimizer.state_dict())


def unreached_parameters() -> bool:
    def decaying(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, weight_decay=0.1)

    with det_ds.init() as context:
        engine = wrapped(context, decaying)
        unused = engine.module[1].weight.detach().clone()
        engine.backward(engine.module[0](torch.ones(1, 4)).sum())
        engine.step()
    return not torch.equal(unused, engine.module[1].weight)


def backward_loss() -> bool:
    with det_ds.init() as context:
        engine = wrapped(context, accumulation=2)
        loss = engine(torch.ones(1, 4)).sum()
        return not torch.equal(engine.backward(loss), loss)


def cross_engine_backward() -> bool:
    with det_ds.init() as context:
        generator, discriminator = wrapped(context), wrapped(context)
        try:
            generator.backward(discriminator(generator(torch.ones(1, 4))).sum())
        except RuntimeError:
            return True
    return discriminator.module[0].weight.grad is None


def repeated_backward() -> bool:
    with det_ds.init() as context:
        engine = wrapped(context, stage=1)
        for _ in range(2):
            try:
                engine.backward(engine(torch.ones(1, 4)).sum())
            except InvalidExperimentException:
                return False
        before = engine.module[1].bias.detach().clone()
        engine.step()
    return not torch.allclose(before - engine.module[1].bias, torch.full((4,), 0.2))


# By patch: whether the fault shows.
FAULTS: dict[str, Callable[[], bool]] = {
    function.__name__: function
    for function in (
        accelerator_notice, future_warnings, repeating_loader, gradient_dtypes, gradient_hooks, scalar_clipping,
        muon_compilation, shared_memory_comm, initialize_notices, second_config, config_check, jit_notice,
        initial_step, adagrad,
        parameter_broadcast, plain_engines, loss_scaling, fp32_master_names, unreached_parameters,
        backward_loss, cross_engine_backward, repeated_backward,
    )
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the user has hidden every accelerator
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)


@pytest.mark.parametrize("name", [patch.name for patch in _patches.PATCHES])
def test_a_patch_removes_a_fault_that_deepspeed_still_has(name: str) -> None:
    if name == "future_warnings" and "deprecated" not in inspect.getsource(torch.distributed.all_gather_into_tensor):
        pytest.skip(f"torch {torch.__version__} does not warn of what DeepSpeed calls; 2.13 does")
    with _patches.switched_off(name):
        assert FAULTS[name](), f"DeepSpeed {deepspeed.__version__} has no need of the patch {name}: remove it"
    assert not FAULTS[name]()


def test_every_patch_has_a_reason_and_is_applied_in_one_way() -> None:
    for patch in _patches.PATCHES:
        assert patch.why.endswith(".") and patch.versions and patch.issue
        ways = (patch.in_process, patch.in_run, patch.in_load, patch.on_engine)
        assert sum(way is not None for way in ways) == 1


def test_a_patch_that_is_switched_off_is_not_in_force() -> None:
    with _patches.switched_off("adagrad"):
        assert "adagrad" not in [patch.name for patch in _patches.active()]
    assert _patches.active() == list(_patches.PATCHES)


def replaced_parts(source: str) -> list[int]:
    """Lines that assign to attributes of what is imported from DeepSpeed."""
    tree = ast.parse(source)
    theirs = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
        if (node.module if isinstance(node, ast.ImportFrom) else alias.name or "").startswith("deepspeed")  # type: ignore[union-attr]
    }
    lines = []
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("patch.object", "setattr")):
            targets = [ast.Attribute(value=node.args[0], attr="")]
        for target in targets:
            inner: Any = target
            while isinstance(inner, ast.Attribute | ast.Subscript):
                inner = inner.value
            if inner is not target and isinstance(inner, ast.Name) and inner.id in theirs:
                lines.append(inner.lineno)
    return lines


def test_parts_of_deepspeed_are_replaced_in_patches_only() -> None:
    assert replaced_parts("import deepspeed\ndeepspeed.initialize = 1\ndeepspeed.ops.table['a'] = 2") == [2, 3]
    elsewhere = [
        f"{file.relative_to(RUNTIME)}:{line}"
        for file in sorted(RUNTIME.rglob("*.py"))
        if file.parent.name != "_patches"
        for line in replaced_parts(file.read_text(encoding="utf-8"))
    ]
    assert elsewhere == []
