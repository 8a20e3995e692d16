"""Functions that train where they are given an optimizer, and evaluate where they are not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, body, convert, reviews, run

BATCH = """\
def loss_batch(model, x, y, opt=None):
    loss = F.mse_loss(model(x), y)
    if opt is not None:
        loss.backward()
        opt.step()
        opt.zero_grad()
    return loss.item(), len(x)


"""
FIT = """\
def fit(model, opt, train_dl, valid_dl):
    TRAIN
    with torch.no_grad():
        losses, nums = zip(*[loss_batch(model, x, yWITHOUT) for x, y in valid_dl])


train_dl, valid_dl = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8)
model = Net()
fit(model, torch.optim.SGD(model.parameters(), lr=0.1), train_dl, valid_dl)
"""


@pytest.mark.parametrize("without", ["", ", None", ", opt=None"])
@pytest.mark.parametrize(
    "train",
    [
        "for x, y in train_dl:\n        loss_batch(model, x, y, opt)",
        "losses, nums = zip(*[loss_batch(model, x, y, opt) for x, y in train_dl])",
    ],
)
def test_a_function_that_evaluates_without_an_optimizer_calls_the_module(
    train: str, without: str, tmp_path: Path
) -> None:
    after = convert(tmp_path, HEADER + BATCH + FIT.replace("TRAIN", train).replace("WITHOUT", without))
    assert "loss = F.mse_loss(model(x), y)\n    if engine is not None:\n        engine.backward(loss)" in after
    assert "shard(DataLoader(data, batch_size=4, shuffle=True)), DataLoader(data, batch_size=8)" in after


def test_a_function_that_always_trains_calls_the_engine(tmp_path: Path) -> None:
    train = "for x, y in train_dl:\n        loss_batch(model, x, y, opt)"
    fit = FIT.replace("TRAIN", train).replace("loss_batch(model, x, yWITHOUT)", "(model(x).mean().item(), 1)")
    text = HEADER + BATCH.replace("opt=None", "opt").replace("if opt is not None", "if True") + fit
    assert "loss = F.mse_loss(engine(x), y)" in convert(tmp_path, text)


DRAWN = """\
class Windows(Dataset):
    def __getitem__(self, index):
        start = INDEX
        return torch.zeros(4) + start, torch.zeros(1)

    def __len__(self):
        return 8


def cycle(loader):
    while True:
        yield from loader


train_loader = cycle(DataLoader(Windows(), batch_size=4))
val_loader = cycle(DataLoader(data, batch_size=4))
MAKE_MODEL
for i in range(4):
    x, y = next(train_loader)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        batch = next(val_loader)
        print(F.mse_loss(model(batch[0]), batch[1]))
"""


@pytest.mark.parametrize(
    ("index", "is_reviewed"),
    [
        ("torch.randint(0, 4, (1,))", True),
        ("torch.randint(0, 4, (1,)) if self.shuffle else index", True),
        ("index + torch.rand(1) if self.shuffle else index", False),
        ("index", False),
    ],
)
def test_a_loader_of_endless_batches_is_divided_and_random_items_are_for_review(
    index: str, is_reviewed: bool, tmp_path: Path
) -> None:
    header = HEADER.replace("DataLoader, ", "DataLoader, Dataset, ")
    (file,) = run(tmp_path, train=header + DRAWN.replace("INDEX", index)).files
    divided = b"cycle(shard(DataLoader(Windows(), batch_size=4)))\nval_loader = cycle(DataLoader(data"
    assert divided in (file.after or b"")
    reviews = [finding.message for finding in file.findings if finding.severity is Severity.REVIEW]
    expected = ["items of this dataset do not depend on their index: ranks with one seed draw the same ones"]
    assert reviews == expected * is_reviewed


PHASES = """\
def make(phase):
    return DataLoader(data, batch_size=4, shuffle=phase == "train")


MAKE_MODEL
loaders = {phase: make(phase) for phase in PARTS}
for phase in PARTS:
    for x, y in loaders[phase]:
        with torch.set_grad_enabled(phase == "train"):
            loss = F.mse_loss(model(x), y)
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""


@pytest.mark.parametrize(("parts", "is_item"), [('["train", "val"]', True), ("range(2)", False)])
def test_the_loader_of_a_phase_is_divided_that_a_function_makes(parts: str, is_item: bool, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + PHASES.replace("PARTS", parts))
    assert ('loaders["train"] = shard(loaders["train"])\n' in after) is is_item
    assert ("return shard(DataLoader(" in after) is not is_item


SPLIT = """
    rest = len(data) - 2
    sampler = torch.utils.data.SequentialSampler(range(2))
    train_set, val_set = torch.utils.data.random_split(data, [2, rest])
    sets = {"train": train_set, "val": val_set}
    loaders = {x: DataLoader(sets[x], batch_size=4, sampler=sampler) for x in ["train", "val"]}
    sizes = {x: len(sets[x]) for x in ["train", "val"]}
    MAKE_MODEL
    for phase in ["train", "val"]:
        total, losses = 0.0, []
        for x, y in loaders[phase]:
            loss = F.mse_loss(model(x), y)
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(x)
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        AVERAGE
    """


