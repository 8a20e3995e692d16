"""Plain loops on several ranks: random numbers for the samples of a batch, which all ranks draw alike."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, run

NET = """\
class VAE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Linear(4, 4)

    def sample(self, mean):
        return mean + torch.randn_like(mean)

    def forward(self, x):
        return self.sample(self.mean(x))


"""
LOOP = """\
def show(model):
    return model(torch.randn(batch_size, 4))


batch_size = 4
loader = DataLoader(data, batch_size=batch_size, shuffle=True)
model = NET()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    NOISE
    loss = F.mse_loss(model(x + noise), y)
    loss.backward()
    optimizer.step()
    show(model)
"""


@pytest.mark.parametrize(
    ("net", "noise", "line"),
    [
        ("Net", "noise = torch.randn(x.shape[0], 4)", "noise ="),
        ("Net", "noise = torch.randint(0, 9, (x.size(0), 1), device=x.device)", "noise ="),
        ("Net", "noise = torch.rand_like(x)", "noise ="),
        ("Net", "noise = torch.empty(x.size(0), 4).uniform_(-1, 1)", "noise ="),
        ("Net", "noise = torch.FloatTensor(x.size()).normal_(0, 1)", "noise ="),
        ("VAE", "noise = 0", "return mean + torch.randn_like"),
        ("Net", "noise = torch.rand(1).item()", ""),
        ("Net", "noise = x[torch.randperm(x.size(0))]", ""),
        ("Net", "noise = torch.randn(x.shape[0], 4, generator=own)", ""),
    ],
)
def test_noise_for_the_samples_of_a_batch_is_for_review(tmp_path: Path, net: str, noise: str, line: str) -> None:
    """Ranks draw with one seed: in a diffusion model, their different images had the same time steps and noise."""
    script = HEADER + NET + LOOP.replace("NET()", f"{net}()").replace("NOISE", noise)
    report = run(tmp_path, train=script)
    found = [f for _, f in report.findings(Severity.REVIEW) if "same random numbers" in f.message]
    lines = [script.splitlines()[f.line - 1] for f in found]
    assert [line in one for one in lines] == ([True] if line else [])


def test_noise_of_a_class_that_trains_is_for_review_though_only_other_code_makes_it(tmp_path: Path) -> None:
    script = HEADER + textwrap.dedent("""
        class Trainer:
            def __init__(self):
                self.model = torch.nn.Linear(4, 4)
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
                self.loader = DataLoader(data, batch_size=4)

            def fit(self):
                for x, y in self.loader:
                    mask = torch.rand(x.size(0), 4) < 0.5
                    self.optimizer.zero_grad()
                    F.mse_loss(self.model(x * mask), y).backward()
                    self.optimizer.step()
        """)
    report = run(tmp_path, train=script)
    assert any("same random numbers" in finding.message for _, finding in report.findings(Severity.REVIEW))
