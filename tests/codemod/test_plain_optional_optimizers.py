"""Plain loops with an optimizer that is not there each time: None, or one that a checkpoint holds whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import blocked, body, convert

LOOP = """
    def train(loader, encoder, decoder, encoder_optimizer, decoder_optimizer):
        for x, y in loader:
            decoder_optimizer.zero_grad()
            if encoder_optimizer is not None:
                encoder_optimizer.zero_grad()
            loss = F.mse_loss(decoder(encoder(x)), y)
            loss.backward()
            CLIP
            if encoder_optimizer is not None:
                encoder_optimizer.step()
            decoder_optimizer.step()


    def clamp(optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.data.clamp_(-1, 1)


    def main(fine_tune):
        encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 1)
        MAKE
        decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
        train(DataLoader(data, batch_size=4), encoder, decoder, encoder_optimizer, decoder_optimizer)


    main(False)
    """
CHOSEN = "encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1) if fine_tune else None"
FIRST_NONE = """encoder_optimizer = None
        if fine_tune:
            encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)"""
ELSE_NONE = """if fine_tune:
            encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
        else:
            encoder_optimizer = None"""


def _text(make: str, clip: str = "pass") -> str:
    return body(LOOP.replace("MAKE", make).replace("CLIP", clip))


@pytest.mark.parametrize("make", [CHOSEN, FIRST_NONE, ELSE_NONE])
def test_the_engine_of_an_optimizer_that_may_be_none_is_none_too(make: str, tmp_path: Path) -> None:
    after = convert(tmp_path, _text(make))
    assert "encoder_engine = None\n" in after and "decoder_engine.backward(loss" in after
    assert "if encoder_engine is not None:\n            encoder_engine.step()" in after


def test_a_clipping_beside_an_optimizer_that_may_be_none_averages_where_it_is_there(tmp_path: Path) -> None:
    clip = """clamp(decoder_optimizer)
            if encoder_optimizer is not None:
                clamp(encoder_optimizer)"""
    after = convert(tmp_path, _text(CHOSEN, clip))
    lines = "        if encoder_engine is not None:\n            encoder_engine.allreduce_gradients()\n"
    assert lines in after and "        decoder_engine.allreduce_gradients()\n" in after


def test_a_clipping_of_gradients_that_nothing_averages_is_refused(tmp_path: Path) -> None:
    clip = "nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1.0)"
    ((code, message),) = blocked(tmp_path, _text(CHOSEN, clip))
    assert code == "DSM606" and "before gradients are averaged over ranks" in message


def test_a_backward_pass_whose_only_optimizer_may_be_none_is_refused(tmp_path: Path) -> None:
    text = """
        def main(flag):
            model = Net()
            optimizer = None
            if flag:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in DataLoader(data, batch_size=4):
                F.mse_loss(model(x), y).backward()
                if optimizer is not None:
                    optimizer.step()


        main(True)
        """
    ((code, message),) = blocked(tmp_path, body(text))
    assert code == "DSM602" and "only one of the two has an optimizer" in message


def test_an_optimizer_of_a_checkpoint_has_an_engine_too(tmp_path: Path) -> None:
    text = """
        def main(path):
            if path is None:
                MAKE_MODEL
            else:
                checkpoint = torch.load(path)
                model = checkpoint["model"]
                optimizer = checkpoint["optimizer"]
            for x, y in DataLoader(data, batch_size=4):
                STEP


        main(None)
        """
    after = convert(tmp_path, body(text))
    assert 'optimizer = checkpoint["optimizer"]\n    engine, *_ = deepspeed.initialize(' in after


GIVEN = """
    def fit(model, optimizer=None):
        MAKE
        for x, y in DataLoader(data, batch_size=4):
            opt.zero_grad()
            F.mse_loss(model(x), y).backward()
            opt.step()
    """
IN_BRANCHES = """if optimizer is None:
            opt = torch.optim.Adam(model.parameters(), lr=0.1)
        elif callable(optimizer):
            opt = optimizer(model.parameters())
        else:
            opt = optimizer"""
BEFORE = """opt = optimizer
        if opt is None:
            opt = torch.optim.Adam(model.parameters(), lr=0.1)"""
IN_ITS_NAME = """if opt is None:
            opt = torch.optim.Adam(model.parameters(), lr=0.1)"""


@pytest.mark.parametrize(
    "text",
    [
        GIVEN.replace("MAKE", IN_BRANCHES),
        GIVEN.replace("MAKE", BEFORE),
        GIVEN.replace("MAKE", IN_ITS_NAME).replace("optimizer=", "opt="),
    ],
)
def test_an_optimizer_that_a_caller_gives_has_an_engine_too(text: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(text))
    assert "\n    engine, *_ = deepspeed.initialize(\n" in after and "        engine.step()\n" in after
    assert '"stage": 0' in after  # its class is unknown
