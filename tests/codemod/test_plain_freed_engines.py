"""Engines of plain loops that are deleted with their optimizers."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from plain_loops import HEADER, LOOP, body, convert

FOLD = f"for fold in range(3):\n{textwrap.indent(LOOP, '    ')}    DELETED\n"


@pytest.mark.parametrize(
    ("deleted", "expected"),
    [
        ("del model, optimizer, loader", "del model, optimizer, loader, engine, _"),
        ("del optimizer", "del optimizer, engine, _"),
        ("del (model, optimizer)", "del (model, optimizer, engine, _)"),
        ("del model", "del model"),  # frees nothing before either: the optimizer has its parameters
    ],
)
def test_an_engine_is_deleted_with_its_optimizer(deleted: str, expected: str, tmp_path: Path) -> None:
    """It kept the model and the optimizer of each fold until the next one's was made."""
    assert f"    {expected}\n" in convert(tmp_path, HEADER + FOLD.replace("DELETED", deleted))


def test_what_is_left_of_engines_is_deleted_once(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + LOOP + "del optimizer\n" + LOOP + "del optimizer\n")
    assert after.count("del optimizer, engine\n") == 2


KEPT = """
    class Trainer:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def fit(self, loader):
            for x, y in loader:
                OWN_STEP

        def close(self):
            del self.model, self.optimizer


    class Other:
        def close(self):
            del self.optimizer


    Trainer(Net()).fit(DataLoader(data, batch_size=4))
    """


def test_an_engine_of_an_object_is_deleted_in_its_class(tmp_path: Path) -> None:
    after = convert(tmp_path, body(KEPT))
    assert "del self.model, self.optimizer, self.engine\n" in after
    assert after.endswith("\n") and "            del self.optimizer\n".strip() + "\n\n" in after


GIVEN = """
    def train(model, optimizer, loader):
        for x, y in loader:
            STEP
        del optimizer


    MAKE_MODEL
    for epoch in range(2):
        train(model, optimizer, DataLoader(data, batch_size=4))
    """


def test_a_function_deletes_its_name_of_the_engine_not_the_engine_s_optimizer(tmp_path: Path) -> None:
    """``del engine.optimizer`` left the next epoch without one."""
    assert "    del engine\n" in convert(tmp_path, body(GIVEN))
