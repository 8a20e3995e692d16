"""Trials that an earlier run converted: configs that were not named then may follow now, and a DeepSpeed config that is
gone is made again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ds_migrate.experiment.model import ConfigFacts, TrialFacts
from ds_migrate.files import journal
from ds_migrate.files.reading import FileReader
from ds_migrate.findings import FileKind, FileResult, FileStatus, Finding, Severity, TrialStatus
from ds_migrate.project.trials import Project
from ds_migrate.rules.codes import Code

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
            names_ds_config=written is not None,
        )


def missing_configs(
    trials: Iterable[TrialFacts], configs: Mapping[tuple[Path, str], ConfigFacts]
) -> Iterator[FileResult]:
    """Yield the DeepSpeed configs that converted trials read and that are not there, as they were where that is known.

    ``configs``: what experiment configs state, by trial.
    """
    for trial in trials:
        path = trial.ds_config_path
        if not trial.names_ds_config or path.exists() or _is_elsewhere(configs.get((trial.path, trial.name))):
            continue
        try:
            content = journal.content_of_created(path)
        except journal.JournalError:
            content = None
        message = f"{trial.name} reads {path.name}, which is not there"
        if content is not None:
            finding = Finding(
                Code.DS_CONFIG_MISSING,
                Severity.CONVERTED,
                1,
                f"{message}: it is made again as it was",
                trial=trial.name,
            )
            yield FileResult(path, FileKind.DS_CONFIG, FileStatus.CREATED, after=content, findings=[finding])
        else:
            advice = "take it from version control, or convert the original source again: it has the clipping and stage"
            finding = Finding(Code.DS_CONFIG_MISSING, Severity.ERROR, 0, message, trial=trial.name, help=advice)
            yield FileResult(path, FileKind.DS_CONFIG, FileStatus.ERROR, findings=[finding])


def _is_elsewhere(config: ConfigFacts | None) -> bool:
    """Return whether every experiment config of the trial names a DeepSpeed config that is there."""
    if config is None or "deepspeed_config" not in config.always:
        return False
    names = [name for name in config.hparams["deepspeed_config"] if isinstance(name, str)]
    return bool(names) and all(any((path.parent / name).is_file() for path in config.configs) for name in names)
