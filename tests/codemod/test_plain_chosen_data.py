"""What plain loops choose or keep of their data by what the model gives: each rank has others."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, run

CHOSEN = (
    "this data is chosen by what differs by rank, as outputs and losses do: each rank would have another selection, "
    "and divide it by rank 0's indices"
)
CLEAN = """\
from torch.utils.data import Dataset, Subset, SubsetRandomSampler


class Clean(Dataset):
    def __init__(self, data, mask):
        self.data, self.index = data, [i for i in range(len(data)) if mask[i]]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        return self.data[self.index[i]]


def make_loader(data):
    return DataLoader(data, batch_size=4)


MAKE_MODEL
every = torch.zeros(8, 4)
"""
ROUNDS = """\
kept = list(range(8))
for cycle in range(3):
    loader = {loader}
    for x, y in loader:
        STEP
    {chosen}
"""
BY_OUTPUT = "kept = model(every).argmax(1).tolist()"


def _reviews(tmp_path: Path, text: str) -> list[str]:
    return [f.message for _, f in run(tmp_path, train=HEADER + text).findings(Severity.REVIEW)]


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(kept))",
        "DataLoader(Subset(data, kept), 4, shuffle=True)",
        "DataLoader(Clean(data, kept), batch_size=4)",
        "make_loader(Clean(data, mask=kept))",
    ],
)
def test_data_that_outputs_of_the_model_choose_are_for_review(loader: str, tmp_path: Path) -> None:
    assert _reviews(tmp_path, CLEAN + ROUNDS.format(loader=loader, chosen=BY_OUTPUT)) == [CHOSEN]
    assert not _reviews(tmp_path, CLEAN + ROUNDS.format(loader=loader, chosen="kept = kept[1:]"))


@pytest.mark.parametrize(("read", "found"), [("rows.values()", []), ("rows.values", [CHOSEN])])
def test_the_items_of_a_dict_are_not_an_attribute_that_holds_outputs(
    read: str, found: list[str], tmp_path: Path
) -> None:
    chosen = f"data.values = model(every)\n    rows = ROWS\n    kept = list({read})"
    loader = "DataLoader(Subset(data, kept), 4)"
    text = "ROWS = {}\n" + CLEAN + ROUNDS.format(loader=loader, chosen=chosen)
    assert _reviews(tmp_path, text) == found


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ("rows['first']", []),
        ("rows['score']", [CHOSEN]),
        ("rows[key]", [CHOSEN]),
        ("rows", [CHOSEN]),
    ],
)
def test_an_item_of_an_attribute_is_not_another_one_that_holds_outputs(
    read: str, found: list[str], tmp_path: Path
) -> None:
    chosen = f"other.rows['score'] = model(every)\n    kept = list(table.{read})"
    loader = "DataLoader(Subset(data, kept), 4)"
    text = "key = str(print)\n" + CLEAN + ROUNDS.format(loader=loader, chosen=chosen)
    assert _reviews(tmp_path, text) == found


def test_data_in_lists_by_the_clusters_of_outputs_are_for_review(tmp_path: Path) -> None:
    chosen = (
        "lists, clusters = [[] for _ in range(2)], model(every).argmax(1)\n"
        "    for i in range(8):\n        lists[clusters[i]].append(i)\n    kept = lists[0]"
    )
    loader = "DataLoader(Subset(data, kept), 4)"
    assert _reviews(tmp_path, CLEAN + ROUNDS.format(loader=loader, chosen=chosen)) == [CHOSEN]


MEMORY = """\
class Targets(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept, self.first = torch.zeros(8, 4), 0
        self.register_buffer("scale", torch.zeros(2))

    def forward(self, index, out, step):
        {line}
        return ((out - self.kept[index]) ** 2).mean()


targets = Targets()
MAKE_MODEL
for step, (x, index) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
    optimizer.zero_grad()
    targets(index, model(x), step).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "self.kept[index] = 0.9 * self.kept[index] + 0.1 * out.detach()",
            "each rank keeps its own kept, of the samples of its share of the data",
        ),
        ("self.scale[1] = out.mean()", "each rank makes its own scale of its share of the data"),
        ("self.kept[step] = out.detach()[0]", None),
        ("self.kept[index] = 0.0", None),
    ],
)
def test_items_that_a_loss_keeps_of_samples_are_for_review(line: str, found: str | None, tmp_path: Path) -> None:
    assert _reviews(tmp_path, MEMORY.format(line=line)) == ([] if found is None else [found])


