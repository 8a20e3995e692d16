"""The findings about experiment configs (DSM4xx) and ds_config.json (DSM5xx).

The documentation of a rule is ``pages/<code>.txt``. In its examples, ``Before`` and ``After`` are configs of the trial
``model_def:MyTrial``, whose ds_config.json lies beside it; the tests run them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    """One kind of finding."""

    code: str
    name: str
    summary: str

    @property
    def doc(self) -> str:
        """The summary, then what the rule pages say: What it does, Why, Before, After, Numbers, References."""
        page = Path(__file__).with_name("catalog") / f"{self.code}.txt"
        return f"{self.summary}\n\n{page.read_text('utf-8')}"


DS_CONFIG = Rule("DSM401", "config-names-ds-config", "The experiment config names the DeepSpeed config.")
LAUNCHER = Rule("DSM402", "launch-layer", "The entrypoint loses Determined's launch layer.")
ACCUMULATION = Rule("DSM403", "gradient-accumulation", "`aggregation_frequency` becomes `gradient_accumulation_steps`.")
LENGTHS = Rule("DSM404", "lengths-in-batches", "Lengths and periods in batches divide by the accumulation steps.")
OPTIONS = Rule("DSM405", "optimizations", "Settings of `optimizations` that DeepSpeed has no use for go.")
PRECISION = Rule(
    "DSM406", "reduced-precision-options", "`mixed_precision` and `gradient_compression` have to be decided again."
)
AVERAGING = Rule(
    "DSM407", "average-aggregated-gradients", "Averaging over accumulated batches belongs to the trial's source."
)
BATCH_SIZE = Rule("DSM408", "global-batch-size-missing", "The config gives no `global_batch_size`.")
IMAGE = Rule("DSM409", "image-without-deepspeed", "The container image may lack DeepSpeed (`--target determined`).")
NOT_NAMED = Rule("DSM410", "config-not-named", "A config runs a converted trial but was not among the files to write.")
UNREADABLE = Rule(
    "DSM411", "config-unreadable", "A file that seems to be the config of a converted trial cannot be read."
)
NO_TRIAL = Rule("DSM412", "config-names-no-trial", "A config names a trial class that is not there.")
SHARED = Rule("DSM413", "shared-through-anchor", "A part to edit is shared through an anchor, an alias or a merge key.")
NOT_EDITABLE = Rule("DSM414", "value-not-editable", "A value that has to change is not of the kind expected.")
OTHER_DS_CONFIG = Rule("DSM415", "other-ds-config", "The config names another DeepSpeed config already.")
NOT_FOLLOWED = Rule(
    "DSM416", "entrypoint-not-followed", "An entrypoint runs a converted trial through another command."
)

DS_CREATED = Rule("DSM501", "ds-config-key", "A key of the DeepSpeed config, and why it is there.")
DS_ADDED = Rule("DSM502", "ds-config-completed", "An existing ds_config.json gets a key that it lacks.")
DS_CONFLICT = Rule(
    "DSM503", "ds-config-conflict", "An existing ds_config.json says something else than the trial needs."
)
DS_REMOVED = Rule("DSM504", "ds-config-removed-key", "A key of ds_config.json that DeepSpeed 0.19 rejects.")
DS_UNREADABLE = Rule("DSM505", "ds-config-unreadable", "An existing ds_config.json cannot be read.")
DS_SHARED = Rule("DSM506", "ds-config-shared", "Two trials share one ds_config.json and need different ones.")

RULES: tuple[Rule, ...] = (
    DS_CONFIG,
    LAUNCHER,
    ACCUMULATION,
    LENGTHS,
    OPTIONS,
    PRECISION,
    AVERAGING,
    BATCH_SIZE,
    IMAGE,
    NOT_NAMED,
    UNREADABLE,
    NO_TRIAL,
    SHARED,
    NOT_EDITABLE,
    OTHER_DS_CONFIG,
    NOT_FOLLOWED,
    DS_CREATED,
    DS_ADDED,
    DS_CONFLICT,
    DS_REMOVED,
    DS_UNREADABLE,
    DS_SHARED,
)
