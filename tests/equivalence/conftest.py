"""Runs are shared by the tests of a session."""

from __future__ import annotations

import pytest

from equivalence.launch import Runs
from equivalence.scenario import Case


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Records of runs. What the collected tests need is trained together, several runs in one process."""
    cases = [
        value
        for item in request.session.items
        if hasattr(item, "callspec")
        for value in item.callspec.params.values()
        if isinstance(value, Case)
    ]
    return Runs(tmp_path_factory.mktemp("equivalence"), [run for case in cases for run in case.scenarios])
