"""Checkpoints of plain loops: the conversion reads and writes the files of the original."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of
from plain_loops import HEADER, LOOP, body, convert, reviews, run

EPOCHS = LOOP.replace("for x, y in loader:\n", "for epoch in range(3):\n  for x, y in loader:\n") + "  "
SAVE = 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")\n'
RESUME = """\
state = torch.load("last.pt")
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
"""
STAGE_0, STAGE_1 = '"zero_optimization": {"stage": 0},', '"zero_optimization": {"stage": 1},'


def test_the_whole_state_is_saved_and_loaded_at_stage_1(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + EPOCHS.replace("for epoch", RESUME + "for epoch") + SAVE)
    assert STAGE_1 in after
    assert 'load_optimizer_state(optimizer, state["optimizer"])\n' in after
    assert (
        '  save_on_main_rank({"model": model.state_dict(), "optimizer": optimizer_state(optimizer)}, "last.pt")'
        in after
    )


@pytest.mark.parametrize("path", ["str(args.output)", "str(folder / name)"])
def test_a_file_that_a_library_writes_by_a_path_used_elsewhere_is_for_review(path: str, tmp_path: Path) -> None:
    """As booster.save_model(str(args.output)): what the text did not show to be a path was written by all ranks."""
    lines = "args.output.parent.mkdir(exist_ok=True)\nfolder.mkdir(exist_ok=True)\n"
    text = "import xgboost\nfrom config import args, folder, name\n" + HEADER + LOOP + lines
    report = run(tmp_path, train=text + f"xgboost.train().save_model({path})\n")
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert found == ["every rank writes this file, at the same time"]


def test_a_method_that_a_name_holds_is_for_review_although_a_class_has_one_of_that_name(tmp_path: Path) -> None:
    own = "class Cache:\n    def save(self, path):\n        torch.save(self, path)\n\n\n"
    lines = 'save = getattr(model, "save", None)\nif callable(save):\n    save(str(Path("out") / "model"))\n'
    report = run(tmp_path, train=f"from pathlib import Path\n{HEADER}{own}{LOOP}{lines}")
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert found == ["every rank writes this file, at the same time"]


@pytest.mark.parametrize("write", ["torch.save(model.state_dict(), f)", "f.write(b'')"])
def test_rank_0_alone_flushes_a_file_to_the_disk(write: str, tmp_path: Path) -> None:
    """Where the other ranks write nowhere, os.fsync() failed: the null device is no file on a disk."""
    save = f'with open("last.pt", "wb") as f:\n    {write}\n    f.flush()\n    os.fsync(f.fileno())\n'
    after = convert(tmp_path, "import os\n" + HEADER + LOOP + save)
    assert 'open("last.pt" if is_main_rank() else os.devnull, "wb")' in after
    assert "    if is_main_rank():\n        os.fsync(f.fileno())" in after or (
        "        torch.save(model.state_dict(), f)\n    f.flush()\n    if is_main_rank():\n" in after
    )


@pytest.mark.parametrize("line", ["print('Saved', {})", "_ = {}", "epoch > 0 and {}"])
@pytest.mark.parametrize("save", [SAVE.strip(), "torch.save(model.state_dict(), 'last.pt')"], ids=["shares", "weights"])
def test_rank_0_alone_saves_inside_an_expression(save: str, line: str, tmp_path: Path) -> None:
    """All ranks wrote the file at the same time: as an argument of print(), it counted as what all compute."""
    after = convert(tmp_path, HEADER + EPOCHS + line.format(save) + "\n")
    assert "save_on_main_rank(" in after and "torch.save(" not in after


@pytest.mark.parametrize(
    ("made", "state"),
    [
        ("def snapshot(m, o):\n    return {'model': m.state_dict(), 'optimizer': o.state_dict()}\n",
         "snapshot(model, optimizer)"),
        ("class Checkpoint:\n    def __init__(self, o):\n        self.state = o.state_dict()\n",
         "Checkpoint(optimizer)"),
        ("class Holder:\n    def __init__(self, o):\n        self.o = o\n    def inner(self):\n"
         "        return self.o.state_dict()\n    def state(self):\n        return [self.inner()]\n",
         "Holder(optimizer).state()"),
    ],
    ids=["function", "class", "method that calls another"],
)  # fmt: skip
def test_all_ranks_make_the_state_that_rank_0_saves(made: str, state: str, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + made + EPOCHS + f'torch.save({state}, "last.pt")\n')
    assert STAGE_1 in after and f'  save_on_main_rank({state}, "last.pt")' in after


def test_state_that_a_property_returns_keeps_stage_0(tmp_path: Path) -> None:
    made = "class Holder:\n    def __init__(self, o):\n        self.o = o\n    @property\n    def state(self):\n"
    text = f"{HEADER}{made}        return self.o.state_dict()\n{EPOCHS}torch.save(Holder(optimizer).state, 'last.pt')\n"
    assert STAGE_0 in convert(tmp_path, text)


RUN = "class Run:\n    def __init__(self, o):\n        self.o = o\n"


@pytest.mark.parametrize(
    "save",
    [
        "model.optimizer = optimizer\ntorch.save(model, 'whole.pt')\n",
        "model.optimizer = optimizer\nimport copy\nbest = copy.deepcopy(model)\n",
        "torch.save({'model': model.state_dict(), 'optimizer': [optimizer]}, 'whole.pt')\n",
        RUN + "import pickle\npickle.dumps(Run(optimizer))\n",
        RUN + "import store\nstore.Writer().put('a', Run(optimizer))\n",
    ],
)
def test_an_optimizer_that_is_pickled_with_what_keeps_it_has_no_shares(save: str, tmp_path: Path) -> None:
    """Its groups held ZeRO's tensors in the file, each rank's share of all weights, and moved no parameter."""
    assert STAGE_0 in convert(tmp_path, HEADER + LOOP + save)
    alone = "torch.save(model, 'whole.pt')\nimport copy, store\nbest = copy.deepcopy(model)\nstore.put(model)\n"
    assert STAGE_1 in convert(tmp_path, HEADER + LOOP + alone)


def test_the_page_shows_the_checkpoint(tmp_path: Path) -> None:
    page = page_of(Code.PLAIN_CHECKPOINT)
    assert page.block("After") in convert(tmp_path, HEADER + LOOP + page.block("Before"))


@pytest.mark.parametrize(
    "condition", ["epoch % 2 == 0", "epoch == len(loader) - 1", 'os.path.isdir("out")', "epoch > first"]
)
def test_a_condition_that_is_the_same_on_all_ranks_keeps_stage_1(condition: str, tmp_path: Path) -> None:
    text = EPOCHS.replace("for epoch", "first = 0\nif True:\n    first = 1\nfor epoch")
    after = convert(tmp_path, "import os.path\n" + HEADER + text + f"if {condition}: {SAVE}")
    assert STAGE_1 in after and f"if {condition}: save_on_main_rank(" in after.replace(":\n      ", ": ")


@pytest.mark.parametrize(
    "save",
    [
        f"if rank == 0: {SAVE}",
        f"if rank == 0 and loss.item() < 1: {SAVE}",
        f"torch.distributed.init_process_group('gloo')\n  if loss.item() < 1: {SAVE}",
        f"loss.item() < 1 and {SAVE}",
        f"try: pass\n  except KeyboardInterrupt: {SAVE}",
        "saved = [o.state_dict() for o in (model, optimizer)]\n",
        "state = optimizer.state_dict\n",
        "elsewhere.save(optimizer)\n",
        "print(optimizer.state)\n",
        "model.fc.load_state_dict({})\n",
    ],
)
def test_what_other_ranks_may_not_reach_or_shares_cannot_give_keeps_stage_0(save: str, tmp_path: Path) -> None:
    after = convert(tmp_path, "import elsewhere\n" + HEADER + "rank = elsewhere.rank()\n" + EPOCHS + save)
    assert STAGE_0 in after and "optimizer_state" not in after


@pytest.mark.parametrize(
    ("save", "agreed"),
    [
        (f"if loss.item() < 1: {SAVE}", "if rank_0_decides(loss.item() < 1):\n      save_on_main_rank("),
        (f"if loss > 1: continue\n  {SAVE}", "if rank_0_decides(loss > 1): continue\n  save_on_main_rank("),
        (
            f"if epoch > 1:\n    if loss < 1: {SAVE}",
            "if epoch > 1:\n    if rank_0_decides(loss < 1): save_on_main_rank(",
        ),
    ],
)
def test_rank_0_decides_where_all_ranks_save_their_shares(save: str, agreed: str, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + EPOCHS + save)
    assert STAGE_1 in after and agreed in after


def test_a_condition_of_a_caller_counts(tmp_path: Path) -> None:
    function = f"def save():\n    {SAVE}\n\n"
    unconditional = HEADER + function + EPOCHS + "save()\n"
    assert STAGE_1 in convert(tmp_path, unconditional)
    assert STAGE_0 in convert(tmp_path, unconditional.replace("  save()", "  if rank < 1: save()"))
    after = convert(tmp_path, unconditional.replace("  save()", "  if loss < 1: save()"))
    assert STAGE_1 in after and "  if rank_0_decides(loss < 1): save()" in after


@pytest.mark.parametrize("made", ["Net()", "torch.hub.load('pytorch/vision', 'resnet18')"])
def test_weights_of_a_wrapper_in_a_dict_that_is_filled_by_name_are_for_review(tmp_path: Path, made: str) -> None:
    text = LOOP.replace("model = Net()\n", f"model = DDP({made})\n")
    text += "models = {}\nfor name in open('names'):\n    models[name] = model\n    models[name].state_dict()\n"
    report = run(tmp_path, train=HEADER + text)
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert any("names of weights are saved without module." in message for message in found)


def test_a_forward_pass_of_the_wrapper_runs_the_hooks_of_the_module(tmp_path: Path) -> None:
    text = LOOP.replace("model(x)", "model.forward(x)")
    after = convert(tmp_path, HEADER + text.replace("model = Net()\n", "model = DDP(Net())\n"))
    assert "loss = F.mse_loss(model(x), y)\n" in after


def test_the_names_of_weights_stay_those_of_the_wrapper(tmp_path: Path) -> None:
    text = LOOP.replace("model = Net()\n", "net = Net()\nnet.load_state_dict(torch.load('a'))\nmodel = DDP(net)\n")
    text += "\n\ndef load(module, path):\n    module.load_state_dict(torch.load(path), strict=False)\n\n\n"
    text += "load(model, 'b')\nwrapped, bare = model.state_dict(), model.module.state_dict()\n"
    after = convert(tmp_path, HEADER + text)
    assert "net.load_state_dict(torch.load('a'))" in after
    assert '{key.removeprefix("module."): value for key, value in torch.load(path).items()}, strict=False' in after
    assert 'wrapped, bare = model.state_dict(prefix="module."), model.state_dict()' in after


@pytest.mark.parametrize(
    ("use", "is_changed"),
    [
        ("for name, p in model.named_parameters():\n    p.requires_grad = name.startswith('module.fc')\n", True),
        ("shadow = {name: p.clone() for name, p in model.named_parameters()}\n", True),
        ("names = dict(model.named_parameters())\n", True),
        ("decayed = [p for n, p in model.named_parameters() if 'module.fc' in n]\n", True),
        ("decayed = [p for n, p in model.named_parameters() if not any(d in n for d in ['bias'])]\n", False),
        ("decayed = [p for n, p in model.named_parameters() if n.endswith('.bias')]\n", False),
        ("names = dict(model.module.named_parameters())\n", False),
    ],
)
def test_the_names_of_parameters_stay_those_of_the_wrapper(use: str, is_changed: bool, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + LOOP.replace("model = Net()\n", f"model = DDP(Net())\n{use}"))
    assert ('model.named_parameters(prefix="module")' in after) is is_changed


PARTS = """

