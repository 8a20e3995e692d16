"""Plain training loops that go back, clip and step by functions of timm."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from ds_migrate.files.prefilter import may_hold_loop
from ds_migrate.plain.recognition.libraries.library_scalers import with_own_scaler
from plain_loops import HEADER, LOOP, body, convert, run

TIMM = """
    from timm.optim import create_optimizer
    from timm.utils import NativeScaler


    def train_one_epoch(model, loader, optimizer, loss_scaler, max_norm=None):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            is_second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
            loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters(),
                        create_graph=is_second_order)


    def main(args):
        model = Net()
        optimizer = create_optimizer(args, model)
        loss_scaler = NativeScaler()
        train_one_epoch(model, DataLoader(data, batch_size=4), optimizer, loss_scaler)


    main(None)
    """


def test_a_class_takes_the_place_of_the_scaler_of_timm(tmp_path: Path) -> None:
    text = body(TIMM)
    assert may_hold_loop(text.encode())
    after = convert(tmp_path, text)
    ast.parse(after)
    assert "from timm.utils import dispatch_clip_grad\n" in after and "\n\n\nclass NativeScaler:\n" in after
    assert "        engine.backward(loss, scale_wrt_gas=False)\n        if need_update:\n" in after
    assert "            engine.allreduce_gradients()\n            if clip_grad is not None:\n" in after
    assert "    use_scaler(engine, loss_scaler._scaler)\n" in after
    assert "        loss_scaler(loss, engine, clip_grad=max_norm" in after
    report = run(tmp_path, train=text)
    lines = text.splitlines()
    found = {lines[finding.line - 1] for _, finding in report.findings() if "engine.backward" in finding.message}
    assert (
        len(found) == 1 and "import" in found.pop()
    )  # the class stands behind the imports, where no line is the user's
    assert run(tmp_path, train=after).files == []


def test_a_function_inside_the_loop_takes_its_create_graph_from_around_it(tmp_path: Path) -> None:
    inner = """\
        def backward(loss):
            loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters(), create_graph=second_order)

        second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
        for x, y in loader:
            optimizer.zero_grad()
            backward(F.mse_loss(model(x), y))


    def main("""
    text = TIMM[: TIMM.index("        for x, y in")] + inner + TIMM.partition("    def main(")[2]
    after = convert(tmp_path, body(text))
    assert "        backward(F.mse_loss(model(x), y))\n" in after and "loss_scaler(loss, engine, clip_grad" in after


@pytest.mark.parametrize(
    ("line", "imported"),
    [
        ("from timm.utils import NativeScaler as Scaler, accuracy",
         "from timm.utils import dispatch_clip_grad, accuracy"),
        ("from timm.utils import accuracy, NativeScaler", "from timm.utils import accuracy, dispatch_clip_grad"),
        ("from timm.utils.cuda import NativeScaler", "from timm.utils import dispatch_clip_grad"),
        ("from timm.utils import (\n    dispatch_clip_grad as clip,\n    NativeScaler,\n)",
         "from timm.utils import (\n    dispatch_clip_grad as clip,\n    )"),
    ],
)  # fmt: skip
def test_the_import_names_what_the_class_needs(line: str, imported: str) -> None:
    after = (with_own_scaler(f"import sys\n{line}\nx = 1\n".encode()) or b"").decode()
    ast.parse(after)
    assert imported.split("\n")[0] in after and "import torch\n" in after and after.endswith("\n\n\nx = 1\n")
    assert ("class Scaler:" in after) is ("as Scaler" in line)
    clips = "clip" if "as clip" in line else "dispatch_clip_grad"
    assert f"                {clips}(parameters, clip_grad, mode=clip_mode)\n" in after


def test_a_class_of_the_program_stays() -> None:
    assert with_own_scaler(b"from utils import NativeScaler\n") is None
    assert with_own_scaler(b"from timm.utils import accuracy\n\n\nclass NativeScaler:\n    pass\n") is None


@pytest.mark.parametrize("name", ["timm.utils.dispatch_clip_grad", "timm.utils.adaptive_clip_grad", "kit.grad_norm"])
def test_clipping_by_a_library_stays_on_averaged_gradients(name: str, tmp_path: Path) -> None:
    module, _, function = name.rpartition(".")
    line = f"    {function}(model.parameters(), 0.1)\n    optimizer.step()"
    after = convert(tmp_path, f"from {module} import {function}\n{HEADER}" + LOOP.replace("    optimizer.step()", line))
    assert '"zero_optimization": {"stage": 0}' in after and f"    {function}(model.parameters(), 0.1)\n" in after
    several = LOOP.replace("    optimizer.step()", f"    F.mse_loss(model(x), 2 * y).backward()\n{line}")
    after = convert(tmp_path, f"from {module} import {function}\n{HEADER}{several}")
    assert f"    engine.allreduce_gradients()\n    {function}(model.parameters(), 0.1)\n" in after
