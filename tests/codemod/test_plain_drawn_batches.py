"""Plain loops that draw batches by ``next()``: loaders that training draws from are divided, others stay whole."""

from __future__ import annotations

import textwrap
from pathlib import Path

import plain_loops
import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, body, convert, run

LOADERS = """\
loader = DataLoader(data, batch_size=4, shuffle=True)
other = DataLoader(data, batch_size=4)
MAKE_MODEL
"""
STEP = """\
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""
LOOP = """\
{before}
for x, y in loader:
    {inside}
    loss = F.mse_loss(model(x), y){more}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{after}
"""
EVALUATION = "print(sum(F.mse_loss(model(a), b) for a, b in other))"


def divided(folder: Path, before: str = "", inside: str = "pass", more: str = "", after: str = EVALUATION) -> set[str]:
    """Return which of the two loaders are divided, in a loop at module level; as in a function, it must be the same."""
    loop = LOADERS + LOOP.format(before=before, inside=inside.replace("\n", "\n    "), more=more, after=after)
    in_function = "def main():\n" + textwrap.indent(loop, "    ") + "main()\n"
    texts = []
    for name, code in (("module", loop), ("function", in_function)):
        (folder / name).mkdir()
        texts.append(convert(folder / name, HEADER + code))
    found = [{n for n in ("loader", "other") if f"{n} = shard(DataLoader(" in text} for text in texts]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("drawn = iter(other)", "u, v = next(drawn)\nu = u * 2"),
        ("drawn = iter(other)", "try:\n    u = next(drawn)[0]\nexcept StopIteration:\n    drawn = iter(other)"),
        ("def begin():\n    return {'u': iter(other)}\ndrawn = begin()", "u, v = next(drawn['u'])"),
        ("drawn = other.__iter__()", "u, v = drawn.__next__()"),
        ("", "u, _ = next(iter(other))"),
        ("drawn = iter(other)", "batch = next(drawn)\nu, _ = batch"),
    ],
)
def test_a_second_loader_that_training_draws_from_is_divided(before: str, inside: str, tmp_path: Path) -> None:
    assert divided(tmp_path, before, inside, more=" + model(u).mean()") == {"loader", "other"}


def test_a_batch_that_a_function_copies_into_a_tensor_is_trained_on(tmp_path: Path) -> None:
    before = "def fill(old, new):\n    old.resize_(new.size()).copy_(new)\nu = torch.zeros(1)\ndrawn = iter(other)"
    inside = "v, _ = next(drawn)\nfill(u, v)"
    assert divided(tmp_path, before, inside, " + model(u).mean()") == {"loader", "other"}


@pytest.mark.parametrize("parts", ["losses = []\nlosses.append(model(u).mean())", "losses = [model(u).mean()]"])
def test_a_batch_that_is_collected_in_the_loss_is_trained_on(parts: str, tmp_path: Path) -> None:
    assert divided(tmp_path, "drawn = iter(other)", f"u, _ = next(drawn)\n{parts}", " + sum(losses)") == {
        "loader", "other",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("fixed, _ = next(iter(other))", "print(model(fixed))"),
        ("drawn = iter(other)\nfixed = next(drawn)", "pass"),
        ("", "if len(x) < 3:\n    x, y = next(iter(other))\n    print(model(x))"),
        ("print(next(iter(loader)))", "pass"),
        ("shown = next(iter(other))[0]\nwidth = shown.size()[1]", "x = x[:, :width]"),
    ],
)
def test_a_loader_whose_batch_is_only_shown_is_not_divided(before: str, inside: str, tmp_path: Path) -> None:
    assert divided(tmp_path, before, inside) == {"loader"}


def test_a_loader_in_a_bar_that_is_set_beside_others_is_divided(tmp_path: Path) -> None:
    before = "from tqdm import tqdm\ntotal, bar = 0.0, tqdm(other)"
    loop = LOADERS + LOOP.format(before=before, inside="pass", more="", after="").replace("in loader", "in bar")
    assert "other = shard(DataLoader(" in convert(tmp_path, HEADER + loop)


WRAPPED = """\
class Wrapped:
    def __init__(self):
        self.inner = DataLoader(data, batch_size=4, shuffle=True)

    def __iter__(self):
        for batch in self.inner:
            yield batch


class Trainer:
    def __init__(self):
        self.loader, self.model = Wrapped(), Net()
        {more}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        for x, y in self.loader:
            loss = F.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