def restore(path, {star}parts):
    state = torch.load(path)
    for name, part in {items}:
        part.load_state_dict(state[name], strict=False)


"""


@pytest.mark.parametrize(
    ("star", "items", "call"),
    [
        ("**", "parts.items()", "restore('a', model=model, other={other}, optimizer=optimizer)"),
        ("*", "enumerate(parts)", "restore('a', optimizer, {other}, model)"),
    ],
)
@pytest.mark.parametrize(("other", "is_reviewed"), [("Net()", False), ("DDP(Net())", True)])
def test_what_is_loaded_into_arguments_of_any_number_has_the_names_of_the_wrapper(
    star: str, items: str, call: str, other: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = LOOP.replace("model = Net()\n", "model = DDP(Net())\n") + PARTS.format(star=star, items=items)
    report = run(tmp_path, train=HEADER + text + call.format(other=other))
    (result,) = report.files
    after = (result.after or b"").decode()
    assert '{key.removeprefix("module."): value for key, value in state[name].items()}, strict=False' in after
    found = [f.message for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_CHECKPOINT]
    assert any("keeps its wrapper" in message for message in found) is is_reviewed


UNWRAPPED = [
    "raw = model.module if ddp else model",
    "if ddp:\n    raw = model.module\nelse:\n    raw = model",
    "states = model.module.state_dict() if ddp else model.state_dict()\nraw = bare",
]


@pytest.mark.parametrize("unwrap", UNWRAPPED)
@pytest.mark.parametrize(("test", "is_reviewed"), [("ddp", False), ("not ddp", True)])
def test_a_module_that_is_unwrapped_as_it_was_wrapped_needs_no_check(
    unwrap: str, test: str, is_reviewed: bool, tmp_path: Path
) -> None:
    start = "ddp = bool(data)\nif ddp:\n    torch.distributed.init_process_group('gloo')\nbare = model = Net()\n"
    wrapped = f"optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nif {test}:\n    model = DDP(model)\n"
    loop = (
        "optimizer.zero_grad()\nF.mse_loss(model(torch.zeros(2, 4)), torch.zeros(2, 1)).backward()\noptimizer.step()\n"
    )
    save = f"{unwrap}\ntorch.save(raw.state_dict(), 'a.pt')\n"
    report = run(tmp_path, train=HEADER + start + wrapped + loop + save)
    assert bool(list(report.findings(Severity.REVIEW))) is is_reviewed
    (result,) = report.files
    assert "torch.save(raw.state_dict(), 'a.pt')" in (result.after or b"").decode()


WRAPPED, BARE = "state = net.module.state_dict()\n", "state = net.state_dict()\n"
FOUND_BARE = {
    "else": f"    if hasattr(net, 'module'):\n        {WRAPPED}    else:\n        {BARE}",
    "not": f"    if not isinstance(net, DDP):\n        {BARE}    else:\n        {WRAPPED}",
    "return": f"    if hasattr(net, 'module'):\n        return net.module.state_dict()\n    {BARE}",
    "expression": "    state = net.module.state_dict() if isinstance(net, DDP) else net.state_dict()\n",
    "unwrapped": f"    if isinstance(net, DDP):\n        net = net.module\n    {BARE}",
}


@pytest.mark.parametrize("state", [pytest.param(text, id=name) for name, text in FOUND_BARE.items()])
def test_a_module_that_is_found_in_no_wrapper_keeps_its_names(state: str, tmp_path: Path) -> None:
    function = f"def state_of(net):\n{state}    return state\n\n\n"
    loop = LOOP.replace("model = Net()\n", "model = DDP(Net())\n")
    report = run(tmp_path, train=HEADER + function + loop + "torch.save(state_of(model), 'a.pt')\n")
    assert not list(report.findings(Severity.REVIEW))
    assert b"prefix" not in (report.files[0].after or b"prefix")


@pytest.mark.parametrize("moved", ["model = model.cuda()", "if torch.cuda.is_available():\n    model = model.cuda()"])
def test_a_wrapper_that_is_moved_keeps_its_names(moved: str, tmp_path: Path) -> None:
    loop = LOOP.replace("model = Net()\n", f"model = nn.DataParallel(Net())\n{moved}\n")
    after = convert(tmp_path, HEADER + loop + "torch.save(model.state_dict(), 'a.pt')\n")
    assert "torch.save(model.state_dict(prefix=\"module.\"), 'a.pt')" in after


def test_a_copy_of_a_wrapper_keeps_its_names(tmp_path: Path) -> None:
    loop = LOOP.replace("model = Net()\n", "model = nn.DataParallel(Net())\nema = copy.deepcopy(model)\n")
    saved = "torch.save(ema.module.state_dict(), 'a.pt')\ntorch.save(ema.state_dict(), 'b.pt')\n"
    after = convert(tmp_path, "import copy\n" + HEADER + loop + saved)
    assert "torch.save(ema.state_dict(), 'a.pt')" in after
    assert "torch.save(ema.state_dict(prefix=\"module.\"), 'b.pt')" in after


def test_the_condition_of_a_wrapper_is_known_as_an_attribute(tmp_path: Path) -> None:
    trainer = """
        class Trainer:
            def __init__(self, args):
                self.args = args
                self.model = Net()
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
                if args.several:
                    self.model = nn.DataParallel(self.model)

            def train(self):
                for x, y in DataLoader(data, batch_size=4):
                    OWN_STEP
                torch.save(self.model.module.state_dict() if self.args.several else self.model.state_dict(), "a.pt")


        Trainer(args).train()
        """
    report = run(tmp_path, train=body(trainer))
    assert not [f for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_CHECKPOINT]


def test_a_module_that_is_unpacked_may_be_in_a_wrapper(tmp_path: Path) -> None:
    loop = LOOP.replace("model = Net()\n", "model = DDP(Net())\n")
    save = "def save(nets):\n    net, _ = nets\n    torch.save(net.state_dict(), 'a.pt')\n\n\n"
    report = run(tmp_path, train=HEADER + save + loop + "save([model, 1])\n")
    (finding,) = [f for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_CHECKPOINT]
    assert "saved without module." in finding.message


@pytest.mark.parametrize(("built", "is_reviewed"), [("net, 1", False), ("DDP(net), 1", True), ("build()", False)])
def test_a_model_that_a_function_returns_beside_others_is_wrapped_as_it_is_there(
    built: str, is_reviewed: bool, tmp_path: Path
) -> None:
    """As in DETR: ``model_without_ddp = model``, then a wrapper under a condition, and its ``module``."""
    build = f"def build():\n    net = Net()\n    return net, 1\n\n\ndef build_model():\n    return {built}\n\n\n"
    build = (
        build if built == "build()" else build.replace("def build_model():\n", "def build_model():\n    net = Net()\n")
    )
    wrap = (
        "model, _ = build_model()\nbare = model\nif len(data) > 1:\n    model = DDP(model)\n    bare = model.module\n"
    )
    text = LOOP.replace("model = Net()\n", wrap)
    report = run(tmp_path, train=HEADER + build + text + "torch.save(bare.state_dict(), 'a')\n")
    found = [f for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_CHECKPOINT]
    assert bool(found) is is_reviewed


@pytest.mark.parametrize(
    "state",
    [
        "model.module.state_dict() if hasattr(model, 'module') else model.state_dict()",
        "model.module.state_dict() if hasattr(model, 'module') and isinstance(model.module, nn.Module) "
        "else model.state_dict()",
    ],
)
@pytest.mark.parametrize(("more", "is_reviewed"), [("", False), (" and len(data)", True)])
def test_a_module_that_is_asked_for_its_wrapper_needs_no_check(
    state: str, more: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = LOOP.replace("model = Net()\n", "model = Net()\nif len(data) > 1:\n    model = DDP(model)\n")
    report = run(tmp_path, train=HEADER + text + f"torch.save({state.replace(' else', more + ' else')}, 'a')\n")
    found = [f for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_CHECKPOINT]
    assert bool(found) is is_reviewed


@pytest.mark.parametrize(
    ("asked", "is_reviewed"),
    [
        ("type(net) in (nn.parallel.DataParallel, nn.parallel.DistributedDataParallel)", False),
        ("isinstance(net, DDP)", False),
        ("len(data) > 1", True),
    ],
)
def test_a_module_whose_wrapper_a_function_asks_for_needs_no_check(
    asked: str, is_reviewed: bool, tmp_path: Path
) -> None:
    """As ``de_parallel()`` of YOLOv5."""
    text = LOOP.replace("model = Net()\n", "model = Net()\nif len(data) > 1:\n    model = DDP(model)\n")
    bare = f"def is_parallel(net):\n    return {asked}\n\n\ndef bare(net):\n"
    bare += "    return net.module if is_parallel(net) else net\n\n\n"
    report = run(tmp_path, train=HEADER + bare + text + "torch.save(bare(model).state_dict(), 'a')\n")
    found = [f for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_CHECKPOINT]
    assert bool(found) is is_reviewed


def test_a_wrapper_under_a_condition_is_for_a_person_to_check(tmp_path: Path) -> None:
    text = LOOP.replace("model = Net()\n", "model = Net()\nif len(data) > 1:\n    model = DDP(model)\n")
    report = run(tmp_path, train=HEADER + text + "torch.save(model.state_dict(), 'a')\n")
    (finding,) = [f for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_CHECKPOINT]
    assert "saved without module." in finding.message


def test_rank_0_alone_opens_what_it_saves_to(tmp_path: Path) -> None:
    save = """
    from pathlib import Path

    def save(model, path):
        with path.open("wb") as file:
            torch.save(model.state_dict(), file)


    def load(path):
        with path.open("rb") as file:
            return torch.load(file)
    """
    loop = f"from saving import save\n{HEADER}{LOOP}    save(model, Path('w.pt'))\n"
    report = run(tmp_path, saving="import torch\n" + textwrap.dedent(save), train=loop)
    after = {result.path.name: (result.after or b"").decode() for result in report.files}
    assert 'with path.open("wb") if is_main_rank() else open(os.devnull, "wb") as file:' in after["saving.py"]
    assert '    with path.open("rb") as file:\n' in after["saving.py"]


def test_one_blank_line_stays_where_a_wrapper_was(tmp_path: Path) -> None:
    text = LOOP.replace("model = Net()\n", "model = Net()\n\nif len(data) > 1:\n    model = DDP(model)\n\nrate = 0.1\n")
    assert "\nmodel = Net()\n\nrate = 0.1\n" in convert(tmp_path, HEADER + text)


TEMPORARY = """
    import tempfile


    def train(model, optimizer):
        with tempfile.TemporaryDirectory() as folder:
            for x, y in DataLoader(data, batch_size=4):
                STEP
            torch.save(model.state_dict(), folder + "/best.pt")
            END
        return model


    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    """


@pytest.mark.parametrize("end", ["model.load_state_dict(torch.load(folder + '/best.pt'))", "return model"])
def test_all_ranks_have_one_temporary_folder_and_leave_it_together(end: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(TEMPORARY.replace("END", end)))
    assert "() as folder:\n        folder = rank_0_text(folder)\n" in after
    lines = [line.strip() for line in after.partition(end.partition("(")[0])[2].splitlines()]
    if end.startswith("return"):
        assert f"        wait_for_all_ranks()\n        {end}\n" in after
    else:
        assert lines[1] == "wait_for_all_ranks()"


@pytest.mark.parametrize(
    "made", ["with tempfile.TemporaryDirectory() as folder:", "folder = tempfile.mkdtemp()\n        if data:"]
)
def test_a_folder_that_some_ranks_may_make_alone_is_for_review(made: str, tmp_path: Path) -> None:
    text = TEMPORARY.replace("with tempfile.TemporaryDirectory() as folder:", made).replace("END", "pass")
    text = text.replace("    train(model, torch", "    if input('train? '):\n        train(model, torch")
    report = run(tmp_path, train=body(text))
    assert any("another temporary folder" in finding.message for _, finding in report.findings(Severity.REVIEW))


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("shutil.unpack_archive('weights.zip', folder)", 0),
        ("torch.save(model, folder + '/m')", 1),
        ("write(folder)", 1),
        ("model.write(folder)", 1),
    ],
)
def test_each_rank_may_unpack_an_archive_in_a_folder_that_it_leaves_early(
    line: str, count: int, tmp_path: Path
) -> None:
    text = f"""
