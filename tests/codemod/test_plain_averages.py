"""Averages of an epoch, of which each rank has the sum over its share of the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import body, run

FIXED = ("DSM612", "this divides the sum over a rank's share by a number that is the same on any number of ranks")
TRAIN = """
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    args = parser.parse_args()
    mask = torch.ones(8)


    class Meter:
        def __init__(self):
            self.count = 0

        def update(self, count):
            self.count += count


    def train(model, n, meter):
        total, seen, steps, began = 0.0, 0, 0, time.time()
        for x, y in loader:
            LOSS_STEP
            total += loss.item()
            seen += len(x)
            steps += 1
            meter.update(len(x))
        AVERAGE


    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    train(model, GIVEN, Meter())
    """


def _reviews(folder: Path, average: str, given: str = "1") -> list[tuple[str, str]]:
    text = "import argparse\nimport time\n" + body(TRAIN).replace("AVERAGE", average).replace("GIVEN", given)
    return [(f.code, f.message) for _, f in run(folder, train=text).findings(Severity.REVIEW)]


@pytest.mark.parametrize(
    ("average", "given"),
    [
        ("print(total / 50000)", "1"),
        ("print(total / args.n)", "1"),
        ("print(100.0 * total / mask.sum())", "1"),
        ("total /= (60000 / 4)", "1"),
        ("samples = 1000\n    total /= samples", "1"),
        ("return total / float(n)", "50000"),
        ("return total / n", "len(data)"),
        ("return total / data.tensors[0].shape[0]", "1"),
    ],
)
def test_an_average_by_a_number_that_no_rank_divides_is_for_review(average: str, given: str, tmp_path: Path) -> None:
    assert _reviews(tmp_path, average, given) == [FIXED]


@pytest.mark.parametrize(("given", "is_reviewed"), [("data", True), ("loader", False), ("range(8)", False)])
def test_an_average_by_the_length_of_a_data_set_that_a_function_is_given_is_for_review(
    given: str, is_reviewed: bool, tmp_path: Path
) -> None:
    found = [("DSM612", "this divides the sum over a rank's share by a number that counts all data")]
    assert _reviews(tmp_path, "return total / len(n)", given) == (found if is_reviewed else [])


@pytest.mark.parametrize(
    ("average", "given"),
    [
        ("print(total / seen)", "1"),
        ("print(total / meter.count)", "1"),
        ("print(total / n)", "len(loader)"),
        ("print(total / (10 * n))", "len(loader)"),
        ("print(total / 1000, (time.time() - began) / 86400)", "1"),
        ("print(steps / 50000)", "1"),
    ],
)
def test_an_average_by_what_a_rank_has_counted_is_its_own(average: str, given: str, tmp_path: Path) -> None:
    assert _reviews(tmp_path, average, given) == []


RETURNED = """
    class Trainer:
        def __init__(self):
            self.total = 0.0

        def epoch(self, loader):
            total, seen = 0.0, 0
            for x, y in loader:
                LOSS_STEP
                total += loss.item()
                self.total += loss.item()
                seen += len(x)
            CHANGE
            return total, seen


    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    trainer = Trainer()
    total, seen = trainer.epoch(loader)
    AVERAGE
    """


@pytest.mark.parametrize(
    ("average", "after"),
    [
        ("print(total / len(loader.dataset))", "print(total / count_samples(loader))"),
        ("mean = 100.0 * total / len(data)", "mean = 100.0 * total / count_samples(loader)"),
        ("mean = trainer.total / len(data)", "mean = trainer.total / count_samples(loader)"),
        ("mean = total / seen", "mean = total / seen"),
        ("mean = total / len(loader)", "mean = total / len(loader)"),
        ("mean = 1 / len(data)", "mean = 1 / len(data)"),
    ],
)
def test_a_sum_that_a_function_returns_or_keeps_is_divided_by_the_samples_of_the_share(
    average: str, after: str, tmp_path: Path
) -> None:
    text = body(RETURNED).replace("AVERAGE", average).replace("CHANGE", "pass")
    report = run(tmp_path, train=text)
    (file,) = report.files
    assert not list(report.findings(Severity.REVIEW)) and file.after is not None and after in file.after.decode()


@pytest.mark.parametrize(
    ("average", "change", "found"),
    [
        ("mean = total / 50000", "pass", [FIXED]),
        ("mean = trainer.total / 50000", "pass", [FIXED]),
        ("mean = total / 50000", "total = total / len(loader)", []),
        ("mean = trainer.total / 50000", "self.total /= len(loader)", []),
    ],
)
def test_a_returned_sum_is_for_review_unless_it_is_an_average(
    average: str, change: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    text = body(RETURNED).replace("AVERAGE", average).replace("CHANGE", change)
    assert [(f.code, f.message) for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)] == found


def test_a_progress_bar_counts_the_samples_of_the_share(tmp_path: Path) -> None:
    bar = "    with tqdm(total=len(loader.dataset)) as bar:\n        bar.update(1)\n    for x, y in loader:\n"
    text = "from tqdm import tqdm\n" + body(TRAIN).replace("    for x, y in loader:\n", bar)
    report = run(tmp_path, train=text.replace("AVERAGE", "return total").replace("GIVEN", "1"))
    after = next(f.after for f in report.files if f.after is not None).decode()
    assert "tqdm(total=count_samples(loader)" in after


METER = """
    class Meter:
        def __init__(self):
            self.reset()

        def reset(self):
            self.sum = 0.0
            self.count = 0

        def update(self, value, n=1):
            self.sum += value * n
            self.count += n


    def train(loader, meter):
        for x, y in loader:
            LOSS_STEP
            meter.update(loss.item(), len(x))


    def test(loader, meter):
        for x, y in loader:
            meter.update(F.mse_loss(model(x), y).item(), len(x))


    loader = DataLoader(data, batch_size=4, shuffle=True)
    test_loader = DataLoader(TensorDataset(torch.zeros(6, 4), torch.zeros(6, 1)), batch_size=4)
    MAKE_MODEL
    meter, test_meter = Meter(), Meter()
    train(loader, meter)
    test(test_loader, test_meter)
    AVERAGE
    """


@pytest.mark.parametrize(
    ("average", "after"),
    [
        ("mean = meter.sum / len(data)", "mean = meter.sum / count_samples(loader)"),
        ("mean = meter.sum / len(loader.dataset)", "mean = meter.sum / count_samples(loader)"),
        ("mean = meter.sum / meter.count", "mean = meter.sum / meter.count"),
        ("mean = test_meter.sum / len(test_loader.dataset)", "mean = test_meter.sum / len(test_loader.dataset)"),
    ],
)
def test_a_sum_that_a_method_adds_to_is_divided_by_the_samples_of_the_share(
    average: str, after: str, tmp_path: Path
) -> None:
    report = run(tmp_path, train=body(METER).replace("AVERAGE", average))
    (file,) = report.files
    assert not list(report.findings(Severity.REVIEW)) and file.after is not None and after in file.after.decode()


def test_a_sum_of_a_method_by_a_fixed_number_is_for_review(tmp_path: Path) -> None:
    text = body(METER).replace("AVERAGE", "print(meter.sum / 50000)")
    assert [(f.code, f.message) for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)] == [FIXED]


SHOWN = ("DSM612", "this shows the sum over a rank's share of the data: on n ranks it is about n times smaller")


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ("print(total)", [SHOWN]),
        ("print(f'{total:.3f}')\n    print('%.3f' % total)", [SHOWN]),
        ("logging.info('loss {}'.format(round(total, 3)))", [SHOWN]),
        ("writer.add_scalar('loss', total, 1)", [SHOWN]),
        ("wandb.log({'loss': total})", [SHOWN]),
        ("print(total / steps)", []),
        ("total /= steps\n    print(total)", []),
        ("mean = total / seen\n    print(mean)", []),
        ("print(seen, steps, time.time() - began)", []),
        ("print(f'{total}/{seen}')", []),
        ("print('{}/{}'.format(total, len(loader.dataset)))", []),
    ],
)
def test_a_sum_over_a_share_that_is_shown_is_for_review(
    shown: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    assert _reviews(tmp_path, shown) == found


COMPARED = ("DSM612", "this compares the sum over a rank's share of the data: on n ranks it is about n times smaller")


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("total < 0.01", [COMPARED]),
        ("n > 2 and not total >= len(loader.dataset)", [COMPARED]),
        ("total / steps < 0.01", []),
        ("total > 0", []),
        ("began < 4", []),
        ("n == 0 or total < best", []),
    ],
)
def test_a_sum_over_a_share_that_is_compared_with_what_no_rank_adds_up_is_for_review(
    condition: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Training ended at another epoch on several ranks, or never."""
    best = "best = total * 2\n    " if "best" in condition else ""
    assert _reviews(tmp_path, f"{best}if {condition}:\n        return") == found


