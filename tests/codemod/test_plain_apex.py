"""Plain training loops that train with apex.amp where a flag of the program asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, convert, run

INITIALIZE = """\
if args.fp16:
    try:
        from apex import amp
    except ImportError:
        raise ImportError("install apex")
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
"""
BRANCH = """\
    # the loss is scaled in half precision
    if args.fp16:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    else:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
SAVE = """\
state = {"model": model.state_dict()}
if args.fp16:
    state["amp"] = amp.state_dict()
torch.save(state, "last.pt")
"""
ARGUMENTS = "import argparse\nparser = argparse.ArgumentParser()\nargs = parser.parse_args()\n"
TEXT = HEADER + ARGUMENTS + LOOP.replace("for x, y", INITIALIZE + "for x, y")
TEXT = TEXT.replace("    loss.backward()\n    optimizer.step()\n", BRANCH) + SAVE


def test_a_branch_for_apex_ends_with_an_error_and_the_others_stay(tmp_path: Path) -> None:
    (result,) = run(tmp_path, train=TEXT).files
    after = (result.after or b"").decode()
    assert 'if args.fp16:\n    raise NotImplementedError("apex.amp does not run with DeepSpeed: use torch.' in after
    assert after.endswith(
        "    # the loss is scaled in half precision\n    engine.backward(loss)\n    engine.step()\n"
        'state = {"model": model.state_dict()}\nif is_main_rank():\n    torch.save(state, "last.pt")\n'
    )
    assert '"gradient_clipping": 1.0,' in after and "import amp" not in after
    reviews = [f for f in result.findings if f.severity is Severity.REVIEW]
    (line,) = [number for number, text in enumerate(TEXT.splitlines(), 1) if text.startswith("if args.fp16:")][:1]
    assert [(f.code, line <= f.line <= line + 6) for f in reviews] == [(Code.PLAIN_PRECISION, True)]


def test_findings_stand_on_the_lines_of_the_original(tmp_path: Path) -> None:
    (result,) = run(tmp_path, train=TEXT).files
    lines = TEXT.splitlines()
    (step,) = [f.line for f in result.findings if f.code == Code.PLAIN_STEP]
    assert lines[step - 1] == "    optimizer.step()"
    (save,) = [f.line for f in result.findings if f.code == Code.PLAIN_RANK_ZERO]
    assert lines[save - 1] == 'torch.save(state, "last.pt")'


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("apex.amp.register_half_function(torch, 'einsum')", True),
        ("optimizer = apex.optimizers.FusedAdam(model.parameters())", False),
    ],
)
def test_the_package_apex_is_used_for_amp_alone(line: str, is_known: bool, tmp_path: Path) -> None:
    """As in DPR's trainers."""
    text = TEXT.replace("        from apex import amp\n", f"        import apex\n        {line}\n", 1)
    text = text.replace("amp.", "apex.amp.").replace("apex.apex.", "apex.")
    if is_known:
        (result,) = run(tmp_path, train=text).files
        assert b"raise NotImplementedError" in (result.after or b"") and b"import apex" not in (result.after or b"")
    else:
        assert "DSM654" in dict(blocked(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        HEADER
        + "from apex import amp\n"
        + LOOP.replace("for x, y", "model, optimizer = amp.initialize(model, optimizer)\nfor x, y"),
        HEADER
        + "try:\n    from apex import amp\n    HAS_APEX = True\nexcept ImportError:\n    HAS_APEX = False\n"
        + LOOP.replace("for x, y", "if HAS_APEX:\n    model, optimizer = amp.initialize(model, optimizer)\nfor x, y"),
        TEXT.replace("import argparse", "from apex.parallel import DistributedDataParallel as DDP\nimport argparse"),
    ],
    ids=["always", "where it is installed", "parallel"],
)
def test_apex_that_no_flag_turns_off_is_refused(tmp_path: Path, text: str) -> None:
    assert {code for code, _ in blocked(tmp_path, text)} == {Code.PLAIN_FRAMEWORK}


TIMM = """\
try:
    from apex import amp
    from apex.parallel import DistributedDataParallel as ApexDDP
    from apex.parallel import convert_syncbn_model
    has_apex = True
except ImportError:
    has_apex = False
"""
CHOICE = """\
use_amp = None
if args.amp:
    if args.amp_impl == "apex":
        assert has_apex, "APEX is not installed"
        use_amp = "apex"
    else:
        use_amp = "native"
if args.sync_bn:
    if has_apex and use_amp == "apex":
        model = convert_syncbn_model(model)
    else:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
scaler = None
if use_amp == "apex":
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
elif use_amp == "native":
    scaler = torch.amp.GradScaler()
if CONDITION:
    model = ApexDDP(model, delay_allreduce=True)
else:
    model = DDP(model)
"""


def test_an_import_of_apex_that_may_fail_has_failed(tmp_path: Path) -> None:
    text = (HEADER + ARGUMENTS + LOOP).replace("import torch\n", "import torch\n" + TIMM, 1)
    text = text.replace("for x, y", CHOICE + "for x, y").replace("CONDITION", 'has_apex and use_amp == "apex"')
    text = text.replace("    loss.backward()\n    optimizer.step()\n", "    if scaler is not None:\n        "
        "scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()\n    else:\n        "
        "loss.backward()\n        optimizer.step()\n")  # fmt: skip
    (result,) = run(tmp_path, train=text).files
    after = (result.after or b"").decode()
    assert "\nhas_apex = False\n" in after and "apex." not in after.replace("apex.amp does not run", "")
    assert 'if use_amp == "apex":\n    raise NotImplementedError("apex.amp does not' in after
    assert 'elif use_amp == "native":\n    scaler = torch.amp.GradScaler()\n' in after
    assert "if args.sync_bn:\n    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)\n" in after
    ((code, message),) = blocked(
        tmp_path, text.replace('has_apex and use_amp == "apex":\n    model = A', "has_apex:\n    model = A")
    )
    assert code == Code.PLAIN_FRAMEWORK and message.startswith("apex.")


def test_an_import_of_apex_that_tells_what_is_missing_has_failed(tmp_path: Path) -> None:
    """As in SimCLR: without the flag beside it, the error would never come."""
    imports = 'try:\n    sys.path.append("apex")\n    from apex import amp\n    has_apex = True\n'
    imports += 'except:\n    print("Please install apex")\n    has_apex = False\n'
    start = "if has_apex and args.amp:\n    model, optimizer = amp.initialize(model, optimizer)\n"
    scaled = "with amp.scale_loss(loss, optimizer) as scaled:\n            scaled.backward()"
    step = f"    if has_apex and args.amp:\n        {scaled}\n    else:\n        loss.backward()\n"
    text = (HEADER + ARGUMENTS + LOOP).replace("import torch\n", "import sys\nimport torch\n" + imports, 1)
    after = convert(tmp_path, text.replace("for x, y", start + "for x, y").replace("    loss.backward()\n", step))
    assert "\nhas_apex = False\n" in after and "print(" not in after
    assert "if args.amp:\n    raise NotImplementedError(" in after


@pytest.mark.parametrize(
    "imports",
    ["from apex import amp", "try:\n            from apex import amp\n        except ImportError:\n            raise"],
)
def test_a_condition_that_only_imports_apex_goes_with_the_import(imports: str, tmp_path: Path) -> None:
    text = TEXT.replace("for x, y", "def fit(args):\n    if args.fp16:\n        IMPORT\n    print(1)\n\nfor x, y")
    (result,) = run(tmp_path, train=text.replace("IMPORT", imports)).files
    assert "def fit(args):\n    if is_main_rank():\n        print(1)\n" in (result.after or b"").decode()
