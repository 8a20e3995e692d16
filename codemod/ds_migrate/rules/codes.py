"""Every code that a report can hold: its name and one line about it. The page of a code is ``catalog/<code>.md``."""

from __future__ import annotations

import re
from enum import Enum

from ds_migrate.suggestions import did_you_mean


def unknown_code(word: str) -> str:
    """Return the sentence about a word that is no code and no name; a whole code is not like any other."""
    names = [*(code.value for code in Code), *(code.slug for code in Code)]
    meant = "" if re.fullmatch(r"DSM\d{3}", word, re.IGNORECASE) else did_you_mean(word, names)
    return f"no rule is called {word!r}{meant}"


class Code(str, Enum):
    """A kind of finding. The value is what reports show; a member is a ``str`` and compares as one."""

    _value_: str
    summary: str

    def __new__(cls, code: str, summary: str) -> Code:
        member = str.__new__(cls, code)
        member._value_ = code
        member.summary = summary
        return member

    @property
    def slug(self) -> str:
        """Return the name that ``--explain`` accepts, such as ``gradient-clipping``."""
        return self.name.lower().replace("_", "-")

    @property
    def group(self) -> str:
        """Return the digit of the hundreds, which shows what the code is about."""
        return self._value_[3]

    def __str__(self) -> str:
        return self._value_

    def __format__(self, specification: str) -> str:  # Enum's own differs from Python version to version
        return format(self._value_, specification)

    # files and trials
    UNREADABLE_SOURCE = "DSM001", "The file cannot be read as Python."
    NOT_LOSSLESS = "DSM002", "The file cannot be printed back byte for byte."
    FAILED_CHECK = "DSM003", "The converted file failed its own checks."
    NOT_WRITTEN = "DSM004", "A file could not be written."
    LEFTOVER_MARKER = "DSM005", "A marker of an earlier conversion is still in the code."
    CONTROL_COMMENT = "DSM006", "A `# ds-migrate:` comment has no effect, or another one than it seems to have."
    PYTORCH_TRIAL = "DSM009", "The trial is a PyTorchTrial that can be converted."
    ALREADY_DEEPSPEED = "DSM010", "The trial is a DeepSpeedTrial already."
    OLD_API = "DSM011", "A trial for the API before 0.13 (`build_model`, `optimizer`) becomes one for today's."
    LIGHTNING_ADAPTER = "DSM012", "The trial is a LightningAdapter."
    FOREIGN_BASE = "DSM013", "The trial's base class is not in this project."
    FILE_NOT_NAMED = "DSM014", "The conversion needs a file that was not named."
    MOVES_WITH_BLOCKED = "DSM015", "The trial shares files with one that is blocked."
    CLUSTER_CLIENT = "DSM016", "The script talks to Determined's client."
    STILL_DETERMINED = "DSM017", "The file imports determined and belongs to no trial."
    TENSORFLOW_TRIAL = "DSM018", "The trial is one of Keras or of TensorFlow's estimators."
    TOO_LARGE = "DSM019", "The file is larger than what is converted."

    # imports
    IMPORTS = "DSM101", "Imports and names of `determined` become those of the target."

    # __init__: models, optimizers, schedules, engines
    WRAP_MODEL = "DSM201", "`wrap_model` gives the module itself; the engine comes once its optimizer exists."
    WRAP_OPTIMIZER = "DSM202", "`wrap_optimizer` gives the optimizer itself, which its engine then takes."
    WRAP_LR_SCHEDULER = (
        "DSM203",
        "`wrap_lr_scheduler` stays: the runtime steps and saves the schedule as PyTorchTrial did.",
    )
    GRADIENT_CLIPPING = (
        "DSM204",
        "`clip_grads` becomes `gradient_clipping`, or stays the trial's own function where a config cannot express it.",
    )
    ENGINE = "DSM205", "`deepspeed.initialize` makes the engine, `wrap_model_engine` registers it."

    # methods and scripts
    BACKWARD = "DSM301", "`context.backward(loss)` becomes `engine.backward(loss)` of the engine that steps next."
    STEP_OPTIMIZER = "DSM302", "`context.step_optimizer(optimizer)` becomes `engine.step()`."
    ZERO_GRAD = "DSM303", "`zero_grad()` around the step is removed where the engine clears gradients itself."
    ENGINE_AS_MODULE = (
        "DSM306",
        "Where a trial needs its model and not an engine (`state_dict`, type, items), it gets `engine.module`.",
    )
    BATCH = "DSM310", "`train_batch` and `evaluate_batch` take an iterator and fetch their batch from it."
    BATCH_SIZE = "DSM312", "Loaders ask for the micro-batch size."
    EXPERIMENTAL = "DSM320", "What `context.experimental` held moves to the context itself, or is removed as needless."
    LAUNCH = "DSM330", "Scripts: `pytorch.init` and `Trainer` become those of the DeepSpeed API."
    PRECISION = "DSM340", "Mixed precision becomes DeepSpeed's `torch_autocast`."
    CONTEXT_LISTS = "DSM345", "`context.models` and `context.optimizers` become lists of the trial's own names."
    CALLBACKS = "DSM350", "Callbacks keep working; the checkpoint hooks now run on every rank."
    TAKEN_NAMES = "DSM351", "`save` and `load` are hooks of DeepSpeedTrial: a trial's own get another name."
    WRAPPER_ATTRIBUTES = (
        "DSM352",
        "An attribute set on a wrapped model reaches the forward pass, which DistributedDataParallel kept it from.",
    )
    CONFIG_LENGTHS = "DSM353", "A trial that accumulates reads the lengths that its experiment config had."
    CONTEXT_API = (
        "DSM390",
        "A use of the context that DeepSpeedTrialContext lacks and no rule converts is blocked, by name.",
    )

    # experiment configs
    CONFIG_NAMES_DS_CONFIG = "DSM401", "The experiment config names the DeepSpeed config."
    LAUNCH_LAYER = "DSM402", "The entrypoint loses Determined's launch layer."
    GRADIENT_ACCUMULATION = "DSM403", "`aggregation_frequency` becomes `gradient_accumulation_steps`."
    LENGTHS_IN_BATCHES = "DSM404", "Lengths and periods in batches divide by the accumulation steps."
    OPTIMIZATIONS = "DSM405", "Settings of `optimizations` that DeepSpeed does not use are removed."
    REDUCED_PRECISION_OPTIONS = (
        "DSM406",
        "`mixed_precision` and `gradient_compression` have no equivalent: choose a DeepSpeed setting.",
    )
    AVERAGE_AGGREGATED_GRADIENTS = "DSM407", "Averaging over accumulated batches belongs to the trial's source."
    GLOBAL_BATCH_SIZE_MISSING = "DSM408", "The config gives no `global_batch_size`."
    IMAGE_WITHOUT_DEEPSPEED = "DSM409", "The container image may lack DeepSpeed (`--target determined`)."
    CONFIG_NOT_NAMED = "DSM410", "A config runs a converted trial but was not among the files to write."
    CONFIG_UNREADABLE = "DSM411", "A file that seems to be the config of a converted trial cannot be read."
    CONFIG_NAMES_NO_TRIAL = "DSM412", "A config names a trial class that does not exist."
    SHARED_THROUGH_ANCHOR = "DSM413", "A part to edit is shared through an anchor, an alias or a merge key."
    VALUE_NOT_EDITABLE = "DSM414", "A value that has to change is not of the kind expected."
    OTHER_DS_CONFIG = "DSM415", "The config names another DeepSpeed config already."
    ENTRYPOINT_NOT_FOLLOWED = "DSM416", "An entrypoint runs a converted trial through another command."

    # DeepSpeed configs and options
    DS_CONFIG_KEY = "DSM501", "A key of the DeepSpeed config, and why it is there."
    DS_CONFIG_COMPLETED = "DSM502", "An existing ds_config.json gets a key that it lacks."
    DS_CONFIG_CONFLICT = "DSM503", "An existing ds_config.json has other values than the trial needs."
    DS_CONFIG_REMOVED_KEY = "DSM504", "A key of ds_config.json that DeepSpeed 0.19 rejects."
    DS_CONFIG_UNREADABLE = "DSM505", "An existing ds_config.json cannot be read."
    DS_CONFIG_SHARED = "DSM506", "Two trials share one ds_config.json and need different ones."
    MEMORY = "DSM507", "What training state takes in memory, and what stages, offload and precision would save."
    DS_CONFIG_MISSING = "DSM508", "The DeepSpeed config of a converted trial is not there."
    PRECISION_OPTION = "DSM510", "`--precision` sets the number format that the engine computes in."
    OFFLOAD_OPTION = "DSM511", "`--offload` moves training state to host memory."
    OPTIMIZER_IN_CONFIG = (
        "DSM512",
        "`--optimizer-in-config` lets DeepSpeed make the optimizer, where it makes the same one.",
    )

    # plain training loops (--plain)
    PLAIN_LOOP = "DSM600", "The file has a plain training loop, which `--plain` converts."
    PLAIN_ENGINE = "DSM601", "`deepspeed.initialize` makes the engine of a plain loop, after its optimizer."
    PLAIN_BACKWARD = "DSM602", "`loss.backward()` becomes `engine.backward(loss)`."
    PLAIN_STEP = "DSM603", "`optimizer.step()` becomes `engine.step()`."
    PLAIN_ZERO_GRAD = "DSM604", "`zero_grad()` is removed where the engine clears gradients itself."
    PLAIN_FORWARD = "DSM605", "The forward pass that the loss is made of goes through the engine where that is exact."
    PLAIN_CLIPPING = "DSM606", "`clip_grad_norm_` becomes `gradient_clipping` with the same number."
    PLAIN_PRECISION = "DSM607", "The engine of a plain loop uses the program's own GradScaler."
    PLAIN_DISTRIBUTED = (
        "DSM610",
        "`deepspeed.init_distributed` starts the ranks, and replaces wrappers that average gradients.",
    )
    PLAIN_DEVICE = "DSM611", "A fixed device becomes that of the rank."
    PLAIN_SAMPLER = "DSM612", "Each rank trains on a share of the data where all ranks had all of it."
    PLAIN_ARGUMENTS = "DSM613", "Parsers take `--local_rank`, which the deepspeed launcher gives."
    PLAIN_RANK_ZERO = "DSM614", "Rank 0 alone prints and saves what every rank would print and save."
    PLAIN_CHECKPOINT = "DSM615", "Checkpoints of a converted loop are those of the original, both ways."
    PLAIN_AGREEMENT = "DSM616", "All ranks take the same decisions, where each sees its share of the data."
    PLAIN_UNTRACED = "DSM650", "An optimizer cannot be followed from where it is made to where it steps."
    PLAIN_CLOSURE = "DSM651", "A step that evaluates the loss itself has no counterpart in an engine."
    PLAIN_IN_MODULE = "DSM652", "A module keeps the optimizer, and cannot keep its engine."
    PLAIN_GRADIENTS = "DSM653", "Gradients are changed or sparse, which an engine does not support."
    PLAIN_FRAMEWORK = "DSM654", "Something else than the program drives the loop, or owns its parameters."
    PLAIN_ON_DEEPSPEED = "DSM655", "The program uses DeepSpeed already."