def test_an_average_over_samples_of_a_dict_beside_the_loaders_counts_the_share(tmp_path: Path) -> None:
    after = convert(tmp_path, body(SPLIT).replace("AVERAGE", "print(total / sizes[phase], mean)"))
    assert "print(total / count_samples(loaders[phase]), mean)" in after
    assert "mean = sum(losses) / len(losses)" in after


@pytest.mark.parametrize("average", ["print(total / rest)", "total /= len(data) - rest", "total /= len(sampler)"])
def test_an_average_by_a_number_made_of_all_samples_is_for_review(tmp_path: Path, average: str) -> None:
    report = run(tmp_path, train=body(SPLIT).replace("AVERAGE", average))
    found = [(f.code, f.message) for _, f in report.findings(Severity.REVIEW)]
    assert found == [("DSM612", "this divides the sum over a rank's share by a number that counts all data")]


def test_an_average_by_the_length_of_data_beside_the_method_that_makes_the_loader_is_for_review(
    tmp_path: Path,
) -> None:
    text = body("""
        class Splits:
            train = data

            def loader(self, split):
                return DataLoader(getattr(self, split), batch_size=4)


        splits = Splits()
        loader = splits.loader("train")
        MAKE_MODEL
        total = 0.0
        for x, y in loader:
            LOSS_STEP
            total += loss.item() * len(x)
        print(total / len(splits.train))
        """)
    found = [f.message for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)]
    assert found == ["this divides the sum over a rank's share by a number that counts all data"]


def test_an_average_by_the_length_of_what_a_data_set_is_made_of_is_for_review(tmp_path: Path) -> None:
    text = body("""
        points = torch.linspace(0, 3, 64)[:, None].expand(64, 4)
        MAKE_MODEL
        total = 0.0
        for x, y in DataLoader(TensorDataset(points, torch.sin(points[:, :1])), batch_size=16):
            LOSS_STEP
            total += loss.item() * len(x)
        print(total / len(points))
        """)
    found = [f.message for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)]
    assert found == ["this divides the sum over a rank's share by a number that counts all data"]


LOADERS_OF_PHASES = """
    LOADERS
    MAKE_MODEL
    for epoch in range(3):
        for phase in ["train", "val"]:
            for x, y in loaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = F.mse_loss(model(x), y)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
    """


@pytest.mark.parametrize(
    "loaders",
    [
        "loaders = {'train': DataLoader(data), 'val': DataLoader(data, 2)}",
        "loaders = dict(train=DataLoader(data), val=DataLoader(data, 2))",
        "train, val = DataLoader(data), DataLoader(data, 2)\n    loaders = {'train': train, 'val': val}",
        "loaders = {}\n    loaders['val'] = DataLoader(data, 2)\n    loaders['train'] = DataLoader(data)",
    ],
)
def test_only_the_loader_of_the_phase_that_trains_is_divided(tmp_path: Path, loaders: str) -> None:
    after = convert(tmp_path, body(LOADERS_OF_PHASES.replace("LOADERS", loaders)))
    assert "shard(DataLoader(data))" in after and "shard(DataLoader(data, 2))" not in after


@pytest.mark.parametrize("made", ['{x: DataLoader(data, batch_size=4) for x in ("train", "val")}', "make()"])
@pytest.mark.parametrize("used", ["loaders['train']", "loader"])
def test_an_item_that_trains_by_its_name_is_divided_behind_the_dict(used: str, made: str, tmp_path: Path) -> None:
    text = """
    def make():
        return {x: DataLoader(data, batch_size=4) for x in ("train", "val")}


    loaders = MADE
    loader = loaders["train"]
    MAKE_MODEL
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, len(loaders["train"]))
    for x, y in USED:
        STEP
        schedule.step()
    """
    after = convert(tmp_path, body(text.replace("MADE", made).replace("USED", used)))
    assert 'loaders["train"] = shard(loaders["train"])\nloader = loaders["train"]\n' in after
    assert after.count("shard(") == 1


@pytest.mark.parametrize("made", ["{x: DataLoader(sets[x], batch_size=4) for x in sets}", "make(sets)"])
def test_the_item_of_the_phase_that_trains_is_divided_behind_the_dict(made: str, tmp_path: Path) -> None:
    make = "def make(sets):\n    return {x: DataLoader(sets[x], batch_size=4) for x in sets}\n\n\n"
    text = LOADERS_OF_PHASES.replace("LOADERS", f"sets = dict(train=data, val=data)\n    loaders = {made}")
    after = convert(tmp_path, HEADER + "\n\n" + make + body(text).removeprefix(HEADER))
    assert f'loaders = {made}\nloaders["train"] = shard(loaders["train"])\n' in after and after.count("shard(") == 1


