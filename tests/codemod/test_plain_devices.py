"""The devices of ranks: no number of one device is left where every rank would use it."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, PLAIN, blocked, body, convert, run

PARSED = "import argparse\nimport os\n\nparser = argparse.ArgumentParser()\nargs = parser.parse_args()\n"
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
        ("d = torch.device('vulkan', args.gpu)",) * 2,
        ("d = torch.device(0)", 'd = torch.device("cuda")'),
        ("z = data.to(1)", 'z = data.to("cuda")'),
        ("z = data.cuda(args.gpu, non_blocking=True)", "z = data.cuda(non_blocking=True)"),
        ("z = data.cuda(0)", "z = data.cuda()"),
        ("z = data.cuda(device)", "z = data.cuda(device)"),
        ("z = data.cuda(non_blocking=True)", "z = data.cuda(non_blocking=True)"),
        ("places = {'cuda:1': 'cuda:0'}", "places = {'cuda:1': 'cuda'}"),
        ("d = f'cuda:{local_rank}'", "d = f'cuda:{local_rank}'"),
        ("d = torch.device('cuda', torch.cuda.current_device())",) * 2,
        ("d = f'cuda:{torch.cuda.current_device()}'",) * 2,
        ("with torch.cuda.device(x.get_device()):\n    z = 1",) * 2,
        ("torch.cuda.set_device(args.gpu)", ""),
        ("with torch.cuda.device(args.gpu):\n    z = 1", "with torch.cuda.device(-1):\n    z = 1"),
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


def test_a_number_that_a_trainer_is_given_for_its_moves_is_that_of_the_rank(tmp_path: Path) -> None:
    text = """
        class Trainer:
            def __init__(self, model, optimizer, gpu_id):
                self.gpu_id = gpu_id
                self.model = model.to(gpu_id)
                self.optimizer = optimizer

            def train(self, loader):
                for x, y in loader:
                    x, y = x.to(self.gpu_id), y.to(self.gpu_id)
                    OWN_STEP


        model = Net()
        device = 0 if torch.cuda.is_available() else "cpu"
        trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device)
        trainer.train(DataLoader(data, batch_size=4))
        start = 0 if torch.cuda.is_available() else 1
        """
    after = convert(tmp_path, HEADER + textwrap.dedent(text))
    assert 'device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"\n' in after
    assert "start = 0 if torch.cuda.is_available() else 1\n" in after


def test_several_numbered_devices_are_refused(tmp_path: Path) -> None:
    text = LOOP.replace("for x", "model.fc.to('cuda:1')\nfirst = 'cuda:0'\nfor x")
    ((code, message),) = blocked(tmp_path, HEADER + text)
    assert code == Code.PLAIN_DEVICE and message.endswith("cuda:0, cuda:1")


@pytest.mark.parametrize(("devices", "is_reviewed"), [('"0"', False), ('"0, 1"', False), ('"2"', True), ("gpu", True)])
def test_a_launcher_chooses_the_devices_that_a_script_chooses_without_one(
    devices: str, is_reviewed: bool, tmp_path: Path
) -> None:
    """All ranks saw the one device, which those beyond the first failed on."""
    line = f"os.environ['CUDA_VISIBLE_DEVICES'] = {devices}\n"
    report = run(tmp_path, train="import os\ngpu = '1'\n" + line + HEADER + LOOP)
    after = (report.files[0].after or b"").decode()
    guard = '\nif "LOCAL_RANK" not in os.environ:\n    '
    assert guard + line in after and after.index(line) < after.index("import deepspeed")
    assert bool(list(report.findings(Severity.REVIEW))) is is_reviewed


def test_hidden_devices_of_a_script_that_starts_ranks_are_for_a_person_to_check(tmp_path: Path) -> None:
    line = "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\ntorch.distributed.init_process_group('nccl')\n"
    report = run(tmp_path, train=PARSED + HEADER + line + LOOP)
    assert Code.PLAIN_DEVICE in [f.code for _, f in report.findings(Severity.REVIEW)]


MOVED = HEADER + LOOP.replace(
    "model = Net()\n",
    'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\nmodel = Net().to(device)\n',
).replace("    optimizer.zero_grad()\n", "    x, y = x.to(device), y.to(device)\n    optimizer.zero_grad()\n")


def test_the_engine_moves_its_module_and_inputs_follow(tmp_path: Path) -> None:
    after = convert(tmp_path, MOVED)
    assert "model = Net()\n" in after and "match_torch(engine)\ndevice = engine.device\nfor x, y in loader:\n" in after
    assert "    x, y = x.to(device), y.to(device)\n" in after


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("model = Net()\nmodel.to(device)\n", "model = Net()\noptimizer ="),
        ("model = Net()\nmodel = model.to(device)\n", "model = Net()\noptimizer ="),
        ("model = Net().cuda()\nprint(model)\n", "model = Net()\n"),
        ("model = DDP(Net().to(device))\n", "model = Net().to(device)\n"),
        ("model = Net().to(device)\nother = copy(model)\n", "model = Net().to(device)\nother = copy(model)\n"),
        ("model = Net().to(device)\nmodel(data[0][0])\n", "model = Net().to(device)\nmodel(data[0][0])\n"),
        ("model = Net().to(device, torch.float64)\n", "model = Net().to(device, torch.float64)\n"),
        ("for _ in range(1):\n    model = Net().to(device)\n", "    model = Net().to(device)\n"),
        ("if True:\n    model = Net().to(device)\n", "    model = Net()\n"),
        ("model = nn.Linear(4, 1).to(device)\n", "model = nn.Linear(4, 1)\n"),
        ("model = Net()\nif data: model = model.to(device)\n", "model = Net()\noptimizer"),
        ("model = Net()\nif data: model.to(device); model.to(device)\n", "model = Net()\noptimizer"),
        ("model = Net()\nmodel.to(device); model.to(device)\n", "model = Net()\noptimizer"),
        ("model = Net()\nif torch.cuda.is_available():\n    model.to(device)\n", "model = Net()\noptimizer"),
        ("model = Net()\nif data: model.to(device)\nelse: data.x = 1\n", "if data: model.to(device)\nelse: "),
    ],
)
def test_a_move_goes_where_nothing_needs_it_before_the_engine(line: str, left: str, tmp_path: Path) -> None:
    after = convert(tmp_path, "from copy import copy\n" + MOVED.replace("model = Net().to(device)\n", line))
    assert left in after


def test_moves_in_a_block_go_whatever_that_is_of(tmp_path: Path) -> None:
    head, loop = MOVED.split("device = torch.device")
    text = f"{head}if __name__ == '__main__':\n" + textwrap.indent(f"device = torch.device{loop}", "    ")
    assert "    model = Net()\n    optimizer" in convert(tmp_path, text)


def test_a_fused_optimizer_needs_its_parameters_on_the_device(tmp_path: Path) -> None:
    assert "model = Net().to(device)\n" in convert(tmp_path, MOVED.replace("lr=0.1", "lr=0.1, fused=True"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for x, y in loader:", "if device == torch.device('cpu'):\n    workers = 0\nfor x, y in loader:"),
        ("for x, y in loader:", "index = device.index\nfor x, y in loader:"),
        ('torch.device("cuda" if torch.cuda.is_available() else "cpu")', '"cpu"'),
    ],
)
def test_a_device_that_is_more_than_a_place_stays(old: str, new: str, tmp_path: Path) -> None:
    assert "engine.device" not in convert(tmp_path, MOVED.replace(old, new))


def test_a_device_of_another_scope_stays(tmp_path: Path) -> None:
    head, loop = MOVED.split("model = Net().to(device)\n")
    lines = [
        "def main():",
        *(f"    {line}" for line in f"model = Net().to(device)\n{loop}".splitlines()),
        "",
        "main()",
        "",
    ]
    assert "engine.device" not in convert(tmp_path, head + "\n".join(lines))


@pytest.mark.parametrize(("call", "left"), [("self.copy_it()", "Net().to(device)"), ("print(1)", "Net()")])
def test_a_method_between_may_need_the_module_on_its_device(call: str, left: str, tmp_path: Path) -> None:
    text = f"""

