"""The table of experiment config fields has every field that the tools know, with what they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ds_migrate.experiment import lengths, options
from ds_migrate.experiment.yaml_nodes import Node
from trial_runtime.train.config import unsupported_fields

PAGE = Path(__file__).parents[1] / "docs/experiment-config.md"


def table() -> dict[str, tuple[str, str]]:
    """Return for each field what ds-migrate and what ds-train does with it."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(rows) == len({name for name, *_ in rows})
    return {name: (migrate, train) for name, migrate, train in rows}


def test_it_has_every_field_and_no_other() -> None:
    sections = {f"{section}.{name}" for section, names in unsupported_fields._SECTIONS.items() for name in names}
    whole = unsupported_fields.USED - unsupported_fields._SECTIONS.keys()

    assert table().keys() == whole | sections | unsupported_fields.IGNORED.keys()


@pytest.mark.parametrize("name", unsupported_fields.IGNORED)
def test_what_is_not_acted_on_is_reported_as_at_start(name: str) -> None:
    assert table()[name][1] == unsupported_fields.IGNORED[name]


def test_lengths_in_batches_are_those_that_divide() -> None:
    said = {name for name, (migrate, _) in table().items() if "DSM404" in migrate}
    divided = {".".join(path[:-1] if path[-1] == "batches" else path) for path in lengths._FIELDS}

    assert said == divided | {"searcher.max_time"}


@pytest.mark.parametrize("value", ["true", "false", "O1", "O0", "2"])
@pytest.mark.parametrize("name", [name for name in table() if name.startswith("optimizations.")])
def test_optimizations_go_with_the_rule_that_is_named(name: str, value: str) -> None:
    outcome = options.option(name.partition(".")[2], Node("scalar", 0, 0, 1, 1, value=value), k=2, effective=True)

    assert outcome is not None, "it stays"
    assert outcome[0].value in table()[name][0]