import shutil
import tempfile


def write(folder):
    torch.save(1, folder + '/n')


def unpacked(model):
    with tempfile.TemporaryDirectory() as folder:
        {line}
        if len(folder) > 9:
            return None
        return open(folder + '/weights').read()


MAKE_MODEL
state = unpacked(model)
for x, y in DataLoader(data, batch_size=4):
    STEP
"""
    report = run(tmp_path, train=body(text))
    found = [f.message for _, f in report.findings(Severity.REVIEW) if "another temporary folder" in f.message]
    assert len(found) == count


def test_a_folder_that_may_be_left_early_stays_each_rank_s(tmp_path: Path) -> None:
    after = convert(tmp_path, body(TEMPORARY.replace("END", "if len(data) > 4:\n                return None")))
    assert "rank_0_text" not in after
    made = TEMPORARY.replace(
        "with tempfile.TemporaryDirectory() as folder:", "folder = tempfile.mkdtemp()\n        if data:"
    )
    assert "folder = rank_0_text(tempfile.mkdtemp())" in convert(tmp_path, body(made.replace("END", "pass")))


BESIDE_INNER = """
    class Reader:
        def __init__(self):
            self.net, self.parallel = Net(), False
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def parallelize(self):
            self.parallel = True
            self.net = nn.DataParallel(self.net)

        def update(self, x, y):
            self.optimizer.zero_grad()
            F.mse_loss(self.net(x), y).backward()
            self.optimizer.step()

        def save(self):
            net = self.net.module if self.parallel else self.net
            torch.save(net.state_dict(), "a")


    reader = Reader()
    if len(data) > 4:
        reader.parallelize()
    for x, y in DataLoader(data, batch_size=4):
        reader.update(x, y)
        reader.save()
    """


def test_a_choice_of_the_inner_module_or_the_model_leaves_no_names_for_review(tmp_path: Path) -> None:
    """As in DrQA, which sets a flag where it wraps the model."""
    assert not reviews(tmp_path, body(BESIDE_INNER))
    assert reviews(tmp_path, body(BESIDE_INNER).replace("self.parallel = True", "pass"))


OWN_MODULE = """
    class Wrapped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.module = net

        def forward(self, x):
            return self.module(x)


    net = Net()
    if len(data) > 4:
        net = nn.DataParallel(net)
    else:
        net = Wrapped(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    torch.save(net.module.state_dict(), "a")
    """


def test_the_module_of_a_wrapper_of_the_program_stays_where_the_other_wrapper_goes(tmp_path: Path) -> None:
    """As in voxceleb_trainer, on one process: names of weights began with module., which they did not before."""
    after = convert(tmp_path, body(OWN_MODULE))
    assert 'torch.save(getattr(net, "module", net).state_dict(), "a")' in after
    alone = body(OWN_MODULE).replace("else:\n    net = Wrapped(net)\n", "").replace("Wrapped", "Other")
    assert 'torch.save(net.state_dict(), "a")' in convert(tmp_path, alone)


NAMED = """
    net = nn.DataParallel(Net())
    name = str(len(data))
    KEPT
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    "kept",
    [
        "nets = {}; nets[name] = net",
        "nets = {}; nets.update({name: net})",
        "nets = {}; nets.setdefault(name, net)",
        "nets = []; nets.insert(0, net)",
        "nets = []; nets += [net]",
        "nets = []; nets.extend([net])",
    ],
)
def test_names_of_weights_that_a_container_leads_to_are_for_review(kept: str, tmp_path: Path) -> None:
    items = "nets.values()" if "{" in kept else "nets"
    text = body(NAMED).replace("KEPT", kept) + f"for one in {items}:\n    torch.save(one.state_dict(), 'a')\n"
    found = [f.message for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)]
    assert found == ["names of weights are saved without module., which the original wrote where it wrapped the model"]


