"""Losses that cannot be followed to means over the samples of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import body, run

TRAIN = """
    from dataclasses import dataclass


    @dataclass
    class Result:
        part: torch.Tensor
        total: torch.Tensor


    class Parts(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = weight
            self.value = 0

        def forward(self, out, y):
            self.value = F.l1_loss(out, y)
            return F.mse_loss(out, y) + self.weight * self.value, {"l1": self.value}


    def parts_of(out, y):
        losses = {"mse": F.mse_loss(out, y)}
        losses["l1"] = (out - y).abs().mean()
        return losses


    class Weighted(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.scales = nn.Parameter(torch.zeros(n))

        def forward(self, losses):
            total = torch.tensor(0.0)
            for i, loss in enumerate(losses):
                total = total + torch.exp(-self.scales[i]) * loss + self.scales[i]
            return total


    def changes(out):
        def between(values):
            changed = out * values
            return values[1:] - 1 / values, changed

        loss = between(out)[1].abs().mean()
        return loss


    class Own(nn.Module):
        def forward(self, out, y):
            return F.mse_loss(out, y)


    plain, mixed = {}, {}
    for task in ("a", "b"):
        plain[task] = nn.MSELoss()
        mixed[task] = Own()
        if args.weigh:
            mixed[task] = nn.CrossEntropyLoss(weight=torch.ones(3))


    parts = Parts(0.5)
    weighted = Weighted(2)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *weighted.parameters()], lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        LOSS
        loss.backward()
        optimizer.step()
"""
FOLLOWED = [
    "loss = plain[args.task](out, y)",
    "loss = Result(F.mse_loss(out, y), total=(out - y).abs().mean()).total",
    "loss = weighted([F.mse_loss(out, y), (out - y).abs().mean()])",
    "loss = F.mse_loss(out, y)",
    "loss, logs = parts(out, y)",
    "loss = parts(out, y)[0] + parts.value",
    "loss = sum(parts_of(out, y).values())",
    "losses = parts_of(out, y)\n    loss = losses['mse'] + 0.1 * losses['l1']",
    "loss = 0\n    for name, value in parts_of(out, y).items():\n        loss = loss + value",
    "loss = 0\n    for i in range(3):\n        loss += F.mse_loss(out * i, y)\n    loss = loss / 3",
    "each = []\n    each.append(F.mse_loss(out, y))\n    loss = torch.stack(each).sum()",
    "loss = F.mse_loss(out, y, reduction='sum') / x.size(0)",
    "loss = nn.MSELoss(size_average=False)(out, y) / (x.size()[0] * 2)",
    "loss = nn.MSELoss(size_average=True)(out, y).unsqueeze(0)",
    "loss = changes(out)",
    "loss = F.mse_loss(out, y, reduction='none')\n    loss = loss.mean()",
    "loss = F.mse_loss(out, y) if args.l2 else (out - y).abs().mean()",
]
UNFOLLOWED = {
    "loss = mixed[args.task](out, y)": "mixed[args.task](out, y)",
    "loss = weighted([F.mse_loss(out, y), losses.ssim(out, y)])": "losses.ssim(out, y)",
    "loss = losses.ssim(out, y)": "losses.ssim(out, y)",
    "loss = F.mse_loss(out, y) + losses.ssim(out, y)": "losses.ssim(out, y)",
    "loss = model.bound(x)": "model.bound(x)",
    "loss = torch.trapezoid((out - y).abs().mean(1))": "torch.trapezoid((out - y).abs().mean(1))",
    "weights = [value.item() for value in parts_of(out, y).values()]\n    total = 0\n    for weight in weights:\n"
    "        total += weight\n    loss = F.mse_loss(out, y) / total": "F.mse_loss(out, y) / total",
}


@pytest.mark.parametrize("loss", FOLLOWED)
def test_a_loss_that_is_a_sum_of_means_has_no_finding(loss: str, tmp_path: Path) -> None:
    assert _unfollowed(tmp_path, loss) == []


@pytest.mark.parametrize(("loss", "part"), UNFOLLOWED.items())
def test_a_loss_that_is_no_known_mean_is_for_review_by_its_part(loss: str, part: str, tmp_path: Path) -> None:
    assert _unfollowed(tmp_path, loss) == [part]


def _unfollowed(folder: Path, loss: str) -> list[str]:
    text = "from metrics import losses\n" + body(TRAIN).replace("LOSS", loss)
    found = [f.message for _, f in run(folder, train=text).findings(Severity.REVIEW)]
    return [message.removeprefix("cannot follow ").partition(" to a mean")[0] for message in found]


@pytest.mark.parametrize(
    "ends",
    [
        "if not self.training:\n                    return self.fc(x).argmax(1)\n                return LOSSES",
        "if self.training:\n                    return LOSSES\n                return self.fc(x).argmax(1)",
        "if self.training:\n                    return LOSSES\n                else:\n"
        "                    return self.fc(x).argmax(1)",
    ],
)
def test_what_a_model_returns_where_it_does_not_train_is_no_loss(ends: str, tmp_path: Path) -> None:
    forward = ends.replace("LOSSES", '{"loss_box": F.mse_loss(self.fc(x), y)}')
    text = f"""
        class Detector(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 1)

            def forward(self, x, y=None):
                {forward}


        model = Detector()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            losses = model(x, y)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
        """
    report = run(tmp_path, train=body(text))
    assert [finding.message for _, finding in report.findings(Severity.REVIEW)] == []


@pytest.mark.parametrize(
    ("returned", "is_reviewed"),
    [
        ("self.fc(x).amax(), F.mse_loss(self.fc(x), y)", False),
        ("self.fc(x).mean(), self.fc(x).amax()", True),
        ("F.mse_loss(self.fc(x), y), self.fc(x).amax()", True),
    ],
)
def test_of_several_outputs_the_one_that_is_the_loss_is_followed(
    returned: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = f"""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 1)

            def forward(self, x, y):
                return {returned}


        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            output, loss = model(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """
    report = run(tmp_path, train=body(text))
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert any(message.startswith("cannot follow ") for message in messages) is is_reviewed


@pytest.mark.parametrize(
    ("dims", "is_reviewed"),
    [
        ("(-1, -2) if x.dim() == 2 or not of_batch else (-1, -2, -3)", True),
        ("(-1, -2) if of_batch else (-2, -1)", False),
    ],
)
def test_a_quotient_of_sums_to_which_a_condition_adds_a_dimension_is_for_review(
    dims: str, is_reviewed: bool, tmp_path: Path
) -> None:
    text = f"""
        def dice(x, y, of_batch=True):
            dims = {dims}
            both = 2 * (x * y).sum(dim=dims)
            sums = x.sum(dim=dims) + y.sum(dim=dims)
            sums = torch.where(sums == 0, both, sums)
            return ((both + 1e-6) / (sums + 1e-6)).mean()


        MAKE_MODEL
        for x, y in DataLoader(data, batch_size=4):
            loss = F.mse_loss(model(x), y)
            loss += 1 - dice(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """
    report = run(tmp_path, train=body(text))
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert bool(messages) is is_reviewed, messages
