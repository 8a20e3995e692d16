"""Trials that an earlier run converted: configs that were not named then may follow now."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ds_migrate.experiment.model import TrialFacts
from ds_migrate.files.reading import FileReader
from ds_migrate.findings import TrialStatus
from ds_migrate.project.trials import Project

_DS_CONFIG = re.compile(rb'with_name\("([^"]+\.json)"\)')


def converted_earlier(project: Project, files: FileReader) -> Iterator[TrialFacts]:
    """Yield the named trials on DeepSpeed whose source reads the hyperparameter ``deepspeed_config``."""
    for (path, name), trial in project.trials.items():
        source = files.source(path) if trial.kind == "deepspeed" else None
        data = (source.data if source is not None else None) or b""
        if b'"deepspeed_config"' not in data:
            continue
        written = _DS_CONFIG.search(data)
        yield TrialFacts(
            name,
            path,
            TrialStatus.ALREADY_DEEPSPEED,
            {},
            path.with_name(written.group(1).decode() if written else "ds_config.json"),
            sums_gradients=b"scale_wrt_gas=False" in data and b".average_gradients(" not in data,
            reads_deepspeed_config=True,
        )
