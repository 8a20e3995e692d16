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


def _converted(metric: str, trained: str, evaluated: str, tmp_path: Path) -> tuple[str, int]:
    text = TEXT.replace("METRIC", metric).replace("TRAINED", trained).replace("EVALUATED", evaluated)
    report = run(tmp_path, train="import torchmetrics\n" + body(text))
    found = [f for _, f in report.findings(Severity.REVIEW) if "adds up over ranks" in f.message]
    return (report.files[0].after or b"").decode(), len(found)


@pytest.mark.parametrize(
    ("metric", "trained", "evaluated", "reviews"),
    [
        ("torchmetrics.SumMetric()", "pass", UPDATE, 0),
        ("torchmetrics.ConfusionMatrix(task='binary')", "pass", "metric(model(x), x)", 0),
        ("torchmetrics.MetricCollection([torchmetrics.SumMetric()])", "pass", UPDATE, 0),
        ("torchmetrics.SumMetric()", UPDATE, "pass", 0),
        ("torchmetrics.SumMetric()", UPDATE, UPDATE, 1),
        ("torchmetrics.Accuracy(task='binary')", UPDATE, UPDATE, 0),
    ],
)
def test_counts_of_data_that_each_rank_has_whole_are_not_added_up(
    metric: str, trained: str, evaluated: str, reviews: int, tmp_path: Path
) -> None:
    """A confusion matrix over the validation data was n times too large on n ranks."""
    after, found = _converted(metric, trained, evaluated, tmp_path)
    is_left = trained != "pass" or "Accuracy" in metric
    assert ("sync_on_compute=False)" in after) == (not is_left)
    assert found == reviews