Trainer().fit()
"""


@pytest.mark.parametrize(("more", "is_for_review"), [("pass", False), ("self.other = Wrapped()", True)])
def test_the_loader_in_an_object_that_iterates_is_divided(more: str, is_for_review: bool, tmp_path: Path) -> None:
    report = run(tmp_path, train=HEADER + WRAPPED.format(more=more))
    (result,) = report.files
    assert result.after is not None
    assert b"        self.inner = shard(DataLoader(data, batch_size=4, shuffle=True))\n" in result.after
    assert result.after.count(b"shard(") == 1
    assert [f.code for _, f in report.findings(Severity.REVIEW)] == ["DSM612"] * is_for_review


@pytest.mark.parametrize(
    "body", ["return ((x.float(), y) for x, y in self.inner)", "yield from self.inner", "return map(tuple, self.inner)"]
)
def test_the_loader_that_an_object_hands_on_in_an_expression_is_divided(body: str, tmp_path: Path) -> None:
    """As the Batches of DAWNBench's programs for CIFAR-10: all ranks trained on the same batches."""
    loops = "for batch in self.inner:\n            yield batch"
    report = run(tmp_path, train=HEADER + WRAPPED.format(more="pass").replace(loops, body))
    assert [result.after.count(b"= shard(") for result in report.files if result.after] == [1]
    assert not list(report.findings(Severity.REVIEW))


def test_the_loader_of_a_generator_expression_is_divided(tmp_path: Path) -> None:
    loop = LOOP.replace("for x, y in loader:", "for x, y in ((a.float(), b) for a, b in loader):")
    assert "loader = shard(DataLoader(" in convert(
        tmp_path, HEADER + LOADERS + loop.format(before="pass", inside="pass", more="", after="")
    )


COUNTED = """
loader = DataLoader(data, batch_size=4)
MAKE_MODEL
steps = len(data) // 4
for epoch in range(2):
    batches = iter(loader)
    for step in range(steps):
        x, y = next(batches)
        STEP
"""


@pytest.mark.parametrize(
    ("old", "new", "is_reviewed"),
    [
        ("range(steps)", "range(steps)", True),
        ("range(steps)", "range(100)", True),
        (
            "iter(loader)\n    for step in range(steps):\n        x, y",
            "enumerate(loader)\n    for step in range(9):\n        _, (x, y)",
            True,
        ),
        ("range(steps)", "range(len(loader))", False),
        ("len(data) // 4", "len(loader) - 1", False),
        ("next(batches)", "next(batches, (None, None))", False),
        ("iter(loader)", "forever(loader)", False),
        ("next(batches)", "next(iter(loader))", False),
    ],
)
def test_a_loop_that_counts_to_another_number_than_its_batches_is_reviewed(
    old: str, new: str, is_reviewed: bool, tmp_path: Path
) -> None:
    assert old in COUNTED
    report = run(tmp_path, train=HEADER + COUNTED.replace(old, new))
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any("draws a number of batches" in message for message in found) is is_reviewed


ENDLESS = """
class Endless(torch.utils.data.Sampler):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(forever(len(self.data)))


def forever(count):
    while True:
        yield from LIMITrange(count)


"""


@pytest.mark.parametrize(("limit", "is_reviewed"), [("", False), ("range(1)\n        break\n    yield from ", True)])
def test_a_loop_that_draws_by_an_endless_sampler_is_not_for_review(
    limit: str, is_reviewed: bool, tmp_path: Path
) -> None:
    loop = COUNTED.replace("batch_size=4", "batch_size=4, sampler=Endless(data)")
    report = run(tmp_path, train=HEADER + ENDLESS.replace("LIMIT", limit) + loop)
    assert bool(list(report.findings(Severity.REVIEW))) is is_reviewed


@pytest.mark.parametrize(
    ("count", "is_reviewed"),
    [
        ("len(data) // batch_size", True),
        ("int(len(loader.dataset) / 4 / 2)", False),
        ("int(len(loader.dataset) / loader.batch_size)", True),
        ("len(loader)", False),
        ("len(other) // batch_size", False),
    ],
)
def test_a_schedule_that_counts_the_batches_of_all_data_is_reviewed(
    count: str, is_reviewed: bool, tmp_path: Path
) -> None:
    lines = "batch_size, other = 4, [1, 2, 3]\nschedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, {})\n"
    text = COUNTED.replace("range(steps)", "range(len(loader))").replace(
        "len(data) // 4\n", f"5\n{lines.format(count)}"
    )
    report = run(tmp_path, train=HEADER + text)
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any("counts the batches of all data" in message for message in found) is is_reviewed


