"""What plain loops collect of the samples of a share, and save or score behind the loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, run

IMPORTS = """\
import csv
import json
import pickle
from collections import defaultdict
import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, confusion_matrix, roc_auc_score
"""
SETUP = "noise = torch.zeros(2, 4)\nkept, found, table = [], defaultdict(list), np.zeros((8, 1))\n"
SAVED = "this saves what a loop collects of a rank's share of the data: rank 0 has 1/n of it on n ranks"
SCORED = SAVED.replace("saves", "scores")
EVALUATED = "this evaluates a rank's share alone: the loader trains too, and shard() divides it"


def _reviews(tmp_path: Path, text: str) -> list[str]:
    return [f.message for _, f in run(tmp_path, train=IMPORTS + HEADER + text).findings(Severity.REVIEW)]


def _loop(kept: str, later: str) -> str:
    loop = LOOP.replace("    loss = F.mse_loss(model(x), y)", "    out = model(x)\n    loss = F.mse_loss(out, y)")
    return f"{SETUP}{loop}" + "".join(f"    {line}\n" for line in kept.splitlines()) + f"{later}\n"


@pytest.mark.parametrize(
    ("kept", "later"),
    [
        ("kept.append(out.detach().cpu())", "torch.save(kept, 'a.pt')"),
        ("kept.append(y)", "np.save('a.npy', torch.cat(kept).numpy())"),
        ("kept += out.argmax(1).tolist()", "everything = np.concatenate(kept)\nnp.savez('a.npz', all=everything)"),
        ("kept.extend(y.tolist())", "with open('a.json', 'w') as f:\n    json.dump({'all': kept}, f)"),
        ("kept.append({'y': y[0].item(), 'step': 1})", "pd.DataFrame(kept).to_csv('a.csv')"),
        ("for one, p in zip(y, out):\n    kept.append([one, p.item()])", "csv.writer(open('a', 'w')).writerows(kept)"),
        ("found['out'].append(out.detach())", "with open('a.pkl', 'wb') as f:\n    pickle.dump(found, f)"),
        ("table[y.long()] = out.detach().numpy()", "np.save('a.npy', table)"),
        ("first = rest, values = out.max(1)\nkept.extend(values.tolist())", "pd.DataFrame(kept).to_csv('a.csv')"),
        ("table = np.vstack([table, out.detach().numpy()])", "np.save('a.npy', table)"),
    ],
)
def test_samples_that_a_training_loop_collects_and_saves_are_for_review(kept: str, later: str, tmp_path: Path) -> None:
    assert _reviews(tmp_path, _loop(kept, later)) == [SAVED]


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ("print(confusion_matrix(kept, found['out']))", [SCORED]),
        ("auc = roc_auc_score(np.concatenate(kept), found['out'])", [SCORED]),
        ("print(accuracy_score(kept, found['out']))", []),
        ("print(np.mean(kept))", []),
    ],
)
def test_a_score_of_all_samples_is_for_review_and_a_mean_is_not(later: str, found: list[str], tmp_path: Path) -> None:
    kept = "kept.extend(y.tolist())\nfound['out'].extend(out.tolist())"
    assert _reviews(tmp_path, _loop(kept, later)) == found


@pytest.mark.parametrize(
    "kept",
    [
        "kept.append(loss.item())",
        "kept.append(loss.detach().cpu().numpy())",
        "kept.append({'step': 1, 'loss': loss.item()})",
        "kept.append((out - y).abs().mean().item())",
        "kept.append(len(x))",
        "own = []\nown.append(y)",
        "kept.append(model(noise).detach().numpy())",
    ],
)
def test_losses_and_fixed_outputs_that_a_training_loop_collects_are_not_for_review(kept: str, tmp_path: Path) -> None:
    assert _reviews(tmp_path, _loop(kept, "np.save('a.npy', kept)\npd.DataFrame(kept).to_csv('a.csv')")) == []


TRAINER = """
class Table:
    def __init__(self):
        self.kept, self.counts = [], np.zeros((2, 2))

    def add(self, out, y):
        for one, label in zip(out.argmax(1), y):
            self.counts[one, label] += 1
        self.kept.append(out.detach())


