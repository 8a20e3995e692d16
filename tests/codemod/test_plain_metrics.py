"""Plain loops on several ranks: metrics of torchmetrics, which add up over ranks what each has counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import body, run

TEXT = """\
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
metric = METRIC
loader, other = DataLoader(data, batch_size=4, shuffle=True), DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    TRAINED
for (x,) in other:
    EVALUATED
print(metric.compute())
"""
UPDATE = "metric.update(len(x))"


def _reviews(metric: str, trained: str, evaluated: str, tmp_path: Path) -> int:
    text = TEXT.replace("METRIC", metric).replace("TRAINED", trained).replace("EVALUATED", evaluated)
    report = run(tmp_path, train="import torchmetrics\n" + body(text))
    return len([f for _, f in report.findings(Severity.REVIEW) if "adds up over ranks" in f.message])


@pytest.mark.parametrize(
    ("metric", "trained", "evaluated", "reviews"),
    [
        ("torchmetrics.SumMetric()", "pass", UPDATE, 1),
        ("torchmetrics.ConfusionMatrix(task='binary')", "pass", "metric(model(x), x)", 1),
        ("torchmetrics.MetricCollection([torchmetrics.SumMetric()])", "pass", UPDATE, 1),
        ("torchmetrics.SumMetric()", UPDATE, "pass", 0),
        ("torchmetrics.SumMetric()", UPDATE, UPDATE, 1),
        ("torchmetrics.Accuracy(task='binary')", UPDATE, UPDATE, 0),
    ],
)
def test_counts_of_data_that_each_rank_has_whole_are_for_review(
    metric: str, trained: str, evaluated: str, reviews: int, tmp_path: Path
) -> None:
    """A confusion matrix over the validation data is n times too large on n ranks."""
    assert _reviews(metric, trained, evaluated, tmp_path) == reviews