HOLDER = """
class Stream:
    def __init__(self, source):
        self.source, self.it = source, iter(source)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.it)

    def get(self):
        try:
            return next(self.it)
        except StopIteration:
            self.it = iter(self.source)
            return next(self.it)

    def next(self):
        batch = self.get()
        return batch


def draw(it):
    return next(it)


loader = DataLoader(data, batch_size=4, shuffle=True)
other = DataLoader(data, batch_size=4)
MAKE_MODEL
{made}
for step in range(20):
    x, y = {drawn}
    STEP
    print([model(a) for a, _ in other])
"""


@pytest.mark.parametrize(
    ("made", "drawn"),
    [
        ("stream = Stream(loader)", "stream.next()"),
        ("stream = Stream(loader)", "next(stream)"),
        ("stream, shown = Stream(loader), Stream(other)", "stream.get()"),
        ("stream, shown = Stream(loader), Stream(other)\nprint(next(shown))", "next(stream)"),
        ("it = iter(loader)", "draw(it)"),
        ("streams = {'a': Stream(loader)}", "streams['a'].get()"),
        ("streams = {t: Stream(each) for t, each in {'a': loader}.items()}", "streams['a'].next()"),
        ("its = [iter(each) for each in (loader,)]", "next(its[step % 1])"),
    ],
)
def test_the_loader_behind_what_hands_out_batches_is_divided(made: str, drawn: str, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + HOLDER.format(made=made, drawn=drawn))
    assert "loader = shard(DataLoader(data, batch_size=4, shuffle=True))\n" in after and after.count("shard(") == 1


def test_a_loader_is_divided_by_what_a_function_does_with_the_object_that_it_is_in(tmp_path: Path) -> None:
    loop = HOLDER.format(made="def train(stream, shown):\n  for step in range(20):", drawn="next(stream)")
    head, body = loop.split("\nfor step in range(20):\n")
    loop = head + "\n" + body.replace("    ", "      ") + "\ntrain(Stream(loader), Stream(other))\n"
    report = run(tmp_path, train=HEADER + loop)
    assert not [f.message for _, f in report.findings(Severity.REVIEW) if "evaluation" in f.message]
    (result,) = report.files
    assert result.after is not None and b"\nloader = shard(" in result.after and result.after.count(b"shard(") == 1


def test_loaders_that_are_put_into_a_dict_one_by_one_are_divided(tmp_path: Path) -> None:
    made = (
        "loaders = {}\nfor task in 'ab':\n    loaders[task] = DataLoader(data, batch_size=2)\nit = iter(loaders['a'])"
    )
    after = convert(tmp_path, HEADER + HOLDER.format(made=made, drawn="draw(it)"))
    assert "    loaders[task] = shard(DataLoader(data, batch_size=2))\n" in after and after.count("shard(") == 1


@pytest.mark.parametrize(
    "body", ["while True:\n        yield from loader", "while 1:\n        for b in loader: yield b"]
)
def test_a_generator_that_starts_over_is_not_for_review(body: str, tmp_path: Path) -> None:
    made = f"def forever(loader):\n    {body}\nit = iter(forever(loader))"
    report = run(tmp_path, train=HEADER + HOLDER.format(made=made, drawn="next(it)"))
    assert not list(report.findings(Severity.REVIEW))


def test_a_sampler_that_a_function_chooses_may_leave_all_data_to_each_rank(tmp_path: Path) -> None:
    after = convert(
        tmp_path,
        HEADER
        + textwrap.dedent("""
            import argparse


            def choose(data, shuffle, distributed):
                if distributed:
                    return torch.utils.data.DistributedSampler(data, shuffle=shuffle)
                if shuffle:
                    return torch.utils.data.RandomSampler(data)
                return torch.utils.data.SequentialSampler(data)


            def endless(loader):
                while True:
                    for batch in loader:
                        yield batch


            args = argparse.ArgumentParser().parse_args()
            torch.manual_seed(0)
            model = Net()
            optimizer = torch.optim.Adam(model.parameters())
            loader = DataLoader(data, 4, sampler=choose(data, shuffle=True, distributed=args.distributed))
            batches = endless(loader)
            for step in range(10):
                x, y = next(batches)
                loss = F.mse_loss(model(x), y)
                model.zero_grad()
                loss.backward()
                optimizer.step()
            """),
    )
    assert "loader = shard(DataLoader(data, 4, sampler=choose(" in after
    assert '"train_micro_batch_size_per_gpu": 4,' in after