TALLIED = """
    import collections
    counts = collections.Counter()
    hits, seen, labels, right = torch.zeros(3), torch.zeros(3), {}, 0
    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for label in range(3):
            hits[label] += (out.argmax(1)[y == label] == label).sum()
            seen[label] += (y == label).sum()
        for label in y.tolist():
            labels[label] = labels.get(label, 0) + 1
        right = right + (out.argmax(1) == y).sum().item()
        counts.update(y.tolist())
    SHOWN
    """


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ("print(hits.tolist())", [SHOWN]),
        ("for label in range(3):\n        print(f'{label}: {hits[label]}')", [SHOWN]),
        ("for label, count in labels.items():\n        print(label, count)", [SHOWN]),
        ("print(dict(labels))", [SHOWN]),
        ("print(right)", [SHOWN]),
        ("print(counts.most_common(1)[0])", [SHOWN]),
        ("print(counts.total() / sum(seen))", []),
        ("name = 'x'\n    for label, count in labels.items():\n        print(name)", []),
        ("text = 'right: {}'.format(right)\n    print(text)", [SHOWN]),
        ("print((hits / seen).tolist())", []),
        ("print(hits[0] / seen[0])", []),
        ("rates = hits / seen\n    print(rates)", []),
    ],
)
def test_a_count_for_each_label_of_a_share_that_is_shown_is_for_review(
    shown: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    text = body(TALLIED.replace("SHOWN", shown))
    assert [(f.code, f.message) for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)] == found