LABELS = """\
labels = torch.zeros(8, 4)
MAKE_MODEL
for epoch in range(2):
    for x, index in DataLoader(data, batch_size=4, shuffle=True):
        out = model(x)
        optimizer.zero_grad()
        F.mse_loss(out, {target}).backward()
        optimizer.step()
        x[index > 2] = x[index > 2] + out.detach()
        labels[{index}] = out.detach()
"""


@pytest.mark.parametrize(
    ("target", "index", "found"),
    [
        ("labels[index]", "index", ["each rank keeps its own labels, of the samples of its share of the data"]),
        ("x", "index", []),
        ("labels[:4]", "epoch", ["each rank collects samples of its share of the data in labels, for its own loss"]),
    ],
)
def test_labels_that_a_loop_corrects_by_its_outputs_are_for_review(
    target: str, index: str, found: list[str], tmp_path: Path
) -> None:
    assert _reviews(tmp_path, LABELS.format(target=target, index=index)) == found


@pytest.mark.parametrize("home", ["torch.quantization", "torch.ao.quantization"])
def test_ranges_of_quantization_that_training_observes_are_for_review(home: str, tmp_path: Path) -> None:
    text = f"""\
from {home} import prepare_qat
model = Net()
prepare_qat(model, inplace=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=4):
    STEP
"""
    assert _reviews(tmp_path, text) == ["each rank computes the ranges of quantization from its share of the data"]


TIMES = """\
import time

taken = {{}}
MAKE_MODEL
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    print(taken)
    STEP
    taken[{key}] = {value}
"""


@pytest.mark.parametrize(
    ("key", "value", "count"),
    [
        ("time.time()", "time.time()", 0),
        ("int(time.time())", "x.sum()", 0),
        ("y", "time.time()", 0),
        ("y", "x.sum()", 1),
        ("int(x.mean())", "x.sum()", 0),
    ],
)
def test_items_that_hold_times_or_that_a_mean_names_are_not_of_samples(
    key: str, value: str, count: int, tmp_path: Path
) -> None:
    kept = "each rank keeps its own taken, of the samples of its share of the data"
    assert _reviews(tmp_path, TIMES.format(key=key, value=value)) == [kept] * count


def test_a_library_that_may_not_be_installed_keeps_nothing_of_what_it_is_given(tmp_path: Path) -> None:
    optional = "try:\n    import wandb\nexcept ImportError:\n    wandb = None\n\n"
    rows = "kept = list(range(8 if wandb else 4))\n    wandb.Image(model(every))"
    after = optional + CLEAN + ROUNDS.format(loader="DataLoader(Subset(data, kept), 4)", chosen=rows)
    assert CHOSEN not in _reviews(tmp_path, after)


QUEUE = """\
import queue
import threading

rows, taken = None, torch.zeros(8)


def work():
    global rows
    rows = queue.Queue()


threading.Thread(target=work).start()
MAKE_MODEL
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    STEP
while True:
    i, row = rows.get()
    taken[i] = row
    print(taken.sum())
"""


def test_items_that_threads_give_are_not_of_samples(tmp_path: Path) -> None:
    """A queue that another thread fills was taken for a share of the data."""
    assert not any("of the samples of its share" in message for message in _reviews(tmp_path, QUEUE))


def test_data_of_an_object_that_scales_outputs_back_is_not_reviewed(tmp_path: Path) -> None:
    """The scaler was taken to keep the outputs that it scales back, and so to scale the data of the next column by."""
    text = """\
from sklearn.preprocessing import MinMaxScaler

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for column in columns:
    scaler = MinMaxScaler()
    scaled = scaler.fit_transform(table[column])
    for x, y in DataLoader(scaled, batch_size=4):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    forecast = scaler.inverse_transform(model(x).detach().numpy())
"""
    assert CHOSEN not in _reviews(tmp_path, text)