class Trainer:
    def __init__(self):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Net().to(device)
        {call}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def copy_it(self):
        self.average = torch.optim.swa_utils.AveragedModel(self.model)

    def fit(self):
        for x, y in DataLoader(data, batch_size=4):
            OWN_STEP


Trainer().fit()
"""
    assert f"        self.model = {left}\n" in convert(tmp_path, HEADER + text)


def test_torchrun_gives_the_rank_to_a_script_that_waits_for_an_argument(tmp_path: Path) -> None:
    start = """
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=-1)
        args = parser.parse_args()
        if args.local_rank != -1:
            torch.distributed.init_process_group("nccl")
        """
    after = convert(tmp_path, HEADER + body(start) + LOOP)
    assert 'add_argument("--local_rank", type=int, default=local_rank(-1))\n' in after
    after = convert(tmp_path, HEADER + body(start).rpartition("if args")[0] + LOOP)
    assert "type=int, default=-1)" in after


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("model.fc = nn.DataParallel(model.fc)", "model.fc = nn.DataParallel(model.fc, device_ids=[local_rank()])"),
        (
            "teacher = nn.DataParallel(nn.Linear(4, 1), list(range(4)), 0, dim=1).cuda()",
            "teacher = nn.DataParallel(nn.Linear(4, 1), device_ids=[local_rank()], dim=1).cuda()",
        ),
    ],
)
def test_a_part_or_a_teacher_is_on_the_rank_s_gpu_alone(line: str, after: str, tmp_path: Path) -> None:
    """It took the GPUs of other ranks, and ended a rank whose engine had moved it to another one than GPU 0."""
    report = run(tmp_path, train=HEADER + LOOP.replace("optimizer =", f"{line}\noptimizer =", 1))
    assert report.files[0].after is not None and f"\n{after}\n" in report.files[0].after.decode()
    assert not list(report.findings(Severity.REVIEW))


def test_a_class_of_data_parallel_that_takes_the_gpus_of_other_ranks_is_for_review(tmp_path: Path) -> None:
    line = "class Spread(nn.DataParallel): ...\nteacher = Spread(nn.Linear(4, 1))"
    report = run(tmp_path, train=HEADER + LOOP.replace("optimizer =", f"{line}\noptimizer =", 1))
    message = "DataParallel stays around what no engine has as a whole, and takes the GPUs of the other ranks"
    assert [(f.code, f.message) for _, f in report.findings(Severity.REVIEW)] == [("DSM611", message)]


def test_a_wrapper_that_goes_in_another_script_is_not_for_review(tmp_path: Path) -> None:
    head, data = HEADER.split("data =")
    shared = head + "    def clear(self, optimizer):\n        optimizer.zero_grad()\n"
    wrapped = LOOP.replace("optimizer =", "model = nn.DataParallel(model)\noptimizer =", 1)
    script = f"from shared import *\ndata ={data}{wrapped}"
    report = run(tmp_path, shared=shared, one=script, two=script)
    assert all(b"DataParallel" not in file.after for file in report.files if file.after and file.path.stem != "shared")
    assert not list(report.findings(Severity.REVIEW))


def test_no_name_is_given_what_it_holds_where_a_wrapper_and_a_move_go(tmp_path: Path) -> None:
    """``model = model`` was left."""
    loop = LOOP.replace("optimizer =", "model = nn.DataParallel(model).to(DEVICE)  # all GPUs\noptimizer =", 1)
    report = run(tmp_path, train=f"{HEADER}DEVICE = torch.device('cpu')\n{loop}")
    (result,) = report.files
    assert result.after is not None
    assert b"model = model" not in result.after
    assert b"# all GPUs" in result.after


def test_a_device_that_nothing_reads_behind_the_engine_is_not_set_anew(tmp_path: Path) -> None:
    text = """
    class Client:
        def __init__(self, device):
            self.device = device
            self.model = Net().to(device)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def update(self):
            for x, y in DataLoader(data, batch_size=4):
                self.optimizer.zero_grad()
                F.mse_loss(self.model(x.to(self.device)), y).backward()
                self.optimizer.step()


    Client(torch.device("cpu")).update()
    """
    after = convert(tmp_path, body(text))
    assert "self.model = Net()\n" in after and "device = self.engine.device" not in after


WRAPPED = """
    model = WRAPPER
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        MOVE
        y = y.cuda()
        z = torch.autograd.Variable(x)
        optimizer.zero_grad()
        loss = F.mse_loss(model(z), y)
        loss.backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    ("wrapper", "move", "is_written"),
    [
        ("nn.DataParallel(Net()).cuda()", "pass", True),
        ("DDP(Net().cuda(args.gpu), device_ids=[args.gpu])", "pass", True),
        ("DDP(Net().cuda())", "pass", False),
        ("DDP(Net().cuda(), device_ids=None)", "pass", False),
        ("nn.DataParallel(Net()).cuda()", "x = x.cuda(non_blocking=True)", False),
        ("nn.DataParallel(Net()).cuda()", "if torch.cuda.is_available(): x = x.cuda()", False),
        ("nn.DataParallel(Net()).cuda()", "if args.gpu is not None: x = x.cuda(args.gpu)", True),
        ("nn.DataParallel(Net()).cuda()", "x = to_gpu(x)", False),
    ],
)
def test_batches_that_the_wrapper_moved_are_moved_by_the_engine(
    wrapper: str, move: str, is_written: bool, tmp_path: Path
) -> None:
    """As the example of ImageNet with DataParallel, and 3D-ResNets, whose batches crashed on a GPU."""
    helper = "\n\ndef to_gpu(x):\n    return x.cuda()\n\n\nloader = DataLoader(data, batch_size=4)\n"
    text = HEADER + PARSED + helper + textwrap.dedent(WRAPPED.replace("WRAPPER", wrapper).replace("MOVE", move))
    assert ("move_inputs=True)" in convert(tmp_path, text)) is is_written


