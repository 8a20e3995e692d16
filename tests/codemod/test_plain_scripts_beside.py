"""Scripts of a program that share a loop, of which one starts ranks and the other does not."""

from __future__ import annotations

import textwrap
from pathlib import Path

from ds_migrate.findings import Severity
from plain_loops import SUM, body, run

TRAINER = f"import torch.nn.functional as F\n\n\n{SUM}"
ALONE = """
    from trainer import train

    loader = DataLoader(data, batch_size=4)
    model = Net()
    total = train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1))
    mean = total / len(data)
    """
RANKS = """
    import torch.distributed as dist
    from trainer import train

    dist.init_process_group("gloo")
    sampler = torch.utils.data.DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DDP(Net())
    total = train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1))
    mean = total / len(data)
    """


def test_a_script_beside_one_that_starts_ranks_averages_over_its_share(tmp_path: Path) -> None:
    report = run(tmp_path, trainer=TRAINER.replace("AVERAGE", "total"), alone=body(ALONE), ranks=body(RANKS))
    after = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert "mean = total / count_samples(loader)" in after["alone.py"] and "shard(DataLoader(" in after["alone.py"]
    assert "mean = total / len(data)" in after["ranks.py"] and "shard(" not in after["ranks.py"]


def test_an_average_over_a_share_or_what_ranks_have_drawn_is_for_review(tmp_path: Path) -> None:
    trainer = TRAINER.replace("AVERAGE", "total / len(loader.dataset)")
    report = run(tmp_path, trainer=trainer, alone=body(ALONE), ranks=body(RANKS))
    (found,) = [f for file, f in report.findings(Severity.REVIEW) if file.path.name == "trainer.py"]
    assert found.message == "this divides the sum over a rank's share by a number that counts all data"


SETUP = """
    import os
    import torch


    def load(path):
        if not os.path.exists(path):
            torch.save(torch.randn(8), path)
        return torch.load(path)
    """
LATER = """
    import numpy as np
    from setup import load

    order = np.random.default_rng().permutation(load("a.pt"))
    torch.save(model.state_dict(), "best.pt")
    model.load_state_dict(torch.load("best.pt"))
    print(total)
    """


def test_a_script_beside_one_that_starts_ranks_draws_saves_and_waits_as_by_itself(tmp_path: Path) -> None:
    report = run(
        tmp_path,
        trainer=TRAINER.replace("AVERAGE", "total"),
        setup=textwrap.dedent(SETUP),
        alone=body(ALONE) + textwrap.dedent(LATER),
        ranks=body(RANKS) + textwrap.dedent(LATER),
    )
    after = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert "wait_for_all_ranks()\nmodel.load_state_dict(" in after["alone.py"]
    assert "wait_for_all_ranks" not in after["ranks.py"] and "rank_0_first" not in after.get("setup.py", "")
    found = [(file.path.name, f.message) for file, f in report.findings(Severity.REVIEW)]
    assert ("setup.py", "several ranks may fetch or make this data at the same time") in found
    of_scripts = [message for name, message in found if name == "alone.py"]
    assert any("draws other numbers on each rank" in m for m in of_scripts)
    assert any("the sum over a rank's share" in m for m in of_scripts)
    assert not [message for name, message in found if name == "ranks.py"]


def test_a_helper_that_nothing_calls_keeps_no_loop_from_its_conversion(tmp_path: Path) -> None:
    helpers = """
        import torch.nn.functional as F


        class Fisher:
            def __init__(self, model, inputs):
                model.zero_grad()
                model(inputs).sum().backward()
                self.weights = [p.grad ** 2 for p in model.parameters()]


        def train(model, optimizer, loader):
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
        """
    script = """
        from helpers import Fisher

        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        fisher = Fisher(model, torch.ones(4, 4))
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        """
    report = run(tmp_path, helpers=textwrap.dedent(helpers), script=body(script))
    after = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert "engine.backward(" in after["script.py"] and not after["helpers.py"]
    reviews = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert reviews == ["no step() uses these gradients, so each rank reads those of its share of the data"]


def test_a_loop_that_is_refused_with_one_of_another_file_names_the_reason_there(tmp_path: Path) -> None:
    tuning = """
        import torch
        import torch.nn.functional as F


        def tune(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step(x)
        """
    script = """
        from tuning import tune

        model, loader = Net(), DataLoader(data, batch_size=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        tune(model, loader)
        """
    report = run(tmp_path, tuning=textwrap.dedent(tuning), script=body(script))
    (finding,) = next(file for file in report.files if file.path.name == "script.py").findings
    assert finding.message == "the loop of script stays as it is for a reason in tuning.py, line 11"