MADE_FOR_BOTH = """
from tqdm import tqdm

def make(rank, shuffle):
    return DataLoader(data, batch_size=4, shuffle=shuffle), data

def train():
    MAKE_MODEL
    loader, dataset = make(0, True)
    other = make(-1, False)[0]
    bar = enumerate(loader)
    if len(dataset):
        bar = tqdm(bar, total=len(loader))
    for i, (x, y) in bar:
        STEP
    print([model(x) for x, _ in other])

train()
"""


def test_a_loader_under_a_bar_that_takes_its_own_name_is_divided_alone(tmp_path: Path) -> None:
    report = run(tmp_path, train=HEADER + MADE_FOR_BOTH)
    (result,) = report.files
    assert b"    loader = shard(loader)\n" in (result.after or b"") and (result.after or b"").count(b"shard(") == 1
    assert not list(report.findings(Severity.REVIEW))


OTHER = """
    import webdataset


    def train(loader, model, optimizer):
        bar = tqdm(loader)
        for i, (x, y) in enumerate(bar):
            STEP


    if folder:
        loader = {other}
    else:
        loader = DataLoader(data, batch_size=4, shuffle=True)
    model = Net()
    train(loader, model, torch.optim.SGD(model.parameters(), lr=0.1))
    """


def test_what_may_feed_a_step_in_the_place_of_a_loader_is_reviewed(tmp_path: Path) -> None:
    other = "webdataset.WebLoader(webdataset.WebDataset(folder), batch_size=4)"
    [result] = run(tmp_path, train=HEADER + textwrap.dedent(OTHER.format(other=other))).files
    assert result.after is not None
    found = [f.message for f in result.findings if f.code == "DSM612" and f.severity is Severity.REVIEW]
    what = "may feed the step in the place of a DataLoader: several ranks train on the same data then"
    assert found == [f"webdataset.WebLoader() {what}"]


def test_what_passes_the_batches_of_a_loader_on_is_not_reviewed(tmp_path: Path) -> None:
    other = "webdataset.Prefetcher(DataLoader(data, batch_size=2, shuffle=True))"
    [result] = run(tmp_path, train=HEADER + textwrap.dedent(OTHER.format(other=other))).files
    assert not [f for f in result.findings if "in the place of a DataLoader" in f.message]


def test_an_own_class_that_may_feed_a_step_in_the_place_of_a_loader_is_reviewed(tmp_path: Path) -> None:
    source = """
    class FastLoader:
        def __init__(self, source, loader=None):
            self.source, self.loader = source, loader

        def __iter__(self):
            for batch in {batches}:
                yield batch
    """
    other = "FastLoader(data, DataLoader(data))"
    found = {}
    for batches in ("self.source.batches()", "self.loader"):
        text = HEADER + textwrap.dedent(source.format(batches=batches)) + textwrap.dedent(OTHER.format(other=other))
        [result] = run(tmp_path, train=text).files
        found[batches] = [f.message for f in result.findings if "in the place of a DataLoader" in f.message]
    what = "may feed the step in the place of a DataLoader: several ranks train on the same data then"
    assert found == {"self.source.batches()": [f"FastLoader() {what}"], "self.loader": []}


def test_a_task_s_loader_of_one_batch_stays_whole(tmp_path: Path) -> None:
    text = """
    import random

    def loader_of(task):
        return DataLoader(TensorDataset(task[0], task[1]), batch_size=5, shuffle=True)

    MAKE_MODEL
    for episode in range(4):
        task = random.choice([(torch.zeros(5, 4), torch.zeros(5, 1)), (torch.ones(5, 4), torch.ones(5, 1))])
        loader = loader_of(task)
        x, y = next(iter(loader))
        STEP
    """
    report = run(tmp_path, train=HEADER + textwrap.dedent(text))
    (result,) = report.files
    assert result.after is not None and b"shard(" not in result.after
    (finding,) = (f for _, f in report.findings(Severity.REVIEW))
    assert finding.message.startswith("each round makes this step's loaders for one batch: several ranks train on")