def test_batches_that_the_wrapper_moved_need_the_runtime(tmp_path: Path) -> None:
    text = HEADER + "loader = DataLoader(data, batch_size=4)\n" + textwrap.dedent(WRAPPED)
    text = text.replace("WRAPPER", "nn.DataParallel(Net()).cuda()").replace("MOVE", "pass")
    found = blocked(tmp_path, text, replace(PLAIN, runtime=False))
    assert any(code == Code.PLAIN_DEVICE and "moved batches" in message for code, message in found)


@pytest.mark.parametrize(
    ("made", "converted"),
    [
        ("torch.device('cuda:0')", 'torch.device(f"cuda:{torch.cuda.current_device()}")'),
        (
            "torch.device('cuda:0' if cuda else 'cpu')",
            "torch.device(f\"cuda:{torch.cuda.current_device()}\" if cuda else 'cpu')",
        ),
        ("torch.device('cuda', args.gpu)", "torch.device('cuda', torch.cuda.current_device())"),
        ("torch.device('cuda', torch.cuda.current_device())",) * 2,
    ],
)
def test_a_device_whose_number_is_read_keeps_one(made: str, converted: str, tmp_path: Path) -> None:
    cuda = "cuda = torch.cuda.is_available()\n"
    after = convert(tmp_path, PARSED + HEADER + cuda + LOOP + f"d = {made}\nstart_session(d.index)\n")
    assert f"d = {converted}\nstart_session(d.index)\n" in after


