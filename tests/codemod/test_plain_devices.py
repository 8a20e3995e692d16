"""The devices of ranks: no number of one device is left where every rank would use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, convert, run

PARSED = "import argparse\nimport os\n\nargs = argparse.ArgumentParser().parse_args()\n"
GROUP = "torch.distributed.init_process_group('gloo')\n"


@pytest.mark.parametrize(
    ("line", "converted"),
    [
        ("d = torch.device('cuda:0')", "d = torch.device('cuda')"),
        ("d = torch.device('cuda:3' if args.gpu else 'cpu')", "d = torch.device('cuda' if args.gpu else 'cpu')"),
        ("d = torch.device(f'cuda:{args.gpu}')", 'd = torch.device("cuda")'),
        ("d = 'cuda:' + str(args.gpu)", 'd = "cuda"'),
        ("d = 'cuda:%d' % args.gpu", 'd = "cuda"'),
        ("d = 'cuda:{}'.format(args.gpu)", 'd = "cuda"'),
        ("d = torch.device('cuda', args.gpu)", "d = torch.device('cuda')"),
        ("d = torch.device(0)", 'd = torch.device("cuda")'),
        ("z = data.to(1)", 'z = data.to("cuda")'),
        ("z = data.cuda(args.gpu, non_blocking=True)", "z = data.cuda(non_blocking=True)"),
        ("z = data.cuda(0)", "z = data.cuda()"),
        ("z = data.cuda(device)", "z = data.cuda(device)"),
        ("z = data.cuda(non_blocking=True)", "z = data.cuda(non_blocking=True)"),
        ("d = f'cuda:{local_rank}'", "d = f'cuda:{local_rank}'"),
        ("torch.cuda.set_device(args.gpu)", ""),
    ],
)
def test_the_device_is_that_of_the_rank(line: str, converted: str, tmp_path: Path) -> None:
    after = convert(tmp_path, PARSED + HEADER + LOOP + f"{line}\nend = 1\n")
    assert after.endswith(f"    engine.step()\n{converted}\nend = 1\n".replace("\n\n", "\n"))


@pytest.mark.parametrize(
    "line", ["torch.cuda.set_device(args.gpu)", "d = f'cuda:{args.gpu}'", "z = data.cuda(args.gpu)"]
)
def test_a_program_that_starts_ranks_computes_their_devices(line: str, tmp_path: Path) -> None:
    assert f"{line}\n" in convert(tmp_path, PARSED + HEADER + GROUP + LOOP + f"{line}\n")


def test_a_device_of_a_helper_is_freed_too(tmp_path: Path) -> None:
    helper = "import torch\n\n\ndef device():\n    return torch.device('cuda:0')\n"
    report = run(tmp_path, helper=helper, train="import helper\n" + HEADER + LOOP + "d = helper.device()\n")
    written = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert "torch.device('cuda')" in written["helper.py"]


def test_several_numbered_devices_are_refused(tmp_path: Path) -> None:
    text = LOOP.replace("for x", "model.fc.to('cuda:1')\nfirst = 'cuda:0'\nfor x")
    ((code, message),) = blocked(tmp_path, HEADER + text)
    assert code == Code.PLAIN_DEVICE and message.endswith("cuda:0, cuda:1")


def test_hidden_devices_are_for_a_person_to_check(tmp_path: Path) -> None:
    report = run(tmp_path, train=PARSED + "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n" + HEADER + LOOP)
    assert [f.code for _, f in report.findings(Severity.REVIEW)] == [Code.PLAIN_DEVICE]