def test_weights_by_a_variable_key_are_read_as_the_wrapper_wrote_them(tmp_path: Path) -> None:
    kept = body(NAMED).replace("KEPT", "nets = {name: net}") + "torch.save(nets[name].state_dict(), 'a')\n"
    assert "torch.save(nets[name].state_dict(prefix=\"module.\"), 'a')" in convert(tmp_path, kept)
    kept = body(NAMED).replace(
        "KEPT", "nets = {name: None}\nnets[name] = net\nnets[name].load_state_dict(torch.load('a'))"
    )
    assert "nets[name].load_state_dict({key.removeprefix(" in convert(tmp_path, kept)


@pytest.mark.parametrize(
    ("use", "is_reviewed"), [("average.copy_(found[name])", False), ("torch.save(found, 'a')", True)]
)
def test_weights_of_a_wrapper_that_are_looked_up_are_not_saved(use: str, is_reviewed: bool, tmp_path: Path) -> None:
    """As in the average of weights of FixMatch, which asks for the wrapper."""
    average = "def update(net, average):\n    found = net.state_dict()\n    for name in list(average):\n"
    average += f"        name = 'module.' + name if hasattr(net, 'module') else name\n        {use}\n\n\n"
    text = LOOP.replace("model = Net()\n", "model = Net()\nif len(data) > 1:\n    model = DDP(model)\n")
    found = run(tmp_path, train=HEADER + average + text + "update(model, {})\n").findings(Severity.REVIEW)
    assert any(f.code == Code.PLAIN_CHECKPOINT for _, f in found) is is_reviewed


