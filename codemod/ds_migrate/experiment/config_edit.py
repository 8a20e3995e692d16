"""One experiment config: what changes in it, as text edits checked against the meaning intended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from ds_migrate.experiment import launcher, values, yaml_splices
from ds_migrate.experiment.accumulation import Accumulation
from ds_migrate.experiment.entry import Entry
from ds_migrate.experiment.yaml_edits import Change, RefusedError
from ds_migrate.experiment.yaml_nodes import Node
from ds_migrate.findings import Finding, Severity
from ds_migrate.rules.codes import Code


@dataclass
class ConfigEdit:
    """The edit of one document of one file; ``findings`` explain what ``run`` changes."""

    text: str
    root: Node
    entry: Entry
    target: str = "runtime"
    careful: bool = False
    findings: list[Finding] = field(default_factory=list)

    def note(
        self,
        code: Code,
        severity: Severity,
        node: Node,
        message: str,
        *,
        advice: str | None = None,
        fix: str | None = None,
    ) -> None:
        trial = self.entry.trials[0].name if len(self.entry.trials) == 1 else None
        self.findings.append(
            Finding(code, severity, node.line, message, node.column, trial=trial, help=advice, fix=fix)
        )

    def run(self) -> tuple[object, list[yaml_splices.Splice]]:
        """Return what the document is to mean, and the splices that make it so (none when nothing is left to do).

        Raises:
            RefusedError: an edit that the numbers depend on cannot be made; nothing may be changed then.
        """
        change = Change(self.text, self.root, self.careful)
        entry = self.entry
        accumulation = Accumulation.read(self.root, entry.trials, entry.platform_starts_trial, entry.scripts)
        self._entrypoint(change)
        accumulation.edit(change, self)
        self._hyperparameters(change, accumulation)
        self._hints()
        return change.meaning, change.splices()

    def _entrypoint(self, change: Change) -> None:
        entry = self.entry
        if entry.node.kind == "alias" or entry.node.anchor is not None:
            if entry.commands and any(c.launcher for c in entry.commands):
                self.note(
                    Code.SHARED_THROUGH_ANCHOR,
                    Severity.REVIEW,
                    entry.node,
                    "entrypoint is shared through an anchor and stays",
                    advice="write the entrypoint of this config out, without the launch layer",
                )
            return
        one_rank = (values.slots(self.root) or 1) == 1
        if self.target != "determined" and entry.shell:
            self.note(
                Code.LAUNCH_LAYER,
                Severity.REVIEW,
                entry.node,
                "ds-train runs one command, not a shell line",
                advice="leave the trial's own command, do the rest before ds-train, "
                "and in place of cd name the folder: ds-train CONFIG.yaml DIR",
            )
        edit = launcher.edit(self.text, entry.key, entry.node, entry.commands, self.target, one_rank)
        if edit.left is not None:
            self.note(
                Code.LAUNCH_LAYER,
                Severity.REVIEW,
                entry.node,
                f"the launch layer {edit.layer} stays: {edit.left}",
                advice=edit.advice,
            )
            return
        if edit.value is None:
            return
        change.set(("entrypoint",), edit.value)
        change.add(edit.splices)
        shown = edit.value if isinstance(edit.value, str) else " ".join(edit.value)
        if self.target == "determined":
            message = "DeepSpeedTrial needs Determined's DeepSpeed launch layer, on one slot as well"
        else:
            message = f"ds-train starts slots_per_trial processes itself, without the launch layer {edit.layer}"
            if edit.layer == "harness":
                message = "ds-train runs module:Class itself"
        severity = Severity.CONVERTED
        if edit.dropped:
            severity = Severity.REVIEW
            message += f"; its own arguments {' '.join(edit.dropped)!r} are gone"
        self.note(Code.LAUNCH_LAYER, severity, entry.node, message, fix=f"entrypoint: {shown}")

    def _hyperparameters(self, change: Change, accumulation: Accumulation) -> None:
        additions: dict[str, yaml_splices.Value] = {}
        path = self._ds_config_path()
        hparams = self.root.own("hyperparameters")
        mapping = hparams.real if hparams is not None and hparams.real.kind == "mapping" else None
        present = None if mapping is None else mapping.own("deepspeed_config")
        if present is None and path is not None:
            additions["deepspeed_config"] = path
        elif present is not None and path is not None and present.real.value != path:
            self.note(
                Code.OTHER_DS_CONFIG,
                Severity.REVIEW,
                present,
                f"deepspeed_config stays {present.real.value or 'what it is'!r}; the conversion writes {path!r}",
                advice=f"give that file the keys that {path} has, or name {path}",
            )
        steps = accumulation.to_write
        if steps is not None:
            inner = None if mapping is None else mapping.own("overwrite_deepspeed_args")
            if inner is None:
                additions["overwrite_deepspeed_args"] = {"gradient_accumulation_steps": steps}
            elif inner.kind == "mapping":
                change.insert(
                    ("hyperparameters", "overwrite_deepspeed_args"),
                    {"gradient_accumulation_steps": steps},
                    accumulation.comment,
                )
            else:
                raise RefusedError(
                    Code.SHARED_THROUGH_ANCHOR,
                    inner,
                    "overwrite_deepspeed_args is not a separate mapping: gradient_accumulation_steps cannot be added",
                    f"add gradient_accumulation_steps: {steps} to it",
                )
        if not additions:
            return
        try:
            change.insert(("hyperparameters",), additions, accumulation.comment)
        except RefusedError as refused:
            if steps is not None:
                raise
            self.note(
                Code.SHARED_THROUGH_ANCHOR,
                Severity.REVIEW,
                refused.node,
                f"{refused} so deepspeed_config is not added: the trial reads the file beside its source",
                advice=f"add deepspeed_config: {path}",
            )
            return
        if "deepspeed_config" in additions:
            self.note(
                Code.CONFIG_NAMES_DS_CONFIG,
                Severity.CONVERTED,
                self._hparams_key(),
                "the trial reads its DeepSpeed config from this path",
                fix=f"hyperparameters.deepspeed_config: {path}",
            )

    def _hparams_key(self) -> Node:
        i = self.root.index("hyperparameters")
        return self.entry.key if i is None else self.root.pairs[i][0]

    def _ds_config_path(self) -> str | None:
        """Return the value of ``deepspeed_config``; None when the trial has to find the file itself."""
        paths = {trial.ds_config_path for trial in self.entry.trials}
        if len(paths) != 1:
            self.note(
                Code.CONFIG_NAMES_DS_CONFIG,
                Severity.REVIEW,
                self.entry.node,
                "the entrypoint runs trials with different DeepSpeed configs: each reads the one beside its source",
            )
            return None
        if any(trial.unpacks_hparams for trial in self.entry.trials):
            self.note(
                Code.CONFIG_NAMES_DS_CONFIG,
                Severity.CONVERTED,
                self._hparams_key(),
                "the trial unpacks its hyperparameters into a call, so deepspeed_config is not added: "
                "it reads the file beside its source",
            )
            return None
        relative = os.path.relpath(paths.pop(), self.entry.directory).replace(os.sep, "/")
        if not relative.isprintable():  # an undecodable byte of a file name, or a control character
            self.note(
                Code.CONFIG_NAMES_DS_CONFIG,
                Severity.REVIEW,
                self.entry.node,
                f"the path {relative!r} cannot be written in YAML, so deepspeed_config is not added: "
                "the trial reads the file beside its source",
            )
            return None
        if relative.startswith("../"):
            self.note(
                Code.CONFIG_NAMES_DS_CONFIG,
                Severity.REVIEW,
                self.entry.node,
                f"{relative} lies outside the directory that the trial runs in, so deepspeed_config is not added: "
                "the trial reads the file beside its source",
            )
            return None
        return relative

    def _hints(self) -> None:
        hparams = self.root.own("hyperparameters")
        mapping = hparams.real if hparams is not None and hparams.real.kind == "mapping" else None
        known = mapping is not None and (
            mapping.own("global_batch_size") is not None or mapping.merged("global_batch_size")
        )
        if self.entry.platform_starts_trial and not known and not self.root.merged("hyperparameters"):
            self.note(
                Code.GLOBAL_BATCH_SIZE_MISSING,
                Severity.REVIEW,
                self._hparams_key(),
                "hyperparameters.global_batch_size is missing: DeepSpeed's micro batch is global_batch_size / slots",
                advice="add it: the batch over all slots, not multiplied by gradient_accumulation_steps",
            )
        if self.target == "determined":
            for node in _images(self.root):
                if "deepspeed" not in node.value and "pytorch-ngc" not in node.value:
                    self.note(
                        Code.IMAGE_WITHOUT_DEEPSPEED,
                        Severity.REVIEW,
                        node,
                        f"image {node.value!r} may lack deepspeed",
                        advice="name an image that has deepspeed, or drop the field: the default image has it",
                    )


def _images(root: Node) -> Iterator[Node]:
    environment = root.own("environment")
    image = None if environment is None else environment.real.own("image")
    if image is None:
        return
    for node in [image.real, *(value.real for key, value in image.real.pairs if key.value != "cpu")]:
        if node.kind == "scalar" and node.value:
            yield node
