"""A small project for the tests of experiment configs: one trial, one script, and a way to convert a config of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ds_migrate.experiment import ConfigFacts, TrialFacts, facts, planning
from ds_migrate.findings import FileResult, Severity, TrialStatus
from ds_migrate.project.loading import ConfigFile
from examples import is_documented

Scripts = Mapping[Path, Sequence[str | tuple[Path, str]]]


def plan(
    configs: Sequence[ConfigFile],
    trials: Sequence[TrialFacts],
    scripts: Scripts,
    target: str = "runtime",
    root: Path | None = None,
) -> list[FileResult]:
    """What becomes of the configs, for trials whose conversion ended as ``trials`` state."""
    return planning.plan(planning.read_configs(configs, trials, scripts, root), trials, scripts, target)


def facts_for(
    configs: Sequence[ConfigFile], trials: Sequence[TrialFacts], scripts: Scripts
) -> dict[tuple[Path, str], ConfigFacts]:
    return facts.facts_for(planning.read_configs(configs, trials, scripts))


@dataclass(frozen=True)
class Project:
    root: Path
    trials: tuple[TrialFacts, ...]

    def with_trial(self, **changes: Any) -> Project:
        """The same project with other facts of its (first) trial."""
        return Project(self.root, (replace(self.trials[0], **changes), *self.trials[1:]))

    def results(
        self, text: str | bytes, *, name: str = "const.yaml", named: bool = True, target: str = "runtime"
    ) -> list[FileResult]:
        data = text if isinstance(text, bytes) else text.encode()
        scripts = {self.root / "train.py": ["MyTrial"], self.root / "tools" / "run it.py": ["MyTrial"]}
        found = plan([ConfigFile(self.root / name, data, named)], self.trials, scripts, target=target, root=self.root)
        for finding in (finding for result in found for finding in result.findings):
            assert finding.severity is not Severity.BLOCKED or is_documented(finding), finding
        return found

    def result(self, text: str | bytes, **options: Any) -> FileResult:
        results = self.results(text, **options)
        assert len(results) == 1
        return results[0]

    def convert(self, text: str, **options: Any) -> str:
        result = self.result(text, **options)
        assert result.after is not None, result.findings
        return result.after.decode()


def project(root: Path, names: Sequence[str] = ("MyTrial",)) -> Project:
    """``model_def.py`` with the trials ``names`` in ``root``, all converted."""
    (root / "tools").mkdir(exist_ok=True)
    for file in ("model_def.py", "train.py", "tools/run it.py"):
        (root / file).touch()
    source, ds_config = root / "model_def.py", root / "ds_config.json"
    facts = (TrialFacts(name, source, TrialStatus.CONVERTED, {"gradient_clipping": 0.0}, ds_config) for name in names)
    return Project(root, tuple(facts))


def codes(result: FileResult) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity.value) for finding in result.findings]