def test_the_item_of_a_dict_is_divided_before_a_function_that_trains_is_given_the_dict(tmp_path: Path) -> None:
    text = """
    def make():
        return {x: DataLoader(data, batch_size=4) for x in ("train", "val")}


    def fit(model, optimizer, loaders):
        for phase in ["train", "val"]:
            for x, y in loaders[phase]:
                loss = F.mse_loss(model(x), y)
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()


    MAKE_MODEL
    held = make()
    fit(model, optimizer, held)
    """
    after = convert(tmp_path, body(text))
    assert 'held = make()\nheld["train"] = shard(held["train"])\n' in after and after.count("shard(") == 1


def test_the_item_of_the_phase_that_trains_is_divided_where_a_loop_makes_it(tmp_path: Path) -> None:
    made = 'for x in ["train", "val"]:\n    loaders[x] = DataLoader(sets[x], batch_size=4)'
    text = body(SPLIT).replace(
        'loaders = {x: DataLoader(sets[x], batch_size=4, sampler=sampler) for x in ["train", "val"]}',
        "loaders = {}\n" + made,
    )
    after = convert(tmp_path, text.replace("AVERAGE", "print(mean)"))
    assert made + '\n    if x == "train":\n        loaders[x] = shard(loaders[x])\n' in after


def test_the_loaders_of_all_tasks_are_divided(tmp_path: Path) -> None:
    tasks = (
        "loaders = {}\nfor task in range(2):\n    loaders[task] = DataLoader(data, batch_size=4)\nloader = loaders[1]\n"
    )
    report = run(
        tmp_path, train=HEADER + LOOP.replace("loader = DataLoader(data, batch_size=4, shuffle=True)\n", tasks)
    )
    assert b"loaders[task] = shard(DataLoader(data, batch_size=4))" in (report.files[0].after or b"")


FOLDS = """\
def train(model, loader, optimizer):
    for x, y in loader:
        STEP


for fold in range(2):
    loader = DataLoader(data, batch_size=4)
    MAKE_MODEL
    train(model, loader, optimizer)
"""


@pytest.mark.parametrize(
    ("more", "inside", "is_reviewed"),
    [
        ("", "", False),
        ("    print(len(loader))\n", "", False),
        ("    print(sum(len(x) for x, y in loader))\n", "", True),
        ("    for x, y in loader:\n        print(model(x))\n", "", True),
        ("    library.evaluate(model, loader)\n", "", True),
        ("", "        if not model.training: continue\n", True),
    ],
)
def test_a_loader_made_again_is_for_review_where_a_loop_over_it_may_not_train(
    more: str, inside: str, is_reviewed: bool, tmp_path: Path
) -> None:
    loop = FOLDS.replace("        STEP", f"{inside}        STEP")
    report = run(tmp_path, train=f"import library\n{HEADER}{loop}{more}")
    message = "this call may make loaders for evaluation too, which then give each rank a share"
    assert (message in [finding.message for _, finding in report.findings(Severity.REVIEW)]) is is_reviewed


def test_the_loaders_of_one_function_that_may_evaluate_are_for_one_review(tmp_path: Path) -> None:
    text = """\
class Loaders:
    def make(self, mode):
        if mode == "warmup":
            return DataLoader(data, batch_size=8, shuffle=True)
        return DataLoader(data, batch_size=4, shuffle=True)


loaders = Loaders()
MAKE_MODEL
for epoch in range(3):
    for x, y in loaders.make("warmup" if epoch < 1 else "train"):
        STEP
    for x, y in loaders.make("test"):
        print(model(x))
"""
    found = [finding.message for _, finding in run(tmp_path, train=HEADER + text).findings(Severity.REVIEW)]
    assert len([message for message in found if "may make loaders for evaluation too" in message]) == 1


def test_steps_of_one_function_without_a_loader_are_for_one_review(tmp_path: Path) -> None:
    made = "x, y = data.tensors\nfor epoch in range(3):\n"
    text = LOOP.replace("for x, y in loader:\n", made) + LOOP.partition("for x, y in loader:\n")[2]
    (finding,) = [finding for _, finding in run(tmp_path, train=HEADER + text).findings(Severity.REVIEW)]
    assert finding.code == "DSM612" and finding.message.startswith("no DataLoader feeds this step")


FED_BY_CALLERS = """
class Learner:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self, batches):
        {loop}
            self.optimizer.zero_grad()
            F.mse_loss(self.model(x), y).backward()
            self.optimizer.step()


learner = Learner(Net())
"""


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("for i, (x, y) in enumerate(batches):", ["a caller that is not here gives this step its batches"]),
        ("for x, y in [batches] * 3:", ["no DataLoader feeds this step"]),
        ("if (x := batches[0]) is not (y := batches[1]):", []),
    ],
)
def test_steps_whose_batches_come_from_callers_that_are_not_here_are_not_said_to_have_no_loader(
    loop: str, found: list[str], tmp_path: Path
) -> None:
    report = run(tmp_path, train=HEADER + FED_BY_CALLERS.format(loop=loop))
    reviews = [f.message for _, f in report.findings(Severity.REVIEW) if f.code == "DSM612"]
    assert [message.partition(": several ")[0].partition(", which")[0] for message in reviews] == found