@pytest.mark.parametrize(("other", "is_wrapped"), [("DDP(net)", True), ("net", False)])
def test_a_model_that_each_branch_of_a_condition_wraps_is_wrapped(other: str, is_wrapped: bool, tmp_path: Path) -> None:
    wraps = f"if len(data) > 2:\n    model = DDP(net)\nelif data:\n    model = {other}\nelse:\n    model = DDP(net)\n"
    text = LOOP.replace("model = Net()\n", f"net = Net()\n{wraps}") + "torch.save(model.state_dict(), 'a')\n"
    assert ('model.state_dict(prefix="module.")' in convert(tmp_path, HEADER + text)) is is_wrapped


def test_names_of_weights_are_for_review_where_the_model_is_wrapped_in_an_else(tmp_path: Path) -> None:
    wrap = "net = Net()\nif name == '1':\n    net = net.cuda(0)\nelse:\n    net = nn.DataParallel(net).cuda()\n"
    text = body(NAMED).replace("net = nn.DataParallel(Net())\n", "").replace("KEPT\n", wrap)
    save = "net.load_state_dict(torch.load('a'))\ntorch.save(net.state_dict(), 'a')\n"
    (result,) = run(tmp_path, train=text + save).files
    reviews = [f.message for f in result.findings if f.severity is Severity.REVIEW]
    assert reviews == [
        "names of weights are saved without module., which the original wrote where it wrapped the model"
    ]
    assert result.after is not None and b'net.load_state_dict({key.removeprefix("module."): value' in result.after