def test_the_number_of_the_current_device_stays(tmp_path: Path) -> None:
    line = "d = torch.device('cuda', torch.cuda.current_device())\n"
    assert line in convert(tmp_path, HEADER + LOOP + line)


def test_a_device_on_the_line_of_the_optimizer_follows_the_engine(tmp_path: Path) -> None:
    lines = "device = torch.device('cpu')\nmodel = Net().to(device); "
    moved = LOOP.replace("model = Net()\n", lines).replace("model(x), y", "model(x.to(device)), y.to(device)")
    after = convert(tmp_path, HEADER + moved)
    assert "\nmodel = Net(); optimizer = torch" in after
    assert "match_torch(engine)\ndevice = engine.device\nfor" in after


@pytest.mark.parametrize(
    ("device", "is_reviewed"),
    [('torch.device("cpu")', True), ('torch.device("cuda" if torch.cuda.is_available() else "cpu")', False)],
)
def test_a_program_that_is_written_for_the_cpu_is_for_review(device: str, is_reviewed: bool, tmp_path: Path) -> None:
    """Beside a GPU its engine trained there, and the target network of a DQN stayed on the CPU."""
    moved = f"device = {device}\nmodel = Net().to(device)\ntarget = Net().to(device)\n"
    loop = LOOP.replace("model = Net()\n", moved).replace("model(x), y", "model(x.to(device)), target(x.to(device))")
    report = run(tmp_path, train=HEADER + loop)
    found = [finding.message for _, finding in report.findings(Severity.REVIEW) if finding.code == "DSM611"]
    assert len(found) == is_reviewed
    assert b"\ndevice = engine.device\n" in (report.files[0].after or b"")


