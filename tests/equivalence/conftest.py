"""Runs are shared by the tests of a session."""

from __future__ import annotations

import os

import pytest

from equivalence.runs import Runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Records of runs, each trained when a test first asks for it."""
    own = tmp_path_factory.mktemp("own")
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    shared = (own.parents[1] if is_worker else own.parent) / "equivalence"
    shared.mkdir(exist_ok=True)
    return Runs(shared, own)
