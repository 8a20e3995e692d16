"""``optimizations``: accumulation moves to the DeepSpeed config, the rest goes with the engine that read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ds_migrate.experiment import lengths, options, yaml_splices
from ds_migrate.experiment.model import TrialFacts
from ds_migrate.experiment.yaml_edits import Change, RefusedError
from ds_migrate.experiment.yaml_nodes import Node
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code


class Notes(Protocol):
    """A place for findings."""

    text: str

    def note(
        self,
        code: Code,
        severity: Severity,
        node: Node,
        message: str,
        *,
        advice: str | None = None,
        fix: str | None = None,
    ) -> None: ...


@dataclass
class Accumulation:
    """The accumulation of a config. ``k``: batches per optimizer step. ``to_write``: ``gradient_accumulation_steps``
    that its ``overwrite_deepspeed_args`` has to get, if any. ``divides``: whether lengths are still in batches.
    ``effective``: whether the ``optimizations`` of this config counted (those of a config that runs a script did not:
    the script gave its own to ``pytorch.init``). ``unknown``: scripts accumulate in ways that cannot be determined.
    ``averages``: the gradients, over the batches of one step."""

    k: int = 1
    to_write: int | None = None
    divides: bool = False
    unknown: bool = False
    effective: bool = True
    averages: bool = True
    node: Node | None = None
    comment: Mapping[str, str] = field(default_factory=dict)
    trials: Sequence[TrialFacts] = ()

    @staticmethod
    def read(
        root: Node, trials: Sequence[TrialFacts], platform_starts_trial: bool, scripts: Sequence[Path] = ()
    ) -> Accumulation:
        """Raises RefusedError when the accumulation cannot be determined. ``scripts``: those that the config runs."""
        given = root.own("optimizations")
        section = given.real if given is not None and given.real.kind == "mapping" else None
        node = None if section is None else section.own("aggregation_frequency")
        if root.merged("optimizations") or (section is not None and section.merged("aggregation_frequency")):
            raise RefusedError(
                Code.SHARED_THROUGH_ANCHOR,
                section or root,
                "aggregation_frequency comes from a merge key (<<)",
                "write it out in this config",
            )
        unknown = False
        effective = platform_starts_trial or any(trial.aggregation_from_config for trial in trials)
        if effective:
            k = 1 if node is None else lengths.integer(node)
        else:
            literals = {trial.aggregation_in(scripts) for trial in trials}
            if len(literals) > 1:
                raise RefusedError(
                    Code.GRADIENT_ACCUMULATION,
                    root,
                    f"the script runs trials with different aggregation_frequency: {sorted(map(str, literals))}",
                    "give each trial a separate script and config",
                )
            unknown = literals == {None}
            k = literals.pop() or 1
        if k is None or k < 1:
            assert node is not None
            raise RefusedError(
                Code.VALUE_NOT_EDITABLE,
                node,
                f"aggregation_frequency is {_shown(node.real)}, not a whole number from 1 on",
                "write the number that the trial is to accumulate",
            )
        present = _present_steps(root)
        result = Accumulation(k, effective=effective, node=node, trials=trials, divides=k > 1)
        result.unknown = unknown and present is None
        if platform_starts_trial and section is not None:
            average = section.own("average_aggregated_gradients")
            result.averages = average is None or average.real.value.lower() not in options.FALSE
        if present is None:
            static = {trial.ds_config.get("gradient_accumulation_steps", 1) for trial in trials}
            result.to_write = k if k > 1 or static != {1} else None
        elif k > 1 and effective:
            raise RefusedError(
                Code.GRADIENT_ACCUMULATION,
                present,
                f"both gradient_accumulation_steps ({present.real.value}) and aggregation_frequency ({k}) are given",
                "remove the one that is wrong; with gradient_accumulation_steps, lengths count optimizer steps",
            )
        elif k > 1 and lengths.integer(present) != k:
            raise RefusedError(
                Code.GRADIENT_ACCUMULATION,
                present,
                f"gradient_accumulation_steps is {present.real.value}, the script's aggregation_frequency was {k}",
                "give both the same value",
            )
        else:
            result.divides = False  # an earlier run did it, or lengths were written for DeepSpeed
        return result

    def edit(self, change: Change, notes: Notes) -> None:
        """Plan the removal of ``optimizations`` and the division of lengths."""
        self._check_averaging(change.root)
        self._remove_options(change, notes)
        if self.to_write is not None and self.node is None and self.k > 1:
            notes.note(
                Code.GRADIENT_ACCUMULATION,
                Severity.CONVERTED,
                change.root,
                f"the script accumulated {self.k} batches: the engine does it now",
                fix=f"overwrite_deepspeed_args.gradient_accumulation_steps: {self.k}",
            )
        if self.divides:
            self._divide(change, notes)
        elif self.unknown:
            _note_undivided(change.root, notes)

    def _check_averaging(self, root: Node) -> None:
        if self.k == 1:
            return
        for trial in self.trials:
            if trial.sums_gradients is not None and trial.sums_gradients == self.averages:
                asked, does = ("averaged", "sums") if self.averages else ("summed", "averages")
                raise RefusedError(
                    Code.AVERAGE_AGGREGATED_GRADIENTS,
                    self.node or root,
                    f"gradients are to be {asked} over {self.k} batches, but the converted {trial.name} {does} them",
                    "use one value of average_aggregated_gradients in all configs of the trial",
                )

    def _remove_options(self, change: Change, notes: Notes) -> None:
        given = change.root.own("optimizations")
        if given is None or given.real.kind != "mapping" or not given.real.pairs:
            return
        gone: list[str] = []
        notes_to_make: list[tuple[Code, Severity, Node, str, str | None]] = []
        for key, value in given.real.pairs:
            outcome = options.option(key.value, value, self.k, self.effective)
            if outcome is None:
                notes.note(
                    Code.OPTIMIZATIONS,
                    Severity.REVIEW,
                    key,
                    f"optimizations.{key.value} is unknown and stays; nothing reads it",
                )
                continue
            gone.append(key.value)
            if value is self.node and self.to_write is not None:
                comment = yaml_splices.trailing_comment(change.text, value.end)
                self.comment = {"gradient_accumulation_steps": comment} if comment else {}
            code, severity, message, fix = outcome
            notes_to_make.append((code, severity, key, message, fix))
        if not gone:
            return
        try:
            change.remove(("optimizations",), gone)
        except RefusedError:
            if self.divides or self.to_write is not None:
                raise
            notes.note(
                Code.SHARED_THROUGH_ANCHOR,
                Severity.REVIEW,
                given,
                "optimizations is shared through an anchor and stays; nothing reads it any more",
            )
            return
        for code, severity, node, message, fix in notes_to_make:
            notes.note(code, severity, node, message, fix=fix)

    def _divide(self, change: Change, notes: Notes) -> None:
        try:
            found = lengths.in_batches(change.root)
        except lengths.NotALengthError as wrong:
            raise RefusedError(
                Code.LENGTHS_IN_BATCHES,
                wrong.node,
                f"{'.'.join(wrong.path)} has to be divided by {self.k} but {wrong.reason}",
                "write it out as a whole number",
            ) from None
        for length in found:
            steps = length.steps(self.k)
            change.replace(length.path, length.node, steps)
            rest = length.batches - steps * self.k
            message = f"{length.batches} batches of the loader are {steps} optimizer steps of {self.k}"
            severity = Severity.CONVERTED
            if rest > 0 and length.path[-1] == "batches" and length.path[0] == "searcher":
                severity = Severity.REVIEW
                message += f"; the last {rest} never reached an optimizer step and are not trained any more"
            elif rest:
                severity = Severity.REVIEW
                message += f", {rest} batches fewer" if rest > 0 else f", {-rest} batches more"
            notes.note(Code.LENGTHS_IN_BATCHES, severity, length.node, message, fix=f"{length.name}: {steps}")
        for path, node in lengths.unitless(change.root):
            notes.note(
                Code.LENGTHS_IN_BATCHES,
                Severity.REVIEW,
                node,
                f"{'.'.join(path)} has no unit and stays; if it counts batches, divide it by {self.k}",
            )


def _note_undivided(root: Node, notes: Notes) -> None:
    """Lengths that count optimizer steps from now on, where K is known to the script alone."""
    try:
        found = lengths.in_batches(root)
    except lengths.NotALengthError:
        return
    for length in found:
        notes.note(
            Code.LENGTHS_IN_BATCHES,
            Severity.REVIEW,
            length.node,
            f"{length.name} stays {length.batches}: the script's aggregation_frequency is not known here, and where it "
            "is more than 1 a batch is an optimizer step now",
            advice="divide it by the aggregation_frequency, unless the script gives fit() this length itself",
        )


def _shown(node: Node) -> str:
    return repr(node.value) if node.kind == "scalar" else f"a {node.kind}"


def _present_steps(root: Node) -> Node | None:
    node: Node | None = root
    for key in ("hyperparameters", "overwrite_deepspeed_args", "gradient_accumulation_steps"):
        if node is None or node.real.kind != "mapping":
            return None
        node = node.real.own(key)
    return node