ROUNDS = """
class Strategy:
    def train(self):
        MAKE_MODEL
        loader = DataLoader(data, batch_size=4, shuffle=True)
        self.run(model, optimizer, loader)
        KEPT

    def run(self, model, optimizer, loader):
        for x, y in loader:
            STEP


strategy = Strategy()
strategy.train()
strategy.train()
"""


@pytest.mark.parametrize(("kept", "is_reviewed"), [("pass", False), ("return loader", True)])
def test_a_loader_that_its_function_gives_to_training_alone_is_not_for_review(
    kept: str, is_reviewed: bool, tmp_path: Path
) -> None:
    report = run(tmp_path, train=HEADER + ROUNDS.replace("KEPT", kept))
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert any("make loaders for evaluation" in message for message in found) is is_reviewed


SEARCH = """
def evaluate(model, loader):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.mse_loss(model(x), y).item()
    return total / len(loader)


def train(model, loader, other, optimizer, search):
    for x, y in loader:
        TRAIN
        STEP


loader, other = DataLoader(data, batch_size=4), DataLoader(data, batch_size=4)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
search = torch.optim.SGD(model.fc.parameters(), lr=0.01)
for epoch in range(2):
    train(model, loader, other, optimizer, search)
    print(evaluate(model, EVALUATED))
"""
DRAW = """\
a, b = next(iter(other))
        search.zero_grad()
        F.mse_loss(model(a), b).backward()
        search.step()"""


@pytest.mark.parametrize(
    ("train", "evaluated", "is_reviewed"),
    [("pass", "loader", True), ("pass", "other", False), (DRAW, "other", True), (DRAW, "DataLoader(data)", False)],
)
def test_a_loader_that_trains_and_evaluates_is_for_review(
    train: str, evaluated: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = SEARCH.replace("TRAIN", train).replace("EVALUATED", evaluated)
    report = run(tmp_path, train=HEADER + text)
    found = [(finding.code, finding.message) for _, finding in report.findings(Severity.REVIEW)]
    message = "this evaluates a rank's share alone: the loader trains too, and shard() divides it"
    assert found == [("DSM612", message)] * is_reviewed


def test_a_share_that_a_method_of_the_model_evaluates_is_for_review(tmp_path: Path) -> None:
    """The average of the share was silent, as model.compute(x) is no call of the model."""
    net = "class Computing(Net):\n    def compute(self, x):\n        return self.l(x)\n\n\n"
    text = net + SEARCH.replace("TRAIN", "pass").replace("EVALUATED", "loader").replace("Net()", "Computing()")
    head, _, evaluation = text.rpartition("model(")
    report = run(tmp_path, train=HEADER + head + "model.compute(" + evaluation)
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert found == ["this evaluates a rank's share alone: the loader trains too, and shard() divides it"]


CHOSEN = """
    class Solver:
        def __init__(self, model):
            self.train_loader = DataLoader(data, batch_size=4, shuffle=True)
            self.valid_loader = DataLoader(data, batch_size=8)
            self.model = model
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def run(self, is_validation=False):
            loader = self.train_loader if not is_validation else self.valid_loader
            total = 0.0
            for x, y in loader:
                loss = F.mse_loss(self.model(x), y)
                if not is_validation:
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                total += loss.item()
            return total


    solver = Solver(Net())
    solver.run()
    print(solver.run(is_validation=True))
    """


def test_a_loader_that_a_condition_chooses_where_nothing_steps_is_not_divided(tmp_path: Path) -> None:
    after = convert(tmp_path, body(CHOSEN))
    assert "shard(DataLoader(data, batch_size=4, shuffle=True))" in after
    assert "self.valid_loader = DataLoader(data, batch_size=8)" in after


ATTRIBUTES = """
    def make(mode):
        return DataLoader(data, batch_size=4, shuffle=mode == "train")


    class Solver:
        def __init__(self):
            self.train_loader = make("train")
            self.test_loader = make("test")
            self.model = Net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def train(self):
            for x, y in self.train_loader:
                OWN_STEP

        def energies(self):
            found = []
            for x, y in EVALUATED:
                found.append(((self.model(x) - y) ** 2).detach())
            return torch.cat(found)


    solver = Solver()
    solver.train()
    print(solver.energies().quantile(0.9))
    """


@pytest.mark.parametrize(("evaluated", "count"), [("self.train_loader", 1), ("self.test_loader", 0)])
def test_a_loader_that_is_divided_by_its_name_and_evaluates_is_for_review(
    evaluated: str, count: int, tmp_path: Path
) -> None:
    report = run(tmp_path, train=body(ATTRIBUTES).replace("EVALUATED", evaluated))
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert found == ["this evaluates a rank's share alone: the loader trains too, and shard() divides it"] * count


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ("print(metric.Estimator(model).score(train_loader=loader))", 1),
        ("estimator = metric.Estimator(model)\nestimator.fit(loader)", 1),
        ("best = metric.accuracy(model, loader)", 1),
        ("best = metric.accuracy(model, DataLoader(data))", 0),
        ("print(len(loader))\nloader = metric.Prefetch(loader)\nfor x, y in loader:\n    STEP", 0),
    ],
)
def test_a_library_that_gets_a_share_to_evaluate_is_for_review(lines: str, count: int, tmp_path: Path) -> None:
    """Each rank scored its share, in silence."""
    found = reviews(tmp_path, "import metric\n" + HEADER + LOOP + lines.replace("STEP", "print(model(x))"))
    message = "this gives a library the loader that trains: it gets a rank's share alone, as shard() divides it"
    assert [one for one in found if one == message] == [message] * count


