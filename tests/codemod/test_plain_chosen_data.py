"""What plain loops choose or keep of their data by what the model gives: each rank has others."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, run

CHOSEN = (
    "outputs of the model, or what training collects of a share, choose this data: each rank would have another "
    "selection, and divide it by rank 0's indices"
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


def _differs(tmp_path: Path, chosen: str, before: str = "") -> bool:
    """Return whether what a round chooses may differ by rank, so that ranks agree on a condition on it."""
    text = ROUNDS.format(loader="DataLoader(data, batch_size=4)", chosen=f"{chosen}\n    if kept:\n        break")
    (result,) = run(tmp_path, train=HEADER + before + CLEAN + text).files
    return b"if rank_0_decides(kept):" in (result.after or b"")


@pytest.mark.parametrize(("read", "found"), [("rows.values()", False), ("rows.values", True)])
def test_the_items_of_a_dict_are_not_an_attribute_that_holds_outputs(read: str, found: bool, tmp_path: Path) -> None:
    chosen = f"data.values = model(every)\n    rows = ROWS\n    kept = list({read})"
    assert _differs(tmp_path, chosen, "ROWS = {}\n") is found


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ("rows['first']", False),
        ("rows['score']", True),
        ("rows[key]", True),
        ("rows", True),
    ],
)
def test_an_item_of_an_attribute_is_not_another_one_that_holds_outputs(read: str, found: bool, tmp_path: Path) -> None:
    chosen = f"other.rows['score'] = model(every)\n    kept = list(table.{read})"
    assert _differs(tmp_path, chosen, "key = str(print)\n") is found


def test_data_in_lists_by_the_clusters_of_outputs_are_for_review(tmp_path: Path) -> None:
    chosen = (
        "lists, clusters = [[] for _ in range(2)], model(every).argmax(1)\n"
        "    for i in range(8):\n        lists[clusters[i]].append(i)\n    kept = lists[0]"
    )
    loader = "DataLoader(Subset(data, kept), 4)"
    assert _reviews(tmp_path, CLEAN + ROUNDS.format(loader=loader, chosen=chosen)) == [CHOSEN]


BOTH = """
def both(model):
    found = []
    for i in range(8):
        found.append(model(every[i]))
    return torch.cat(found).tolist(), 3


"""


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ("kept, count = both(model)", [CHOSEN]),
        ("outputs, kept = both(model)", []),
        ("kept[model(every).argmax()] = 0", [CHOSEN]),
        ("kept[cycle] = 0", []),
    ],
)
def test_data_that_a_result_or_an_index_of_outputs_chooses_are_for_review(
    chosen: str, found: list[str], tmp_path: Path
) -> None:
    text = CLEAN + BOTH + ROUNDS.format(loader="DataLoader(Subset(data, kept), 4)", chosen=chosen)
    assert _reviews(tmp_path, text) == found


FITTED = """\
def fit(rows, model):
    kept = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, rows, index in DataLoader(Subset(data, rows), batch_size=4, shuffle=True):
        rows = rows.float()
        losses = ((model(x) - rows) ** 2).sum(1)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        kept.extend({kept})
    return kept


def main():
    model, rows = Net(), list(range(8))
    for cycle in range(3):
        rows = fit(rows, model)


main()
"""


@pytest.mark.parametrize(
    ("kept", "found"), [("index[losses < 1].tolist()", [CHOSEN]), ("range(3)", [])], ids=["by losses", "the same rows"]
)
def test_data_that_training_collects_for_its_next_round_are_for_review(
    kept: str, found: list[str], tmp_path: Path
) -> None:
    """A parameter that a loop over batches binds again chose the data of that loop, too."""
    assert [m for m in _reviews(tmp_path, CLEAN + FITTED.format(kept=kept)) if m == CHOSEN] == found


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
    assert not _differs(tmp_path, rows, optional)


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


def test_an_object_that_scales_outputs_back_keeps_nothing_of_them(tmp_path: Path) -> None:
    """The scaler was taken to keep the outputs that it scales back, and so to scale the next data by."""
    scaled = "kept = scaler.fit_transform(table[cycle])\n    out = scaler.inverse_transform(model(every))"
    assert not _differs(tmp_path, scaled, "from sklearn.preprocessing import MinMaxScaler\nscaler = MinMaxScaler()\n")