AGENT = """
import copy
import pickle


class Agent:
    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def learn(self, x, y):
        self.optimizer.zero_grad()
        F.mse_loss(self.net(x), y).backward()
        self.optimizer.step()
    MORE


class Best(Agent):
    pass


agent = Best()
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    agent.learn(x, y)
COPY
"""


@pytest.mark.parametrize(
    ("more", "copied", "is_whole"),
    [
        ("", "best = copy.deepcopy(agent)", True),
        ("", "torch.save(agent, 'agent.pt')", True),
        ("def keep(self, f):\n        pickle.dump(self, f)", "agent.keep(open('f', 'wb'))", True),
        ("", "best = copy.deepcopy(agent.net)", False),
    ],
)
def test_an_engine_that_is_copied_with_an_object_has_the_optimizer_whole(
    more: str, copied: str, is_whole: bool, tmp_path: Path
) -> None:
    """A copy of an engine has the copy of its optimizer, which ZeRO would divide."""
    report = run(tmp_path, train=HEADER + AGENT.replace("MORE", more).replace("COPY", copied))
    after = next((file.after or b"").decode() for file in report.files)
    assert ('"stage": 0' in after) is is_whole and ('"stage": 1' in after) is not is_whole


HOLDER = """\
class Holder(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def bare(net):
    if isinstance(net, nn.DataParallel):
        return bare(net.module)
    if isinstance(net, Holder):
        return bare(net.module)
    return net


"""