BESIDE_RANKS = """
    import torch.distributed as dist


    def draw():
        while True:
            yield torch.zeros(4, 4), torch.zeros(4, 1)


    def fit(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in draw():
            STEP


    def start(rank):
        dist.init_process_group("gloo", rank=rank, world_size=2)
        MORE


    def alone():
        fit(Net())


    if __name__ == "__main__":
        torch.multiprocessing.spawn(start, nprocs=2)
    """


def test_data_is_reviewed_where_another_loop_alone_starts_ranks(tmp_path: Path) -> None:
    def is_reviewed(more: str) -> bool:
        report = run(tmp_path, train=body(BESIDE_RANKS.replace("MORE", more)))
        return any("no DataLoader feeds this step" in f.message for _, f in report.findings(Severity.REVIEW))

    assert is_reviewed("print(rank)") and not is_reviewed("fit(Net())")


PREFETCHED = """
    class Prefetcher:
        def __init__(self, loader):
            self.loader = loader
            self.batches = iter(loader)

        def next(self):
            try:
                return next(self.batches)
            except StopIteration:
                return None

        def reset(self):
            self.batches = iter(self.loader)


    def load():
        train_loader = DataLoader(data, batch_size=4, shuffle=True)
        test_loader = DataLoader(data, batch_size=4)
        return Prefetcher(train_loader), Prefetcher(test_loader)


    def train(model, optimizer, prefetcher):
        prefetcher.reset()
        batch = prefetcher.next()
        while batch is not None:
            optimizer.zero_grad()
            F.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
            batch = prefetcher.next()


    def validate(model, prefetcher):
        prefetcher.reset()
        batch = prefetcher.next()
        with torch.no_grad():
            while batch is not None:
                print(F.mse_loss(model(batch[0]), batch[1]))
                batch = prefetcher.next()


    def main():
        train_prefetcher, test_prefetcher = load()
        MAKE_MODEL
        train(model, optimizer, train_prefetcher)
        validate(model, TEST)


    main()
    """


@pytest.mark.parametrize("test", ["test_prefetcher", "train_prefetcher"])
def test_data_of_evaluation_stays_whole_in_an_object_of_the_same_class(test: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(PREFETCHED.replace("TEST", test)))
    assert "train_loader = shard(DataLoader(data, batch_size=4, shuffle=True))" in after
    assert after.count("shard(") == 1


KEPT_ITERATOR = """\
    class Batches:
        def __init__(self, size):
            self.loader = DataLoader(data, batch_size=size, shuffle=True)
            self.batches = BEGUN

        def next_batch(self):
            try:
                return next(self.batches)
            except StopIteration:
                self.batches = BEGUN
                return next(self.batches)


    def evaluate(model):
        for x, y in Batches(1).loader:
            print(F.mse_loss(model(x), y).item())


    def train(model, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            x, y = batches.next_batch()
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            evaluate(model)


    train(Net(), Batches(4))
    """


@pytest.mark.parametrize("begun", ["iter(self.loader)", "self.loader.__iter__()", "cycle(self.loader)"])
def test_the_loader_is_divided_and_not_its_iterator_where_an_object_keeps_both(begun: str, tmp_path: Path) -> None:
    before = "from itertools import cycle\n" + body(KEPT_ITERATOR.replace("BEGUN", begun))
    after = convert(tmp_path, before)
    assert "self.loader = shard(DataLoader(data, batch_size=size, shuffle=True))" in after
    assert after.count("shard(") == 1
    assert any("may make loaders for evaluation too" in message for message in reviews(tmp_path, before))


def test_all_data_is_divided_that_a_chosen_object_may_draw_from(tmp_path: Path) -> None:
    chosen = "train(model, optimizer, train_prefetcher if len(data) else test_prefetcher)"
    text = PREFETCHED.replace("train(model, optimizer, train_prefetcher)", chosen)
    assert convert(tmp_path, body(text.replace("TEST", "test_prefetcher"))).count("shard(") == 2