class Trainer:
    def __init__(self, loader):
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader, self.outputs, self.losses, self.table = loader, [], [], Table()

    def step(self, batch):
        x, y = batch
        out = self.model.fc(x)
        loss = F.mse_loss(out, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.record(out, loss)
        self.table.add(out, y)

    def record(self, out, loss):
        self.outputs.append(out.detach().cpu())
        self.losses.append(loss.item())

    def fit(self, tested):
        for batch in self.loader:
            self.step(batch)
        for x, y in tested:
            self.tested.add(self.model(x), y)
        USE


trainer = Trainer(DataLoader(data, batch_size=4, shuffle=True))
trainer.tested = Table()
trainer.fit(DataLoader(data, batch_size=4))
"""
PLOTTED, FITTED = SAVED.replace("saves", "plots"), SAVED.replace("saves", "fits")


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("torch.save(torch.cat(self.outputs), 'a.pt')", [SAVED]),
        ("TSNE(2).fit_transform(torch.cat(self.outputs).numpy())", [FITTED]),
        ("KMeans(2).fit(torch.cat(self.outputs))", [FITTED]),
        ("plt.hist(torch.cat(self.outputs).numpy())", [PLOTTED]),
        ("SummaryWriter('a').add_embedding(torch.cat(self.outputs))", [PLOTTED]),
        ("np.save('a.npy', self.table.counts)", [SAVED]),
        ("torch.save(self.table.kept, 'a.pt')", [SAVED]),
        ("torch.save(self.tested.kept, 'a.pt')", []),
        ("np.save('a.npy', self.losses)", []),
        ("plt.plot(self.losses)", []),
    ],
)
def test_samples_that_a_method_collects_for_a_training_loop_are_for_review(
    use: str, found: list[str], tmp_path: Path
) -> None:
    imports = "import matplotlib.pyplot as plt\nfrom sklearn.cluster import KMeans\nfrom sklearn.manifold import TSNE\n"
    imports += "from torch.utils.tensorboard import SummaryWriter\n"
    assert _reviews(tmp_path, imports + TRAINER.replace("USE", use)) == found


def test_samples_of_batches_that_a_loop_draws_are_for_review_where_it_counts_those_of_the_share(tmp_path: Path) -> None:
    loop = _loop("kept.append(y)", "torch.save(kept, 'a.pt')").replace("for x, y in loader:\n", "OVER")
    drawn = "batches = iter(loader)\nfor step in range(ROUNDS):\n    x, y = next(batches)\n"
    assert _reviews(tmp_path, loop.replace("OVER", drawn.replace("ROUNDS", "len(loader)"))) == [SAVED]
    assert SAVED not in _reviews(tmp_path, loop.replace("OVER", drawn.replace("ROUNDS", "2")))


EPOCH = """
def epoch(model, loader, optimizer=None):
    kept, losses = [], []
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        kept.append(out.detach())
        losses.append(loss.item())
    return torch.cat(kept), losses


MAKE_MODEL
trained, losses = epoch(model, DataLoader(data, batch_size=4, shuffle=True), optimizer)
tested, _ = epoch(model, DataLoader(data, batch_size=4))
np.save("a.npy", SAVED)
"""


@pytest.mark.parametrize(("saved", "found"), [("trained", [SAVED]), ("tested", []), ("losses", [])])
def test_samples_that_a_function_returns_are_for_review_where_its_loader_trains(
    saved: str, found: list[str], tmp_path: Path
) -> None:
    assert _reviews(tmp_path, EPOCH.replace("SAVED", saved)) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("table[y.long()] = model(x).detach().numpy()", [EVALUATED]),
        ("table = np.concatenate([table, model(x).detach().numpy()])", [EVALUATED]),
        ("own = {}\n    own['out'] = model(x)", []),
        ("x[0] = model(x)[0]", []),
    ],
)
def test_an_evaluation_of_a_share_that_sets_items_is_for_review(line: str, found: list[str], tmp_path: Path) -> None:
    assert _reviews(tmp_path, f"{SETUP}{LOOP}for x, y in loader:\n    {line}\n") == found


@pytest.mark.parametrize(
    ("later", "use"),
    [
        ("print(torch.stack(kept).view(data.tensors[0].shape[0], 1))", "gives the shape of all data to"),
        ("print(torch.cat(kept).reshape(len(data), 1))", "gives the shape of all data to"),
        ("for target, out in zip(data.tensors[1], torch.cat(kept)):\n    print(target, out)", "pairs with all data"),
        ("print(torch.cat(kept).view(-1, 1))", None),
        ("print(torch.cat(kept).view(len(kept), 4))", None),
        ("for one, out in zip(kept, found['out']):\n    print(one, out)", None),
    ],
)
def test_samples_that_are_used_as_if_they_were_all_are_for_review(later: str, use: str | None, tmp_path: Path) -> None:
    """A rank has fewer: the shape was an error, and zip() left the rest of the data out without a word."""
    kept = "kept.append(out.detach())\nfound['out'].append(y)"
    assert _reviews(tmp_path, _loop(kept, later)) == ([SAVED.replace("saves", use)] if use is not None else [])