def test_a_module_of_a_class_of_the_program_is_no_wrapper_s(tmp_path: Path) -> None:
    loop = LOOP.replace("for x, y", "model = nn.DataParallel(model)\nfor x, y")
    report = run(tmp_path, train=HEADER + HOLDER + loop + "torch.save(bare(model).state_dict(), 'a.pt')\n")
    (file,) = report.files
    assert file.after is not None and HOLDER.encode() in file.after  # bare(net) would call itself without end
    assert not [f for _, f in report.findings(Severity.REVIEW)]


@pytest.mark.parametrize(
    "read", ["AutoModel.from_pretrained('out')", "SentenceTransformer('out')", "models.Transformer('out', 128)"]
)
def test_ranks_wait_for_the_folder_of_a_model_that_rank_0_saves(read: str, tmp_path: Path) -> None:
    imports = "from transformers import AutoModel\nfrom sentence_transformers import SentenceTransformer, models\n"
    lines = f"model.save_pretrained('out')\nbest = {read}\nprint(best.eval())\n"
    after = convert(tmp_path, imports + HEADER + LOOP + lines)
    assert f"    model.save_pretrained('out')\nwait_for_all_ranks()\nbest = {read}\n" in after
    assert "wait" not in convert(tmp_path, imports + HEADER + LOOP + lines.replace("out", "bert", 1))


def test_a_line_that_would_set_a_name_to_itself_behind_the_wrapper_goes(tmp_path: Path) -> None:
    several = "if os.environ.get('WORLD_SIZE'):\n"
    text = LOOP.replace("for x, y in loader:\n", f"{several}    model = DDP(model)\nfor x, y in loader:\n")
    end = "    return model(data[0][0])\n"
    test = f"def test(model):\n    {several}        model = model.module\n{end}"
    after = convert(tmp_path, "import os\n" + HEADER + test + text + "y = test(model)\n")
    assert f"def test(model):\n{end}" in after