_TURNS = """\
SETUP
for epoch in range(2):
    bar = FIRST
    for x, y in bar:
        LOSS_STEP
    bar = SECOND
    for x, y in bar:
        loss = F.mse_loss(model(x), y)
"""
_SETUP = """\
from tqdm import tqdm
MAKE_MODEL
loader = DataLoader(data, batch_size=4, shuffle=True)
other = DataLoader(data, batch_size=4)"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tqdm(loader)", "tqdm(other)"),
        ("loader", "other"),
        ("enumerate(loader)", "enumerate(other)"),
        ("DataLoader(data, shuffle=True)", "DataLoader(data)"),
        ("tqdm(loader)\n    bar.set_description('train')", "tqdm(other)\n    bar.refresh()"),
    ],
)
def test_a_name_that_holds_two_loaders_in_turn_divides_the_one_that_trains(
    first: str, second: str, tmp_path: Path
) -> None:
    after = convert(
        tmp_path, HEADER + _TURNS.replace("SETUP", _SETUP).replace("FIRST", first).replace("SECOND", second)
    )
    assert after.count("shard(") == 1 and "shard(DataLoader(data, batch_size=4))" not in after
    assert "shard(DataLoader(data))" not in after


def test_a_name_that_holds_two_loaders_in_turn_gives_each_function_the_one_it_has(tmp_path: Path) -> None:
    loop = "    for x, y in loader:\n        optimizer.zero_grad()\n        F.mse_loss(model(x), y).backward()\n"
    calls = "bar = loader\ntrain(bar)\nbar = other\nevaluate(bar)\n"
    functions = f"def train(loader):\n{loop}        optimizer.step()\n\n\ndef evaluate(loader):\n    list(loader)\n\n\n"
    after = convert(tmp_path, f"{HEADER}{_SETUP}\n{functions}{calls}")
    assert "other = DataLoader(data, batch_size=4)\n" in after and after.count("shard(") == 1


def test_a_loader_that_the_round_before_may_have_set_trains_too(tmp_path: Path) -> None:
    loop = LOOP.replace("for x, y in loader:\n", "for epoch in range(2):\n  for x, y in loader:\n")
    after = convert(tmp_path, HEADER + loop + "  loader = DataLoader(data, batch_size=2)\n")
    assert after.count("shard(") == 2


_TRAINER = """\
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self, train_loader, val_loader):
        for epoch in range(2):
            FIT

    def run(self, loader, validate=False):
        for x, y in loader:
            loss = F.mse_loss(self.model(x), y)
            if TRAINS:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    def evaluate(self, loader):
        self.run(loader, validate=True)

    def log(self, loader, validate):
        print(self.run(loader, validate))

    def epoch(self, loader, is_training):
        if is_training:
            self.run(loader)
        else:
            self.run(loader, True)


Trainer(Net()).fit(DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8))
"""


@pytest.mark.parametrize("trains", ["not validate", "validate is False"])
@pytest.mark.parametrize(
    ("train", "evaluate"),
    [
        ("self.run(train_loader)", "self.run(val_loader, validate=True)"),
        ("self.run(train_loader, False)", "self.evaluate(val_loader)"),
        ("self.epoch(train_loader, True)", "self.epoch(val_loader, False)"),
        ("self.log(train_loader, False)", "self.log(val_loader, validate=True)"),
        ("for name, loader in [('train', train_loader), ('val', val_loader)]:", "    self.run(loader, name == 'val')"),
        ("for loader, flag in ((train_loader, False), (val_loader, True)):", "    self.run(loader, validate=flag)"),
        (
            "loaders = {'train': train_loader, 'val': val_loader}\n            for name in ['train', 'val']:",
            "    loader = loaders[name]\n                self.run(loader, name != 'train')",
        ),
        (
            "for name, loader in {'train': train_loader, 'val': val_loader}.items():",
            "    validate = name == 'val'\n                self.run(loader, validate)",
        ),
    ],
)
def test_a_loader_that_a_method_passes_on_for_evaluation_alone_is_not_divided(
    train: str, evaluate: str, trains: str, tmp_path: Path
) -> None:
    text = _TRAINER.replace("FIT", f"{train}\n            {evaluate}").replace("TRAINS", trains)
    after = convert(tmp_path, HEADER + text)
    assert after.count("shard(") == 1 and "shard(DataLoader(data, batch_size=4, shuffle=True))" in after


@pytest.mark.parametrize(
    ("use", "is_reviewed"),
    [
        ("    np.save(f'{i}.npy', model(x).detach())\n", True),
        ("    f.write(str(model(x).argmax()))\n", True),
        ("    keep(model(x), i)\n", True),
        ("    rows.execute('insert into y values (?)', model(x).tolist())\n", True),
        ("    rows.execute('select y from x where i = ?', model(x).argmax().tolist())\n", False),
        ("    np.save('first.npy', model(x).detach())\n    break\n", False),
        ("    model(x)\n", False),
    ],
)
def test_what_a_share_gives_that_a_loop_writes_is_for_review(use: str, is_reviewed: bool, tmp_path: Path) -> None:
    """Rank 0 wrote the files of its share alone, and no finding named that."""
    keep = "import numpy as np\n\n\ndef keep(y, i):\n    np.save(f'{i}.npy', y.detach())\n\n\nf = open('a.txt', 'w')\n"
    report = run(tmp_path, train=f"{HEADER}{keep}{LOOP}for i, (x, y) in enumerate(loader):\n{use}")
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    message = "this writes what a rank's share gives: the loader trains too, and shard() divides it"
    assert found == [message] * is_reviewed


@pytest.mark.parametrize(
    ("over", "trains"),
    [
        ("name, loader in (('train', first), ('val', second))", "name == 'train'"),
        ("is_train, loader in [(True, first), (False, second)]", "is_train"),
        ("name, loader in {'train': first, 'val': second}.items()", "name == 'train' and x is not None"),
        ("name, loader in PHASES", "name != 'val'"),
    ],
)
def test_of_loaders_in_written_pairs_the_one_is_divided_that_trains(over: str, trains: str, tmp_path: Path) -> None:
    text = (
        "first, second = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8)\n"
        "PHASES = [('train', first), ('val', second)]\n"
        "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"for {over}:\n    for x, y in loader:\n        loss = F.mse_loss(model(x), y)\n"
        f"        if {trains}:\n            optimizer.zero_grad()\n            loss.backward()\n"
        "            optimizer.step()\n"
    )
    after = convert(tmp_path, HEADER + text)
    assert after.count("shard(") == 1 and "shard(DataLoader(data, batch_size=4, shuffle=True))" in after


UNPACKED = """\
def make(split):
    return DataLoader(data, batch_size=4, shuffle=split == "train")