@pytest.mark.parametrize(("shown", "found"), [("print(meter.sum)", [SHOWN]), ("print(test_meter.sum)", [])])
def test_a_sum_of_a_method_that_is_shown_is_for_review(
    shown: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    text = body(METER).replace("AVERAGE", shown)
    assert [(f.code, f.message) for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)] == found


def test_a_sum_that_a_function_returns_is_for_review_where_it_is_shown(tmp_path: Path) -> None:
    text = body(RETURNED).replace("AVERAGE", "print(total)").replace("CHANGE", "pass")
    assert [(f.code, f.message) for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)] == [SHOWN]


def test_a_sum_that_a_function_returns_may_be_shown_where_its_name_is_given_an_average(tmp_path: Path) -> None:
    average = "total = total / len(loader.sampler)\n    print(total)"
    text = body(RETURNED).replace("AVERAGE", average).replace("CHANGE", "pass")
    assert not list(run(tmp_path, train=text).findings(Severity.REVIEW))


SUMMED = """
    class Reconstruction(nn.Module):
        def __init__(self):
            super().__init__()
            self.criterion = nn.MSELoss(reduction="sum")

        def forward(self, x, y):
            return self.criterion(x, y), x.mean()


    def reconstruction(x, y):
        prior = -0.5 * torch.sum(x.pow(2))
        return F.mse_loss(x, y, size_average=False) + prior


    class Relative:
        def __init__(self, size_average=True):
            self.size_average = size_average

        def rel(self, x, y):
            norms = torch.norm(x - y, 2, 1)
            return torch.mean(norms) if self.size_average else torch.sum(norms)

        def __call__(self, x, y):
            return self.rel(x, y)


    whole = Reconstruction()
    summed = nn.MSELoss(reduction="sum")
    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    for x, y in loader:
        optimizer.zero_grad()
        LOSS
        loss.backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    ("loss", "is_reviewed"),
    [
        ("loss = summed(model(x), y)", True),
        ("loss = F.mse_loss(model(x), y, reduction='sum').float() * 0.5", True),
        ("loss = reconstruction(model(x), y)", True),
        ("loss, mean = whole(model(x), y)", True),
        ("loss = Relative(size_average=False)(model(x), y)", True),
        ("loss = Relative()(model(x), y)", False),
        ("mean, loss = whole(model(x), y)", False),
        ("loss = summed(model(x), y) / len(x)", False),
        ("loss = summed(model(x), y)\n    loss /= len(x)", False),
        ("loss = (1 / 4) * summed(model(x), y)", False),
        ("loss = F.mse_loss(model(x), y, reduction='mean')", False),
        ("loss = ((model(x) - y) ** 2).sum()", True),
        ("loss = -(model(x) - y).sigmoid().log().sum()", True),
        ("loss = torch.sum(-y * F.log_softmax(model(x), dim=1))", True),
        ("score = model(x)\n    loss = 0.5 * ((score - y) ** 2).sum()", True),
        ("loss = F.mse_loss(model(x), y, reduction='none').sum()", True),
        ("loss = ((model(x) - y) ** 2).sum() / len(x)", False),
        ("loss = ((model(x) - y) ** 2).sum(dim=1).mean()", False),
        ("loss = ((model(x) - y) ** 2).mean(0).sum()", False),
        ("loss = ((model(x) - y) ** 2).mean(1).sum()", True),
        ("loss = F.mse_loss(model(x), y).sum()", False),
        ("loss = (model(x) - y) ** 2\n    loss = loss.sum() if how == 'sum' else loss.mean()", False),
        ("loss = F.mse_loss(model(x), y) + 0.1 * (model.fc.weight ** 2).sum()", False),
        ("loss = torch.stack([F.mse_loss(model(x), y), F.l1_loss(model(x), y)]).sum()", False),
    ],
)
def test_a_loss_that_is_a_sum_over_a_batch_is_for_review(loss: str, is_reviewed: bool, tmp_path: Path) -> None:
    report = run(tmp_path, train=body(SUMMED).replace("LOSS", loss))
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert len([message for message in found if "sum over a batch" in message]) == is_reviewed


CONTRASTIVE = """
    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.of = nn.CosineSimilarity(dim=-1)

        def forward(self, one, other):
            return self.of(one, other) / 0.1


    def contrast(one, other):
        one, other = F.normalize(one), F.normalize(other)
        ALIKE
        return F.cross_entropy(alike, torch.arange(len(one)))


    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    for x, y in loader:
        optimizer.zero_grad()
        loss = contrast(model(x), model(x + y))
        loss.backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    ("alike", "is_reviewed"),
    [
        ("alike = one @ other.T", True),
        ("alike = torch.mm(one, other.t()) / 0.1", True),
        ("both = torch.cat([one, other])\n    alike = F.cosine_similarity(both[:, None], both[None], dim=-1)", True),
        ("alike = -torch.cdist(one, other)", True),
        ("later = torch.zeros(4, 4)\n    later[(one.T - one) > 0] = 1\n    alike = one * later", True),
        ("alike = one * (one > one.T)", True),
        ("alike = torch.mm(one, torch.transpose(other, 0, 1))", True),
        ("alike = torch.einsum('ik,jk->ij', one, other)", True),
        ("alike = torch.einsum('ik,kj->ij', one, other)", False),
        ("alike = torch.einsum('ik,ik->i', one, other)", False),
        ("alike = torch.eye(4).addmm_(one, other.t(), beta=1, alpha=-2)", True),
        ("alike = nn.CosineSimilarity(dim=2)(one.unsqueeze(1), other.unsqueeze(0))", True),
        (
            "rows = one.unsqueeze(0).expand(4, 4, 1)\n    columns = rows.permute(1, 0, 2)\n"
            "    alike = (rows - columns).abs().sum(2)",
            True,
        ),
        (
            "both = torch.stack([one, other]).transpose(0, 1)\n    alike = torch.matmul(both, both.transpose(1, 2))",
            True,
        ),
        ("both = torch.stack([one, other], 1)\n    alike = torch.matmul(both, both.transpose(1, 2))", False),
        ("later = []\n    later.append(one.mm(other.t()))\n    alike = torch.stack(later)", True),
        ("alike = one * (torch.arange(4)[None, :] < y[:, None])", False),
        ("alike = Cosine()(one.unsqueeze(1), other.unsqueeze(0))", True),
        ("alike = ((one[:, None] - other[None]) ** 2).sum(-1)", True),
        ("alike = one.unsqueeze(1) * other.unsqueeze(1)", False),
        ("alike = losses.NTXentLoss()(torch.cat([one, other]), torch.arange(8) % 4)", True),
        ("alike = one - other", False),
        ("alike = one @ model.fc.weight.T", False),
        ("alike = F.cosine_similarity(one, other)", False),
        ("alike = one - torch.logcumsumexp(other, 0)", True),
        ("alike = one - other.cumsum(dim=0)", True),
        ("alike = one - other.cumsum(dim=1)", False),
    ],
)
def test_a_loss_that_compares_the_samples_of_a_batch_is_for_review(
    alike: str, is_reviewed: bool, tmp_path: Path
) -> None:
    imports = "from pytorch_metric_learning import losses\n"
    report = run(tmp_path, train=imports + body(CONTRASTIVE).replace("ALIKE", alike))
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any("compares the samples" in message for message in found) is is_reviewed