def test_ranks_start_behind_the_devices_that_the_block_of_main_leaves_to_them(tmp_path: Path) -> None:
    """The ranks had seen all devices by then, so that one rank trained on another GPU than before."""
    block = '    os.environ["CUDA_VISIBLE_DEVICES"] = "4"\n    epochs = 2\n    train()\n'
    train = "\n\ndef train():\n" + textwrap.indent(LOOP, "    ")
    after = convert(tmp_path, "import os\n" + HEADER + train + '\n\nif __name__ == "__main__":\n' + block)
    assert '        os.environ["CUDA_VISIBLE_DEVICES"] = "4"\n    init_distributed()\n    epochs = 2\n' in after


def test_a_device_in_a_formatted_string_has_other_quotes_than_that(tmp_path: Path) -> None:
    line = """print(f"on {'cuda:' + str(1) if torch.cuda.is_available() else 'cpu'}")\n"""
    assert """print(f"on {'cuda' if torch.cuda.is_available() else 'cpu'}")""" in convert(
        tmp_path, HEADER + line + LOOP
    )


@pytest.mark.parametrize("saved", ["'cuda:0'", "'cuda:%d' % 0", "f'cuda:{0}'"])
def test_the_device_that_a_file_was_saved_on_keeps_its_number(saved: str, tmp_path: Path) -> None:
    load = f"model.load_state_dict(torch.load('model.pt', map_location={{{saved}: 'cuda:%d' % rank}}))"
    lines = ["rank = 0", "model = Net()", load, "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"]
    step = "    optimizer.zero_grad()\n    F.mse_loss(model(x), y).backward()\n    optimizer.step()\n"
    text = HEADER + "\n".join([*lines, "for x, y in DataLoader(data):"]) + "\n" + step
    assert f"map_location={{{saved}: " in convert(tmp_path, text)


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("torch.cuda.set_device(1)", "1"),
        ("torch.cuda.set_device(CONFIG['gpu'])", "CONFIG['gpu']"),
        ("device = torch.device('cuda:1')", "1"),
        ("device = torch.device('cuda', gpu)", "gpu"),
        ("device = torch.device(f'cuda:{gpu}')", "gpu"),
        ("torch.cuda.set_device(0)", None),
        ("first = 0\ndevice = torch.device(f'cuda:{first}')", None),
        ("device = torch.device('cuda:0')\ntorch.cuda.set_device(device)", None),
        ("for i in range(torch.cuda.device_count()):\n    name = f'cuda:{i}'", None),
    ],
)
def test_a_gpu_that_is_chosen_by_its_number_is_for_review(line: str, number: str | None, tmp_path: Path) -> None:
    """The choice was lost without a word: the script trained on GPU 0."""
    report = run(tmp_path, train="import sys\n" + HEADER + "gpu = int(sys.argv[1])\n" + line + "\n" + LOOP)
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    chosen = [message for message in found if message.startswith("this chooses a GPU by its number")]
    assert [f"({number})" in message for message in chosen] == ([True] if number is not None else [])


def test_a_condition_whose_wrapper_went_goes_with_it(tmp_path: Path) -> None:
    """It was left as ``if torch.cuda.device_count() > 1: pass``."""
    wrapped = LOOP.replace(
        "for x, y", "if torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\nfor x, y", 1
    )
    assert wrapped != LOOP
    assert "device_count" not in convert(tmp_path, f"from torch import nn\n{HEADER}{wrapped}")