MAKE_MODEL
MADE
for x, y in TRAIN:
    LOSS_STEP
for x, y in VAL:
    print(model(x))
"""
_APPENDED = '    made = []\n    for split in ("train", "val"):\n        made.append(make(split))'
_FILLED = 'loaders = {}\nfor split in ("train", "val"):\n    loaders[split] = make(split)'


@pytest.mark.parametrize(
    ("made", "train", "val"),
    [
        ('a, b = [make(s) for s in ("train", "val")]', "a", "b"),
        ("a, b = [DataLoader(d, batch_size=4) for d in (data, data)]", "a", "b"),
        ("both = [DataLoader(d, batch_size=4) for d in (data, data)]\na, b = both", "a", "b"),
        (_FILLED, 'loaders["train"]', 'loaders["val"]'),
        ('def both():\n    return [make(s) for s in ("train", "val")]\n\n\na, b = both()', "a", "b"),
        ('a, b = (make(s) for s in ("train", "val"))', "a", "b"),
        (f"def both():\n{_APPENDED}\n    return made\n\n\na, b = both()", "a", "b"),
        ('loaders = {"val": make("val"), "train": make("train")}', 'loaders["train"]', 'loaders["val"]'),
        ('loaders = {"val": make("val")}\nloaders["train"] = make("train")', 'loaders["train"]', 'loaders["val"]'),
    ],
)
def test_the_loader_that_trains_is_divided_behind_what_makes_one_for_each_split(
    made: str, train: str, val: str, tmp_path: Path
) -> None:
    text = UNPACKED.replace("MADE", made).replace("TRAIN", train).replace("VAL", val)
    report = run(tmp_path, train=HEADER + text)
    after = (report.files[0].after or b"").decode()
    assert f"{made}\n{train} = shard({train})\nfor x, y in {train}:\n" in after.replace(_engine(after), "")
    assert after.count("shard(") == 1 and not list(report.findings(Severity.REVIEW))


def test_an_item_that_several_lines_set_is_not_divided_behind_one_of_them(tmp_path: Path) -> None:
    made = 'loaders = {"val": make("val"), "train": make("train")}\nif len(data) > 9:\n    loaders["train"] = make("a")'
    text = UNPACKED.replace("MADE", made).replace("TRAIN", 'loaders["train"]').replace("VAL", 'loaders["val"]')
    report = run(tmp_path, train=HEADER + text)
    assert b"return shard(DataLoader(" in (report.files[0].after or b"")
    assert any("may make loaders for evaluation too" in f.message for _, f in report.findings(Severity.REVIEW))


MADE_IN_ROUNDS = """\
def make(split):
    return DataLoader(data, batch_size=4, shuffle=split == "train")


def run_epoch(model, loader, optimizer, is_training=True):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if optimizer is not None and is_training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for phase in ["train", "val"]:
    loader = make(phase)
    run_epoch(model, loader, GIVEN)
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('optimizer if phase == "train" else None', '    if phase == "train":\n        loader = shard(loader)\n'),
        ('optimizer, phase != "val"', '    if phase == "train":\n        loader = shard(loader)\n'),
        ("optimizer, is_training=phase in wanted", "return shard(DataLoader("),
    ],
)
def test_a_loader_that_a_loop_makes_for_each_phase_is_divided_where_it_trains(
    given: str, expected: str, tmp_path: Path
) -> None:
    """That of the validation was divided too, and its metrics were of one rank's share, without a finding."""
    report = run(tmp_path, train=HEADER + MADE_IN_ROUNDS.replace("GIVEN", given))
    assert expected in (report.files[0].after or b"").decode()
    found = [f for _, f in report.findings(Severity.REVIEW) if "may make loaders for evaluation too" in f.message]
    assert len(found) == (expected.startswith("return"))


