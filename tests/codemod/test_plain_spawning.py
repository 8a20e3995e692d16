"""The ranks of plain training loops: what a launcher starts instead of the program."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, body, convert, run

SPAWNED = """
    import os

    import torch.distributed as dist
    import torch.multiprocessing as mp


    def main_worker(gpu, args):
        if args.distributed:
            args.rank = args.rank * args.gpus + gpu
            dist.init_process_group("nccl", init_method=args.url, world_size=args.world_size, rank=args.rank)
        model = DDP(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler = torch.utils.data.DistributedSampler(data) if args.distributed else None
        loader = DataLoader(data, batch_size=args.batch_size // args.gpus, sampler=sampler)
        for x, y in loader:
            STEP


    def main(args):
        if args.distributed:
            mp.spawn(main_worker, args=(args,), nprocs=args.gpus, join=True)
        else:
            main_worker(0, args)
    """


def test_the_launcher_starts_the_ranks_that_the_program_spawned(tmp_path: Path) -> None:
    after = convert(tmp_path, body(SPAWNED))
    assert "run_worker(main_worker, args=(args,), nprocs=args.gpus)\n    else:\n        main_worker(0, args)" in after
    ranks = "init_distributed(world_size=args.world_size, rank=args.rank, share_random_state=False)"
    assert f"        {ranks}\n    init_distributed(world_size=1)\n" in after
    assert after.count("init_distributed(") == 2 and "engine(x)" in after
    assert '"train_micro_batch_size_per_gpu": args.batch_size // args.gpus,' in after


def test_ranks_that_start_in_a_try_whose_handler_raises_start_once(tmp_path: Path) -> None:
    """As in SlowFast."""
    text = SPAWNED.replace(
        "        if args.distributed:\n            args.rank", "        try:\n            args.rank", 1
    )
    text = text.replace(
        "        model = DDP", "        except Exception as error:\n            raise error\n        model = DDP", 1
    )
    assert convert(tmp_path, body(text)).count("init_distributed(") == 1


ALONE = """
    import torch.distributed as dist


    def train_on(rank, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            STEP


    def train():
        train_on(0, Net())


    def train_distributed(rank, count):
        dist.init_process_group("nccl", rank=rank, world_size=count)
        train_on(rank, DDP(Net()))
    """
MAIN = """\
from learner import train, train_distributed
from torch.cuda import device_count
from torch.multiprocessing import spawn

if device_count() > 1:
    spawn(train_distributed, args=(device_count(),), nprocs=device_count(), join=True)
else:
    train()
"""


def test_ranks_that_another_file_spawns_start_on_each_way_to_the_loop(tmp_path: Path) -> None:
    report = run(tmp_path, learner=body(ALONE), main=MAIN)
    after = {result.path.name: (result.after or b"").decode() for result in report.files}
    assert "    run_worker(train_distributed, args=(device_count(),), nprocs=device_count())\n" in after["main.py"]
    assert "else:\n    init_distributed(world_size=1)\n    train()\n" in after["main.py"]
    assert "init_distributed(world_size=count, rank=rank, share_random_state=False)" in after["learner.py"]


DEMOS = """
    import torch.distributed as dist
    import torch.multiprocessing as mp


    def setup(rank, world_size):
        dist.init_process_group("gloo", rank=rank, world_size=world_size)


    def cleanup():
        dist.destroy_process_group()


    def demo(rank, world_size):
        setup(rank, world_size)
        model = DDP(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        F.mse_loss(model(torch.zeros(2, 4)), torch.zeros(2, 1)).backward()
        optimizer.step()
        cleanup()


    def other(rank, world_size):
        setup(rank, world_size)
        cleanup()


    mp.spawn(demo, args=(2,), nprocs=2)
    """


def test_ranks_that_start_again_stay_until_their_process_ends(tmp_path: Path) -> None:
    assert "def cleanup():\n    pass\n" in convert(tmp_path, body(DEMOS))


def test_ranks_that_start_once_end_where_they_did(tmp_path: Path) -> None:
    other = "    setup(rank, world_size)\n    cleanup()\n\n\nmp"
    after = convert(tmp_path, body(DEMOS).replace(other, "    pass\n\n\nmp"))
    assert "def cleanup():\n    dist.destroy_process_group()\n" in after


def test_processes_that_do_not_train_stay(tmp_path: Path) -> None:
    loads = "def load(rank):\n    print(rank)\n\n\ntorch.multiprocessing.spawn(load, nprocs=2)\n"
    assert "torch.multiprocessing.spawn(load, nprocs=2)" in convert(tmp_path, HEADER + loads + LOOP)


@pytest.mark.parametrize(
    ("message", "new"),
    [
        ("makes a process for each", "[mp.Process(target=main_worker, args=(n, args)) for n in range(2)]"),
        ("keeps the processes", "kept = mp.spawn(main_worker, args=(args,), join=False)"),
        ("keeps the processes", "mp.spawn(main_worker, args=args)"),
        ("which function is started", "mp.spawn(args.worker, args=(args,))"),
    ],
)
def test_ranks_that_cannot_be_left_to_a_launcher_are_refused(message: str, new: str, tmp_path: Path) -> None:
    old = "mp.spawn(main_worker, args=(args,), nprocs=args.gpus, join=True)"
    found = blocked(tmp_path, body(SPAWNED).replace(old, new))
    assert [code for code, text in found if message in text] == [Code.PLAIN_DISTRIBUTED], found


@pytest.mark.parametrize("process", ["mp.Process", 'mp.get_context("spawn").Process', "mp.spawn"])
def test_a_model_that_processes_of_another_file_train_is_refused(process: str, tmp_path: Path) -> None:
    train = """
        def train(model, data):
            loader = DataLoader(data, batch_size=4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                STEP
        """
    (tmp_path / "hogwild.py").write_text(HEADER + body(train))
    started = f"""
        import torch.multiprocessing as mp
        from hogwild import train

        model = Net()
        model.share_memory()
        workers = [{process}(target=train, args=(model, data)) for _ in range(2)]
        """.replace("mp.spawn(target=train", "mp.spawn(train")
    found = blocked(tmp_path, HEADER + body(started))
    assert [code for code, text in found if "one module in shared memory" in text] == [Code.PLAIN_DISTRIBUTED], found


def test_ranks_start_after_a_function_that_may_start_none(tmp_path: Path) -> None:
    function = "def setup(alone):\n    if alone:\n        return\n    torch.distributed.init_process_group()\n"
    function += "\n\nsetup(True)\n"
    after = convert(tmp_path, HEADER + function + LOOP)
    assert "        return\n    init_distributed(share_random_state=False)\n" in after
    assert "setup(True)\ninit_distributed(world_size=1)\nloader" in after


LAUNCHED = """
    import torch.distributed as dist
    import torch.multiprocessing as mp


    def launch(function, gpus, args=()):
        if gpus > 1:
            mp.spawn(work, nprocs=gpus, args=(function, gpus, args))
        else:
            function(*args)


    def work(rank, function, world_size, args):
        dist.init_process_group("gloo", world_size=world_size, rank=rank)
        function(*args)


    def main(args):
        MAKE_MODEL
        for x, y in DataLoader(data, batch_size=4):
            STEP


    if __name__ == "__main__":
        launch(main, args.gpus, args=(args,))
    """


def test_one_rank_that_trains_without_the_spawned_ones_starts_as_one(tmp_path: Path) -> None:
    after = convert(tmp_path, body(LAUNCHED))
    assert "    else:\n        init_distributed(world_size=1)\n        function(*args)\n" in after
    assert (
        "    init_distributed(world_size=world_size, rank=rank, share_random_state=False)\n    function(*args)" in after
    )
    assert after.count("init_distributed(") == 2


CHOSEN = """
    import torch.distributed as dist


    def start(launcher):
        if launcher == "pytorch":
            dist.init_process_group("gloo")
        else:
            raise ValueError(launcher)


    def read(args):
        if args.launcher == "none":
            args.dist = False
        else:
            start(args.launcher)
        args.world = dist.get_world_size() if dist.is_initialized() else 1


    read(args)
    MAKE_MODEL
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """


def test_ranks_start_behind_the_outermost_condition_under_which_the_program_starts_them(tmp_path: Path) -> None:
    after = convert(tmp_path, body(CHOSEN))
    assert "        start(args.launcher)\n    init_distributed(world_size=1)\n    args.world = " in after
    assert after.count("init_distributed(") == 2


SELECTED = {
    "a subset": "torch.utils.data.Subset(data, range(rank, len(data), world_size))",
    "a slice": "[data[i] for i in range(8)][rank::world_size]",
    "by an object that a class holds": "Read(Read(Choose(data, rank)))",
    "by bounds that are made of the rank": "Halves(data)",
    "by a class": "Shards(data, shard=rank, num_shards=world_size)",
    "all data": "Everything(data, rank)",
}


@pytest.mark.parametrize("selected", [pytest.param(text, id=name) for name, text in SELECTED.items()])
@pytest.mark.parametrize("starts", [True, False])
def test_data_that_a_program_selects_by_the_rank_is_not_divided_once_more(
    selected: str, starts: bool, tmp_path: Path
) -> None:
    """As guided-diffusion's ImageDataset, which takes each num_shards-th file."""
    program = """
        import torch.distributed as dist


        class Everything(torch.utils.data.Dataset):
            def __init__(self, data, rank):
                self.data = data
                if rank == 0:
                    print(len(data))

            def __len__(self):
                return len(self.data)

            def __getitem__(self, index):
                return self.data[index]


        class Chooser:
            def __init__(self):
                self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

            def choose(self, data):
                return list(data)[self.rank::self.world_size]


        class Choose(torch.utils.data.IterableDataset):
            def __init__(self, data, rank):
                self.data, self.chooser = data, None
                self.chooser = Chooser()

            def __iter__(self):
                yield from self.chooser.choose(self.data)


        class Halves(Everything):
            def __init__(self, data):
                start = int(dist.get_rank() / dist.get_world_size() * len(data))
                end = int((dist.get_rank() + 1) / dist.get_world_size() * len(data))
                self.data = data[start:end]


        class Read(torch.utils.data.IterableDataset):
            def __init__(self, source):
                self.source = source

            def __iter__(self):
                yield from self.source


        class Shards(Everything):
            def __init__(self, data, shard=0, num_shards=1):
                self.data = [data[i] for i in range(len(data))][shard:][::num_shards]


        START
        rank, world_size = dist.get_rank(), dist.get_world_size()
        found = SELECTED
        loader = DataLoader(found, batch_size=4)
        MAKE_MODEL
        for x, y in loader:
            STEP
        """
    start = 'dist.init_process_group("gloo")' if starts else "start()"
    report = run(tmp_path, train=body(program).replace("START", start).replace("SELECTED", selected))
    is_selected = "Everything" not in selected
    assert (b"(DataLoader(found" in (report.files[0].after or b"")) is not starts
    reviews = [f.message for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_SAMPLER]
    is_divided = is_selected and "Read(" not in selected  # shard() leaves a stream as it is
    assert any("selected by the rank" in message for message in reviews) is (is_divided and not starts)


MADE_FIRST = """
    import plugins
    import torch.distributed as dist
    import torch.multiprocessing as mp


    class Trainer:
        def __init__(self):
            self.rank = dist.get_rank() if dist.is_initialized() else 0
            self.model = Net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def train(self):
            for x, y in DataLoader(data, batch_size=4):
                self.optimizer.zero_grad()
                loss = F.mse_loss(self.model(x), y)
                loss.backward()
                self.optimizer.step()


    def worker(rank, function, count, args):
        dist.init_process_group("gloo", rank=rank, world_size=count)
        function(*args)


    def main(makers):
        makers[0]().train()


    def make():
        return Trainer()


    count = torch.cuda.device_count()
    if count > 1:
        mp.start_processes(worker, nprocs=count, args=(plugins.main, count, ()))
    else:
        main([make])
    """


def test_ranks_start_before_an_object_is_made_that_may_ask_for_its_rank(tmp_path: Path) -> None:
    text = body(MADE_FIRST[MADE_FIRST.index("    class Trainer") : MADE_FIRST.index("    def worker")])
    after = convert(tmp_path, f"import torch.distributed as dist\n{text}")
    assert "    def __init__(self):\n        init_distributed()\n        self.rank" in after


def test_processes_with_a_group_that_each_rank_starts_further_are_for_review(tmp_path: Path) -> None:
    report = run(tmp_path, train=body(MADE_FIRST))
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    message = (
        "each rank of a launcher starts further processes here, with a process group, as what they train is unknown"
    )
    assert message in found


LAUNCHER = """
import torch.distributed as dist
import torch.multiprocessing as mp

class Launcher:
    def run(self, function, count):
        if count < 2:
            function(self)
            return
        mp.spawn(self.work, args=(function, count), nprocs=count)

    def work(self, rank, function, count):
        dist.init_process_group("gloo", rank=rank, world_size=count)
        function(self)

MAKE_MODEL

def train(launcher):
    for x, y in DataLoader(data):
        STEP

if __name__ == "__main__":
    Launcher().run(train, torch.cuda.device_count())
"""


def test_an_optimizer_that_is_made_before_a_launcher_of_the_program_starts_processes_stays(tmp_path: Path) -> None:
    ((code, message),) = blocked(tmp_path, body(LAUNCHER))
    assert code == Code.PLAIN_DISTRIBUTED and "hides what it gives them" in message


@pytest.mark.parametrize(
    "sampler", ["shuffle=True", "sampler=DistributedSampler(data) if many else None", "sampler=chosen(data)"]
)
def test_the_data_of_a_program_that_starts_its_ranks_stays_as_it_is_divided(sampler: str, tmp_path: Path) -> None:
    start = "import torch.distributed as dist\nfrom torch.utils.data import DistributedSampler, RandomSampler\n"
    start += "many = True\nchosen = DistributedSampler if many else RandomSampler\ndist.init_process_group('gloo')\n"
    loop = LOOP.replace("Net()", "DDP(Net())").replace("shuffle=True", sampler)
    assert f"loader = DataLoader(data, batch_size=4, {sampler})" in convert(tmp_path, start + HEADER + loop)


@pytest.mark.parametrize(
    ("pool", "is_refused"),
    [
        ("with multiprocessing.Pool(2) as pool:\n    pool.map(fit, [0.1, 0.2])", True),
        ("pool = ProcessPoolExecutor(2)\npool.submit(fit, 0.1)", True),
        ("with ThreadPoolExecutor(2) as pool:\n    pool.map(fit, [0.1, 0.2])", True),
        ("with multiprocessing.Pool(2) as pool:\n    pool.map(str, [0.1, 0.2])\nfit(0.1)", False),
    ],
)
def test_a_pool_that_trains_is_refused(pool: str, is_refused: bool, tmp_path: Path) -> None:
    imports = "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n"
    fit = "def fit(rate):\n" + textwrap.indent(LOOP.replace("lr=0.1", "lr=rate"), "    ") + "\n\n"
    report = run(tmp_path, train=imports + HEADER + fit + pool + "\n")
    found = [finding.message for _, finding in report.findings(Severity.BLOCKED)]
    assert any(message.startswith("a pool runs this training") for message in found) is is_refused


@pytest.mark.parametrize("wrapped", ["model.layer", "model"])
def test_a_part_of_a_module_in_distributed_data_parallel_is_for_review(wrapped: str, tmp_path: Path) -> None:
    """As the two towers of DLRM, whose embeddings each rank has for itself."""
    start = "import torch.distributed as dist\nfrom torch.utils.data import DistributedSampler\n"
    start += "dist.init_process_group('gloo')\n"
    whole = "class Whole(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = Net()\n"
    whole += "        self.other = nn.Linear(1, 1)\n\n"
    whole += "    def forward(self, x):\n        return self.other(self.layer(x))\n\n\n"
    loop = LOOP.replace("model = Net()", f"model = Whole()\n{wrapped} = DDP({wrapped})")
    report = run(
        tmp_path, train=start + HEADER + whole + loop.replace("shuffle=True", "sampler=DistributedSampler(data)")
    )
    messages = [f.message for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_DISTRIBUTED]
    assert any("this part of the module alone" in message for message in messages) is (wrapped == "model.layer")


@pytest.mark.parametrize(
    ("imported", "count"), [("from mpi4py import MPI", 1), ("import mpi4py.MPI as MPI", 1), ("from mine import MPI", 0)]
)
def test_the_ranks_of_mpi_are_for_review(imported: str, count: int, tmp_path: Path) -> None:
    use = "torch.manual_seed(MPI.COMM_WORLD.Get_rank())\nprint(MPI.COMM_WORLD.Get_rank())\n"
    report = run(tmp_path, train=f"{imported}\n{HEADER}{use}{LOOP}")
    found = [f.message for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_DISTRIBUTED]
    assert len(found) == count and all(message.startswith("to MPI, each process") for message in found)


SPAWNED_IN_TEST = """
def test_ranks():
    mp.spawn(main_worker, args=(None,), nprocs=2)
"""


@pytest.mark.parametrize("name", ["test_ranks", "train"])
def test_the_processes_of_a_test_are_started_by_it_as_before(name: str, tmp_path: Path) -> None:
    worker = body(SPAWNED).partition("def main(")[0]
    (result,) = run(tmp_path, **{name: worker + SPAWNED_IN_TEST}).files
    assert (b"    mp.spawn(main_worker" in (result.after or b"")) is (name == "test_ranks")


BESIDE = """
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(COUNT))

        def forward(self, x):
            return (x * self.weight).mean()


    torch.distributed.init_process_group("gloo")
    net, head = DDP(Net()), WRAPPED
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
    sampler = torch.utils.data.DistributedSampler(data)
    for x, y in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        head(net(x)).backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    ("wrapped", "count", "found"),
    [
        ("DDP(Head())", "1", []),
        ("Head()", "1", [(Severity.REVIEW, "DistributedDataParallel does not have this module")]),
        ("Head()", "8 // torch.distributed.get_world_size()", [(Severity.BLOCKED, "the class of this module asks")]),
        ("DDP(Head())", "torch.distributed.get_world_size()", []),
    ],
)
def test_a_module_that_each_rank_trained_by_itself_is_reported(
    wrapped: str, count: str, found: list[tuple[Severity, str]], tmp_path: Path
) -> None:
    """The shares of partial FC were averaged, without a finding."""
    report = run(tmp_path, train=body(BESIDE).replace("WRAPPED", wrapped).replace("COUNT", count))
    messages = [
        (severity, f.message) for severity in (Severity.BLOCKED, Severity.REVIEW) for _, f in report.findings(severity)
    ]
    assert len(messages) == len(found)
    assert all(s == e and m.startswith(text) for (s, m), (e, text) in zip(messages, found, strict=True))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("timeout=timedelta(hours=2)", "timeout=timedelta(hours=2)"),
        ("timeout=None", ""),
        ("None, args.wait", "timeout=args.wait"),
    ],
)
def test_ranks_wait_for_each_other_as_long_as_the_program_says(given: str, kept: str, tmp_path: Path) -> None:
    text = "from datetime import timedelta\n" + body(SPAWNED)
    group = 'dist.init_process_group("nccl", init_method=args.url, world_size=args.world_size, rank=args.rank)'
    after = convert(tmp_path, text.replace(group, f'dist.init_process_group("nccl", {given})'))
    assert f"init_distributed({', '.join(filter(None, ['share_random_state=False', kept]))})" in after


@pytest.mark.parametrize(("reads", "kept"), [("dist.get_backend() == 'gloo'", 'backend="nccl", '), ("True", "")])
def test_a_program_that_reads_the_name_of_its_backend_keeps_it(reads: str, kept: str, tmp_path: Path) -> None:
    """``assert dist.get_backend() in ("gloo", "nccl")``, as YOLOX does, fails beside a backend for each device."""
    text = SPAWNED.replace("model = DDP", f"args.on_cpu = {reads}\n        model = DDP", 1)
    counts = "world_size=args.world_size, rank=args.rank"
    assert f"init_distributed({counts}, {kept}share_random_state=False)" in convert(tmp_path, body(text))


SHARED = HEADER + textwrap.dedent("""

    def train():
        MAKE_MODEL
        for x, y in DataLoader(data, batch_size=4):
            STEP
    """)
SETUP = "import torch.distributed as dist\n\n\ndef setup():\n    dist.init_process_group('gloo')\n"


def test_a_script_that_starts_no_ranks_starts_them_beside_one_that_does(tmp_path: Path) -> None:
    begin = 'if __name__ == "__main__":\n    '
    many = f"from ranks import setup\nfrom shared import train\n\n{begin}setup()\n    train()\n"
    alone = f"from shared import train\n\n{begin}train()\n"
    report = run(tmp_path, shared=SHARED, ranks=SETUP, many=many, alone=alone)
    after = {result.path.name: (result.after or b"").decode() for result in report.files}
    assert f"{begin}init_distributed()\n    train()\n" in after["alone.py"]
    assert "many.py" not in after or "init_distributed" not in after["many.py"]


def test_ranks_start_before_training_that_a_program_starts_none_for_until_later(tmp_path: Path) -> None:
    stages = (
        "from other import study\nfrom shared import train\n\n\ndef main():\n    train()\n    study()\n\n\nmain()\n"
    )
    other = "from ranks import setup\n\n\ndef study():\n    setup()\n    print('started')\n"
    report = run(tmp_path, shared=SHARED, ranks=SETUP, other=other, stages=stages)
    after = {result.path.name: (result.after or b"").decode() for result in report.files}
    assert "def main():\n    init_distributed(world_size=1)\n    train()\n    study()\n" in after["stages.py"]


def test_ranks_start_in_a_method_that_only_subclasses_are_known_to_call(tmp_path: Path) -> None:
    classes = """
        class Trainer:
            def fit(self):
                MAKE_MODEL
                for x, y in DataLoader(data, batch_size=4):
                    STEP


        class Patient(Trainer):
            def fit(self):
                super().fit()


        def start(name):
            find(name)().fit()
        """
    assert "def fit(self):\n        init_distributed()\n        model = Net()" in convert(tmp_path, body(classes))


def test_a_program_that_starts_ranks_by_an_option_trains_on_one_rank_without_it(tmp_path: Path) -> None:
    """Its ranks trained on the same data otherwise, and each of them saved what it takes for rank 0's."""
    program = """
        import torch.distributed as dist
        from torch.utils.data import DistributedSampler

        many = bool(input())
        rank = 0
        if many:
            dist.init_process_group("gloo")
            rank = dist.get_rank()
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data) if many else None)
        MAKE_MODEL
        for x, y in loader:
            STEP
        if rank == 0:
            torch.save(model.state_dict(), "model.pt")
        """
    after = convert(tmp_path, body(program))
    assert "    rank = dist.get_rank()\ninit_distributed(world_size=1)\nloader = DataLoader(" in after
    assert after.endswith('if rank == 0:\n    torch.save(model.state_dict(), "model.pt")\n')


def test_a_module_that_no_script_imports_is_one_of_the_program_that_starts_ranks(tmp_path: Path) -> None:
    """A function that is found by its name runs on the ranks of the script that finds it."""
    start = "from ranks import setup\nfrom shared import train\n\nsetup()\ntrain()\n"
    slow = SHARED.replace("def train", "import shared\n\n\ndef train_slowly")
    report = run(tmp_path, shared=SHARED, ranks=SETUP, start=start, slow=slow)
    after = {result.path.name: (result.after or b"").decode() for result in report.files}
    assert "in DataLoader(data" in after["slow.py"]