def test_a_loader_of_all_data_is_divided_although_each_round_makes_it(tmp_path: Path) -> None:
    text = """
    MAKE_MODEL
    for step in range(4):
        x, y = next(iter(DataLoader(data, batch_size=4, shuffle=True)))
        STEP
    """
    assert "shard(DataLoader(" in convert(tmp_path, HEADER + textwrap.dedent(text))


VALIDATED = """
    loader = DataLoader(data, batch_size=4, shuffle=True)
    other = DataLoader(data, batch_size=4)
    MAKE_MODEL


    class Kept:
        pass


    def validate():
        model.eval()
        batches = iter(other)
        for _ in range(len(other)):
            batch = next(batches)
            a, b = batch
            Kept.loss = LOSS
        model.train()


    batches = iter(loader)
    for step in range(20):
        x, y = next(batches)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        validate()
    """


@pytest.mark.parametrize(
    ("kept", "is_whole"), [("1", True), ("F.mse_loss(model(a), b)", False), ("1; memory.append(a)", False)]
)
def test_batches_that_a_function_draws_to_evaluate_stay_whole(kept: str, is_whole: bool, tmp_path: Path) -> None:
    text = convert(tmp_path, body(VALIDATED.replace("LOSS", kept)))
    assert "\nloader = shard(DataLoader(" in text
    assert ("\nother = DataLoader(" in text) is is_whole


@pytest.mark.parametrize(
    ("returned", "used", "is_whole"),
    [
        ("correct / len(other)", "", True),
        ("int(correct), len(other)", " * config['scale'][0]", True),
        ("a", " * config['scale'].mean()", False),
    ],
)
def test_a_function_that_returns_numbers_of_the_batches_it_draws_only_evaluates(
    returned: str, used: str, is_whole: bool, tmp_path: Path
) -> None:
    text = VALIDATED.replace("Kept.loss = LOSS", "correct = (model(a) == b).sum().item()")
    text = text.replace("        model.train()\n", f"        model.train()\n        return {returned}\n")
    text = text.replace("validate()\n    ", "config['scale'] = validate()\n    ").replace(
        "F.mse_loss(model(x), y).backward()", f"(F.mse_loss(model(x), y){used}).backward()"
    )
    after = convert(tmp_path, body("config = {}\n" + textwrap.dedent(text)))
    assert "\nloader = shard(DataLoader(" in after
    assert ("\nother = DataLoader(" in after) is is_whole


def test_what_is_written_to_a_file_in_a_dict_of_settings_is_not_trained_on(tmp_path: Path) -> None:
    text = VALIDATED.replace("Kept.loss = LOSS", "out = model(a)")
    text = text.replace("        model.train()\n", "        model.train()\n        return out\n")
    text = text.replace(
        "validate()\n    ", "score = validate()\n        config['log'].write(str(score))\n    "
    ).replace("F.mse_loss(model(x), y).backward()", "(F.mse_loss(model(x), y) * config['scale']).backward()")
    config = "config = {'log': open('log.txt', 'w'), 'scale': 2.0}\n"
    after = convert(tmp_path, body(config + textwrap.dedent(text)))
    assert "\nloader = shard(DataLoader(" in after and "\nother = DataLoader(" in after


def test_a_number_that_a_progress_bar_counts_is_the_same_on_all_ranks(tmp_path: Path) -> None:
    text = """
        from tqdm import tqdm


        def main():
            model = Net()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            batches = iter(DataLoader(data, batch_size=4))
            with tqdm(range(2)) as bar:
                for i in bar:
                    x, y = next(batches)
                    STEP
                    if i % 5 == 0:
                        torch.save(optimizer.state_dict(), "optimizer.pt")


        main()
        """
    assert "rank_0_decides" not in convert(tmp_path, body(text))


def test_a_loop_that_draws_from_a_stream_without_an_end_never_runs_out(tmp_path: Path) -> None:
    text = """
        from torch.utils.data import IterableDataset


        class Pairs(IterableDataset):
            def __iter__(self):
                while True:
                    yield torch.rand(4), torch.rand(1)


        MAKE_MODEL
        batches = iter(DataLoader(Pairs(), batch_size=4))
        for _ in range(5):
            x, y = next(batches)
            STEP
        """
    report = run(tmp_path, train=body(text))
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert not any("ends before the loop" in message for message in messages)


