"""Plain training loops that keep model and optimizer in a dict, for a step function that another function makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import body, convert

STATE = """
    def make_optimize(args):
        def optimize(optimizer, params, step):
            for group in optimizer.param_groups:
                group["lr"] = args.lr * min(step / 10, 1)
            if args.clip >= 0:
                torch.nn.utils.clip_grad_norm_(params, max_norm=args.clip)
            optimizer.step()

        return optimize


    def make_step(train, optimize=None):
        def step(state, x, y):
            model = state["model"]
            if train:
                state["optimizer"].zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimize(state["optimizer"], model.parameters(), step=state["step"])
                state["step"] += 1
            else:
                with torch.no_grad():
                    loss = F.mse_loss(model(x), y)
            return loss

        return step


    def endless(loader):
        while True:
            yield from loader


    def main(args):
        torch.manual_seed(0)
        model = torch.nn.DataParallel(Net())
        optimizer = torch.optim.Adam(model.parameters())
        state = DICT
        train_iter = endless(DataLoader(data, batch_size=4, shuffle=True))
        eval_iter = endless(DataLoader(data, batch_size=2))
        train_step = make_step(True, make_optimize(args))
        eval_step = make_step(False)
        for step in range(100):
            loss = train_step(state, *next(train_iter))
            if step % 10 == 0:
                x, y = next(eval_iter)
                print(eval_step(state, x, y))
        torch.save({"model": state["model"].state_dict()}, "model.pt")


    import argparse
    main(argparse.ArgumentParser().parse_args())
    """


@pytest.fixture(params=["dict(optimizer=optimizer, model=model, step=0)", "{'optimizer': optimizer, 'model': model}"])
def after(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return convert(tmp_path, body(STATE.replace("DICT", request.param)))


def test_an_engine_that_no_name_leads_to_averages_before_the_clip(after: str) -> None:
    assert (
        "        engine_of(optimizer).allreduce_gradients()\n        if args.clip >= 0:\n"
        "            torch.nn.utils.clip_grad_norm_(params, max_norm=args.clip)\n"
        "        engine_of(optimizer).step()\n"
    ) in after


def test_the_loader_of_a_step_that_was_made_for_evaluation_stays_whole(after: str) -> None:
    assert "endless(shard(DataLoader(data, batch_size=4, shuffle=True)))" in after
    assert "endless(DataLoader(data, batch_size=2))" in after


def test_weights_of_an_item_keep_the_names_that_its_wrapper_gave_them(after: str) -> None:
    assert 'torch.save({"model": state["model"].state_dict(prefix="module.")}, "model.pt")' in after
