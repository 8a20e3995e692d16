"""Losses that a library other than torch computes, and losses that models return."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import body, run

TRAIN = """
    def both(out, y):
        return F.mse_loss(out, y), losses.ssim(out, y)


    def within(out):
        def shown(values):
            return losses.ssim(values, values)

        print(shown(out))
        return out.abs().mean()


    class Own(nn.Module):
        def forward(self, out, y):
            return losses.ssim(out, y)


    own = Own()
    reader = losses.Reader.load("base")
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        out = model(losses.scaled(x))
        LOSS
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "term"),
    [
        ("loss = losses.ssim(out, y)", "losses.ssim()"),
        ("loss = F.mse_loss(out, y) + 0.5 * losses.ssim(out, y).mean()", "losses.ssim()"),
        ("loss, other = both(out, y)\n    loss = other + loss", "losses.ssim()"),
        ("loss = own(out, y)", "losses.ssim()"),
        ("read = reader(out, labels=y)\n    loss = read.loss", "reader()"),
        ("loss = within(out)", None),
        ("loss = F.mse_loss(out, y)", None),
        ("loss = torch.trapezoid((out - y).abs().mean(1))", None),
        ("losses.log(F.mse_loss(out, y))\n    loss = (out - y).abs().mean()", None),
    ],
)
def test_terms_of_a_loss_that_a_library_computes_are_for_review(loss: str, term: str | None, tmp_path: Path) -> None:
    text = "from metrics import losses\n" + body(TRAIN).replace("LOSS", loss)
    found = [f.message for _, f in run(tmp_path, train=text).findings(Severity.REVIEW)]
    message = f"{term} is of a library, and n ranks need a loss that is a mean over samples"
    assert found == ([message] if term else [])


@pytest.mark.parametrize(
    "ends",
    [
        "if not self.training:\n                    return losses.score(self.fc(x))\n                return LOSSES",
        "if self.training:\n                    return LOSSES\n                return losses.score(self.fc(x))",
        "if self.training:\n                    return LOSSES\n                else:\n"
        "                    return losses.score(self.fc(x))",
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
            found = model(x, y)
            optimizer.zero_grad()
            sum(found.values()).backward()
            optimizer.step()
        """
    report = run(tmp_path, train="from metrics import losses\n" + body(text))
    assert [finding.message for _, finding in report.findings(Severity.REVIEW)] == []


@pytest.mark.parametrize(
    ("returned", "is_reviewed"),
    [
        ("losses.ssim(self.fc(x), y), F.mse_loss(self.fc(x), y)", False),
        ("F.mse_loss(self.fc(x), y), losses.ssim(self.fc(x), y)", True),
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
    report = run(tmp_path, train="from metrics import losses\n" + body(text))
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert any("is of a library" in message for message in messages) is is_reviewed


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