def test_the_loader_that_a_method_of_an_unpacked_data_set_makes_is_divided_where_it_trains(tmp_path: Path) -> None:
    """No loader was found for the step, so that all ranks would have trained on the same data."""
    text = """\
    class Rows:
        def __init__(self, split):
            self.split = split

        def loader(self):
            return DataLoader(data, batch_size=4)


    def prepare():
        return [Rows(split) for split in ("train", "val")]


    train, val = prepare()
    """
    made = textwrap.dedent(text) + "a, b = train.loader(), val.loader()"
    report = run(tmp_path, train=HEADER + UNPACKED.replace("MADE", made).replace("TRAIN", "a").replace("VAL", "b"))
    after = (report.files[0].after or b"").decode()
    assert "a = shard(a)\n" in after and after.count("shard(") == 1 and not list(report.findings(Severity.REVIEW))


@pytest.mark.parametrize(
    "load",
    ["partial(DataLoader, batch_size=4)", "lambda rows: DataLoader(rows, batch_size=4)"],
)
def test_a_loader_that_a_partial_makes_is_divided(load: str, tmp_path: Path) -> None:
    """No loader was found for the step, so that all ranks would have trained on the same data."""
    made = f"from functools import partial\nload = {load}\na, b = load(data), load(data)"
    text = UNPACKED.replace("MADE", made).replace("TRAIN", "a").replace("VAL", "b")
    assert "a, b = shard(load(data)), load(data)\n" in convert(tmp_path, HEADER + text)


@pytest.mark.parametrize(
    ("star", "is_divided"), [("", True), ("from math import *\n", True), ("from kit import *\n", False)]
)
def test_a_loader_of_a_star_import_of_torch_is_divided(star: str, is_divided: bool, tmp_path: Path) -> None:
    """No loader was found for the step, so that all ranks would have trained on the same data."""
    line = "from torch.utils.data import DataLoader, TensorDataset\n"
    assert line in HEADER
    text = HEADER.replace(line, f"from torch.utils.data import *\n{star}") + LOOP
    assert ("shard(DataLoader(" in convert(tmp_path, text)) is is_divided


def _engine(text: str) -> str:
    begin = text.index("engine, *_ =")
    return text[begin : text.index("match_torch(engine)\n") + len("match_torch(engine)\n")]


@pytest.mark.parametrize("line", ["sizes = len(loaders[split])", "print(loaders)", "loaders['test'] = make('test')"])
def test_a_loop_that_asks_for_the_loaders_which_it_makes_gets_each_a_share(line: str, tmp_path: Path) -> None:
    text = UNPACKED.replace("MADE", f"{_FILLED}\n    {line}")
    text = text.replace("TRAIN", 'loaders["train"]').replace("VAL", 'loaders["val"]')
    report = run(tmp_path, train=HEADER + text)
    assert b"return shard(DataLoader(" in (report.files[0].after or b"")
    assert any("may make loaders for evaluation too" in f.message for _, f in report.findings(Severity.REVIEW))


@pytest.mark.parametrize(
    ("condition", "is_reviewed"),
    [
        ("model.training", True),
        ("torch.is_grad_enabled()", True),
        ("loss.requires_grad", False),
        ("not torch.isnan(loss)", False),
        ("is_training", False),
    ],
)
def test_a_condition_that_may_evaluate_the_share_of_a_loader_is_for_review(
    condition: str, is_reviewed: bool, tmp_path: Path
) -> None:
    """Both loaders were divided, and no finding named that one of them is evaluated."""
    text = (
        "def run(loader, is_training):\n    for x, y in loader:\n        loss = F.mse_loss(model(x), y)\n"
        f"        if {condition}:\n            optimizer.zero_grad()\n            loss.backward()\n"
        "            optimizer.step()\n\n\n"
        "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "first, second = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8)\n"
        "run(first, True)\nmodel.eval()\nrun(second, False)\n"
    )
    found = [f.message for _, f in run(tmp_path, train=HEADER + text).findings(Severity.REVIEW)]
    message = "a condition decides whether this trains: it may evaluate a rank's share of a loader"
    assert found.count(message) == is_reviewed


@pytest.mark.parametrize(
    "rows",
    ["self.rows", "self.rows[dist.get_rank() :: dist.get_world_size()]", "self.rows.part(of=dist.get_world_size())"],
)
def test_a_stream_that_nothing_else_can_divide_is_for_review(rows: str, tmp_path: Path) -> None:
    """Each rank was said to train on a share, and all trained on the same samples."""
    stream = f"""
        import torch.distributed as dist
        from torch.utils import data as loading


        class Stream(loading.IterableDataset):
            def __init__(self, rows):
                self.rows = rows

            def __iter__(self):
                yield from {rows}


        """
    text = textwrap.dedent(stream) + LOOP.replace(
        "DataLoader(data, batch_size=4, shuffle=True", "DataLoader(Stream(data), 4"
    )
    report = run(tmp_path, train=HEADER + text)
    found = [f.message for _, f in report.findings(Severity.REVIEW) if "IterableDataset" in f.message]
    assert (len(found) == 1) is (rows == "self.rows")