@pytest.mark.parametrize(
    ("lines", "is_left"),
    [
        ("with open('data.lock', 'w') as lock:\n    fcntl.flock(lock, fcntl.LOCK_EX)\n    model(data)", True),
        ("lock = open('data.lock', 'w')\nfcntl.lockf(lock.fileno(), fcntl.LOCK_EX)", True),
        ("with open('log.txt', 'a') as log:\n    fcntl.flock(log, fcntl.LOCK_EX)\n    log.write('x')", False),
    ],
)
def test_a_file_by_which_processes_wait_for_each_other_is_every_rank_s(
    lines: str, is_left: bool, tmp_path: Path
) -> None:
    after = convert(tmp_path, f"import fcntl\n{HEADER}{LOOP}{lines}\n")
    assert ("devnull" not in after) is is_left


@pytest.mark.parametrize(
    ("write", "read"),
    [
        ("torch.jit.save(model, path)", "torch.jit.load(path)"),
        ("pd.DataFrame([1]).to_excel(path)", "pd.read_excel(path)"),
        ("torch.save(model.state_dict(), path)", "other.load_weights(path)"),
        ("safetensors.torch.save_model(model, path)", "safetensors.torch.load_model(model, path)"),
    ],
)
def test_ranks_wait_for_a_file_that_a_function_reads_by_its_name(write: str, read: str, tmp_path: Path) -> None:
    setup = "import pandas as pd\nimport safetensors.torch\nimport other\n" + HEADER + "path = 'a.bin'\n" + LOOP
    assert f"    {write}\nwait_for_all_ranks()\nend = {read}\n" in convert(tmp_path, f"{setup}{write}\nend = {read}\n")
    assert "wait" not in convert(tmp_path, f"{setup}{write}\nend = {read.replace('path', repr('b.bin'))}\n")


def test_a_name_of_which_nothing_is_written_out_is_no_file_of_another(tmp_path: Path) -> None:
    """A data set was taken for the file, which all ranks then wrote."""
    lines = "import sys\nfrom hub import load_dataset\nfor name in sys.argv:\n    data_ = load_dataset(f'hub/{name}')\n"
    lines += "    with open(f'{name}', 'w') as f:\n        f.write('a')\n"
    after = convert(tmp_path, HEADER + LOOP + lines)
    assert "    with open(f'{name}' if is_main_rank() else os.devnull, 'w') as f:\n" in after and "wait" not in after


def test_ranks_wait_for_weights_that_a_function_saves_under_another_name_of_the_path(tmp_path: Path) -> None:
    """Where a file is not there, a function trains and saves it: the look comes before that, the load behind it."""
    train = "def produce():\n" + textwrap.indent(f'{LOOP}torch.save(model.state_dict(), "gan.pt")\n', "    ")
    look = '    path = "./gan.pt"\n    if not os.path.isfile(path):\n        produce()\n    net = Net()\n'
    load = "    net.load_state_dict(torch.load(path))\n"
    after = convert(tmp_path, f"import os\n{HEADER}\n{train}\n\ndef main():\n{look}{load}\n\nmain()\n")
    assert f"    net = Net()\n    wait_for_all_ranks()\n{load}" in after


@pytest.mark.parametrize("given", ["mode='w'", "mode"])
def test_rank_0_alone_writes_a_file_whose_mode_an_object_keeps(given: str, tmp_path: Path) -> None:
    """As csv logs that begin a file and then add to it: the mode is no literal, and all ranks wrote."""
    recorder = f"""\
import os
class Recorder:
    def __init__(self, path, {given}):
        self.path = path
        self.mode = mode

    def record(self, text):
        with open(self.path, self.mode) as f:
            f.write(text)
        self.mode = 'a'


recorder = Recorder('log.txt', 'w')
"""
    after = convert(tmp_path, recorder + HEADER + LOOP + "recorder.record('done')\n")
    assert "with open(self.path if is_main_rank() else os.devnull, self.mode) as f:" in after


@pytest.mark.parametrize(("given", "waits"), [("path", True), ("str(path)", True), ("str(other)", False)])
def test_ranks_wait_for_a_file_that_a_library_is_given_as_text(given: str, waits: bool, tmp_path: Path) -> None:
    """Rank 0 alone copied it, and another rank did not find it yet."""
    save = f"path = Path('b.sgy')\nshutil.copyfile('a.sgy', path)\nwith segyio.open({given}) as f:\n    print(f)\n"
    after = convert(tmp_path, "import shutil\nimport segyio\nfrom pathlib import Path\n" + HEADER + LOOP + save)
    assert ("wait_for_all_ranks()\nwith segyio.open" in after) is waits


@pytest.mark.parametrize(("given", "decides"), [("optimizer", False), ("optimizer if len(data) > 9 else None", True)])
def test_rank_0_does_not_decide_whether_a_call_gives_an_optimizer(given: str, decides: bool, tmp_path: Path) -> None:
    """As ``save(model, optimizer=None)``, which writes the optimizer's state where it gets one."""
    text = f"""
    def save(model, optimizer=None):
        state = {{"model": model.state_dict()}}
        if optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        torch.save(state, "last.pt")


    MAKE_MODEL
    for x, y in DataLoader(data, batch_size=4):
        STEP
    save(model, {given})
    """
    assert ("if rank_0_decides(optimizer is not None):" in convert(tmp_path, body(text))) is decides