COMPARING = """
    class Comparing(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Net()

        def forward(self, one, other):
            one, other = self.encoder(one), self.encoder(other)
            return PRODUCT


    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = Comparing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, x + y), torch.arange(len(x)))
        loss.backward()
        optimizer.step()
    """


@pytest.mark.parametrize(("reduction", "is_reviewed"), [("", True), (", reduction='token_mean'", False)])
def test_the_loss_of_a_crf_is_a_sum_unless_it_is_given_a_reduction(
    reduction: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = f"""
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()
            self.crf = CRF(1, batch_first=True)

        def forward(self, x, y):
            return -self.crf(self.net(x), y{reduction})


    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
    """
    report = run(tmp_path, train="from torchcrf import CRF\n" + body(text))
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any("sum over a batch" in message for message in found) is is_reviewed


@pytest.mark.parametrize(
    ("product", "is_reviewed"),
    [("one @ other.t()", True), ("one @ other.transpose(-2, -1)", False), ("one @ self.encoder.fc.weight.t()", False)],
)
def test_a_model_that_compares_the_samples_of_a_batch_is_for_review(
    product: str, is_reviewed: bool, tmp_path: Path
) -> None:
    report = run(tmp_path, train=body(COMPARING).replace("PRODUCT", product))
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any("compares the samples" in message for message in found) is is_reviewed


STATISTICS = """
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1)

        def forward(self, x):
            out = self.fc(x)
            return MODEL


    class Bound(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x, y):
            joint = self.net(x).mean()
            marginal = self.net(y[torch.randperm(len(y))])
            return LOWER


    weighted = nn.CrossEntropyLoss(weight=torch.ones(3))
    masked = nn.CrossEntropyLoss(ignore_index=0)
    bank = torch.zeros(8, 4)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = MADE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        mask = (y > 0).float()
        LOSS
        loss.backward()
        optimizer.step()
    """
ALL, COUNTED = "is no mean over its samples", "weights or targets that count in a batch"
ORDERED = "this orders the samples of a batch"
# each with what is reviewed; "" for a mean over samples
LOSSES = {
    "loss = F.mse_loss(out, y)": "",
    "loss = torch.sqrt(F.mse_loss(out, y) + 1e-6)": ALL,
    "mse = F.mse_loss(out, y)\n    loss = 2 * mse - mse.detach() + 0.1": "",
    "loss = ((out - y) ** 2).sum(dim=1).sqrt().mean()": "",
    "loss = -out.mean() + torch.logsumexp(out, 0) - math.log(len(out))": ALL,
    "loss = -out.mean() + torch.log(torch.mean(torch.exp(out)))": ALL,
    "loss = (out * mask).sum() / mask.sum()": ALL,
    "loss = (out * mask).sum() / len(out)": "",
    "loss = out[mask > 0].mean()": ALL,
    "loss = out[y[:, 0].long(), 0].mean()": ALL,
    "loss = torch.nanmean(torch.where(mask > 0, (out - y) ** 2, torch.tensor(float('nan'))))": ALL,
    "loss = ((out - y) ** 2).nanmean(dim=1).mean()": "",
    "kept = out[y[:, 0] > 0, 0:2]\n    loss = kept[:, :1].sigmoid().mean()": ALL,
    "kept = out[y[:, 0] > 0]\n    loss = kept[..., 0].mean()": ALL,
    "one, two = out[y[:, 0] > 0].split([1, 3], dim=1)\n    loss = two.mean()": ALL,
    "one, two = out.chunk(2, dim=1)\n    loss = two.mean()": "",
    "loss = -out[range(len(y)), y[:, 0].long()].mean()": "",
    "rows = torch.arange(out.size(0))\n    loss = -out[rows, y[:, 0].long()].mean()": "",
    "loss = F.mse_loss(out[y > 0], y[y > 0])": COUNTED,
    "loss = ((out[y > 0] - y[y > 0]) ** 2).mean()": ALL,
    "loss = model(x[y > 0]).pow(2).sum(dim=1).mean()": ALL,
    "kept = torch.where(y > 0)\n    each = nn.MSELoss(reduction='none')\n"
    "    loss = torch.mean(torch.sum(each(model(x[kept]), model(y[kept])), dim=1))": ALL,
    "layer = nn.Sequential(nn.Linear(4, 4))\n    loss = layer(x[y > 0]).pow(2).mean()": ALL,
    "dims = (0, 1)\n    loss = 1 - (out * y).sum(dims) / y.sum(dims)": ALL,
    "dims = (1,)\n    loss = (1 - (out * y).sum(dims) / y.sum(dims)).mean()": "",
    "loss = out[torch.randperm(4)].mean()": "",
    "loss = weighted(out, y)": COUNTED,
    "loss = masked(out, y)": COUNTED,
    "one = masked if x.max() > 3 else nn.CrossEntropyLoss() if y.max() > 3 else nn.MSELoss()\n"
    "    loss = one(out, y)": COUNTED,
    "loss = torch.corrcoef(torch.stack((out[:, 0], y[:, 0])))[0, 1]": ALL,
    "loss = F.cosine_similarity(out[:, 0], y[:, 0], dim=0)": ALL,
    "loss = F.cosine_similarity(out, y, dim=1).mean()": "",
    "loss = F.cross_entropy(out, y, ignore_index=-1)": COUNTED,
    "loss = F.cross_entropy(out, y, weight=None)": "",
    "y[y == 0] = -100\n    loss = F.cross_entropy(out, y)": COUNTED,
    "ignored = -100\n    y = y.masked_fill(y == 0, ignored)\n    loss = F.cross_entropy(out, y)": COUNTED,
    "ce = nn.CrossEntropyLoss()\n    marked = torch.where(y > 0, y, torch.tensor(ce.ignore_index))\n"
    "    loss = ce(out, marked)": COUNTED,
    "y = y.clamp(min=-100)\n    loss = F.cross_entropy(out, y)": "",
    "loss = F.cross_entropy(out, y, ignore_index=-1, reduction='none').mean()": "",
    "y = (y - y.mean()) / (y.std() + 1e-8)\n    loss = (out * y).mean()": ALL,
    "loss = -out.std()": ALL,
    "loss = torch.mean(torch.ones(4)) - torch.mean(out)": "",
    "loss = (out - torch.mean(out)).pow(2).mean()": ALL,
    "loss = smp.losses.DiceLoss('binary')(out, y)": ALL,
    "loss = torch.logsumexp(torch.stack([out, -out]), 0).mean()": "",
    "loss = (out - out.mean(dim=1, keepdim=True)).pow(2).mean()": "",
    "chance = F.softmax(out, dim=1).mean(dim=0)\n    loss = (chance * torch.log(chance)).sum()": ALL,
    "q = torch.exp(out).t()\n    q /= torch.sum(q)\n    loss = (q.t() * out).mean()": ALL,
    "kept, wanted = out[y > 0], y[y > 0]\n    loss = F.mse_loss(kept.float(), wanted)": COUNTED,
    "chosen = (y > 0).nonzero().squeeze(1)\n    loss = F.mse_loss(out.index_select(0, chosen), y)": COUNTED,
    "kept = pack_padded_sequence(out, mask, batch_first=True)\n    loss = F.mse_loss(kept.data, y)": COUNTED,
    "kept, _ = pack_padded_sequence(out, mask)\n    loss = F.mse_loss(kept, y)": COUNTED,
    "kept = (y > 0).nonzero()\n    loss = (out - y).pow(2).sum() / max(kept.numel(), 1)": ALL,
    "found = ((y > 0).nonzero(), y)\n    rows, _ = found\n    loss = (out - y).pow(2).sum() / len(rows)": ALL,
    "n = 0\n    for row in y:\n        found, _ = torch.where(row > 0)\n        n += len(found)\n"
    "    loss = F.mse_loss(out, y, reduction='none').sum() / n": ALL,
    "loss = F.mse_loss(out, y, reduction='none').sum() / y.numel()": "",
    "index = torch.randperm(len(y)).cpu()\n    mixed = y[index]\n    loss = F.mse_loss(out, mixed)": "",
    "loss = F.mse_loss(out, bank[y])": "",
    "each = F.mse_loss(out, y, reduction='none')\n    hard, _ = each.topk(2)\n    loss = hard.mean()": ORDERED,
    "each = ((out - y) ** 2).mean(1)\n    loss = torch.sort(each, descending=True)[0][:2].mean()": ORDERED,
    "each = F.mse_loss(out, y, reduction='none')\n    first = each.argsort()[:2]\n"
    "    loss = F.mse_loss(out[first], y[first])": ORDERED,
    "each = F.mse_loss(out, y, reduction='none').view(4, -1)\n    loss = each.topk(1)[0].mean()": "",
    "loss = F.mse_loss(out.topk(1, dim=1)[0], y)": "",
    "order = y.sum(1).argsort(descending=True)\n    packed = pack_padded_sequence(x, y.sum(1)[order].tolist())\n"
    "    loss = F.mse_loss(out[order], y)": "",
    "order = y.sum(1).argsort(descending=True)\n    loss = F.mse_loss(out[order], y)": ORDERED,
    "share = np.random.beta(1, 1)\n    loss = share * F.mse_loss(out, y) + (1 - share) * F.mse_loss(out, y)": "",
}


@pytest.mark.parametrize(("loss", "found"), LOSSES.items())
def test_a_loss_that_is_no_mean_over_samples_is_for_review(loss: str, found: str, tmp_path: Path) -> None:
    text = "import segmentation_models_pytorch as smp\n" + body(STATISTICS).replace("LOSS", loss)
    text = text.replace("MADE", "Normed()").replace("MODEL", "out")
    assert _no_means(tmp_path, text.replace("LOWER", "joint")) == [found] * (found != "")


@pytest.mark.parametrize(
    ("output", "is_reviewed"),
    [
        ("torch.cat([out, (out - out.mean(dim=0)).pow(2).mean(0).sqrt().repeat(4, 1)], 1)", True),
        ("(out - out.mean(-1, keepdim=True)) / out.std(-1, keepdim=True)", False),
        ("out / out.std(dim=0)", True),
    ],
)
def test_a_model_that_normalizes_samples_by_their_batch_is_for_review(
    output: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = body(STATISTICS).replace("LOSS", "loss = F.mse_loss(out, y)").replace("MADE", "Normed()")
    found = _no_means(tmp_path, text.replace("MODEL", output).replace("LOWER", "joint"))
    assert found == [ALL] * is_reviewed


@pytest.mark.parametrize(
    ("lower", "is_reviewed"), [("torch.logsumexp(marginal, 0) - joint", True), ("marginal.mean() - joint", False)]
)
def test_a_model_that_returns_a_loss_that_is_no_mean_is_for_review(
    lower: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = body(STATISTICS).replace("LOSS", "loss = model(x, y)").replace("out = model(x)\n", "out = x\n")
    text = text.replace("MADE", "Bound(Normed())").replace("MODEL", "out").replace("LOWER", lower)
    assert _no_means(tmp_path, text) == [ALL] * is_reviewed


def _no_means(folder: Path, text: str) -> list[str]:
    found = [f.message for _, f in run(folder, train=text).findings(Severity.REVIEW)]
    known = [next((part for part in (ALL, COUNTED, ORDERED) if part in message), message) for message in found]
    assert set(known) <= {ALL, COUNTED, ORDERED}, found
    return known


@pytest.mark.parametrize(
    ("steps", "is_reviewed"),
    [("len(data) // 4 * epochs", True), ("len(loader) * epochs", False), ("100 * epochs", False)],
)
def test_a_schedule_over_the_steps_through_all_data_is_for_review(
    steps: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = f"""
        epochs = 2
        model = Net()
        loader = DataLoader(data, batch_size=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        total = {steps}
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=total)
        for x, y in loader:
            LOSS_STEP
            schedule.step()
        """
    report = run(tmp_path, train=body(text))
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any("this schedule counts the steps through all data" in message for message in found) is is_reviewed