def test_a_progress_bar_that_a_with_statement_names_counts_the_batches_of_its_loader(tmp_path: Path) -> None:
    loop = plain_loops.LOOP.replace(
        "for x, y in loader:", "with tqdm(enumerate(loader)) as bar:\n  for _, (x, y) in bar:"
    )
    after = convert(tmp_path, "from tqdm import tqdm\n" + HEADER + loop)
    assert "loader = shard(DataLoader(data, batch_size=4, shuffle=True))\n" in after
    assert '"train_micro_batch_size_per_gpu": 4,' in after


def test_batches_of_a_backward_pass_that_a_function_makes_beside_eval_are_divided(tmp_path: Path) -> None:
    text = """
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model, teacher = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(loader)


    def add_gradients():
        teacher.eval()
        x, y = next(batches)
        F.mse_loss(model(x), teacher(x).detach()).backward()


    for step in range(4):
        optimizer.zero_grad()
        add_gradients()
        optimizer.step()
    """
    assert "\nloader = shard(DataLoader(" in convert(tmp_path, body(text))


TWO_WAYS = """
    class Both:
        def __init__(self, one, other):
            self.one = self.endless(one)
            self.other = self.endless(other)

        def __next__(self):
            return next(self.one), next(self.other)

        @staticmethod
        def endless(loader):
            while True:
                for batch in loader:
                    yield batch


    def step(model, optimizer, batches):
        optimizer.zero_grad()
        (x, y), (z, _) = next(batches)
        F.mse_loss(model(x) + model(z), y).backward()
        optimizer.step()


    def main():
        model = Net()
        one = DataLoader(data, batch_size=4, shuffle=True)
        other = DataLoader(data, batch_size=4, shuffle=True)
        batches = Both(one, other)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            step(model, optimizer, batches)


    main()
    """


def test_two_loaders_of_the_only_object_of_a_class_are_divided_without_a_review(tmp_path: Path) -> None:
    report = run(tmp_path, train=body(TWO_WAYS))
    assert not list(report.findings(Severity.REVIEW))
    assert (report.files[0].after or b"").count(b" = shard(DataLoader(") == 2
    again = TWO_WAYS.replace(
        "        batches = Both",
        "        valid = DataLoader(data)\n        print(next(Both(valid, valid)))\n        batches = Both",
    )
    found = [finding.message for _, finding in run(tmp_path, train=body(again)).findings(Severity.REVIEW)]
    assert found and all("may make loaders for evaluation too" in message for message in found)


CLASSES = """
    class Batches:
        def __init__(self):
            self.loader = DataLoader(data, batch_size=4, shuffle=True)
            self.it = None

        def draw(self):
            if self.it is None:
                self.it = iter(self.loader)
            return next(self.it)


    class Shown:
        def __init__(self):
            self.loader = DataLoader(data, batch_size=8)
            self.it = None

        def draw(self):
            if self.it is None:
                self.it = iter(self.loader)
            return next(self.it)


    def score(x, y):
        with torch.no_grad():
            return F.mse_loss(model(x), y).item()


    def validate(batches):
        x, y = batches.draw()
        print(score(x, y))


    MAKE_MODEL
    batches, shown = Batches(), Shown()
    for step in range(20):
        x, y = batches.draw()
        STEP
        validate(shown)
    """


def test_loaders_of_unrelated_classes_with_attributes_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    text = convert(tmp_path, body(CLASSES))
    assert "self.loader = shard(DataLoader(data, batch_size=4, shuffle=True))" in text and text.count("shard(") == 1


def test_loaders_of_one_attribute_are_kept_together_where_an_object_is_of_both_classes(tmp_path: Path) -> None:
    joined = CLASSES.replace(
        "batches, shown = Batches(), Shown()",
        "class Both(Batches, Shown):\n        pass\n\n\n    batches = shown = Both()",
    )
    assert convert(tmp_path, body(joined)).count("shard(") == 2


@pytest.mark.parametrize("size", ["len(points)", "4"])
def test_a_batch_of_all_samples_is_whole_on_each_rank(size: str, tmp_path: Path) -> None:
    """Targets beside it are of all samples: with a share of it they had another shape, or were broadcast."""
    read = f"    (x,) = next(iter(DataLoader(points, batch_size={size})))\n    return x\n"
    loader = f"def read():\n    points = TensorDataset(torch.randn(8, 4))\n{read}\n\nx, y = read(), torch.randn(8, 1)\n"
    step = "    loss = F.mse_loss(model(x), y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    optimizer = "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    after = convert(tmp_path, f"{HEADER}{loader}{optimizer}for _ in range(3):\n{step}")
    assert ("shard(DataLoader(" in after) == (size == "4")
