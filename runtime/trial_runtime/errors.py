"""Exceptions, by the names and base classes that code written for Determined expects."""

from __future__ import annotations

from typing import Any

from trial_runtime._redaction import masked


class InternalException(Exception):  # noqa: N818 - the names that code catches
    """A call that the runtime cannot answer in its present state."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class InvalidExperimentException(BaseException):
    """The trial or its configuration is wrong.

    A ``BaseException``, as in Determined: a trial's own ``except Exception`` must not hide it.
    """


class InvalidDataTypeException(InvalidExperimentException):
    """The trial returned an object of a type that the runtime cannot use."""

    def __init__(self, typ: type, message: str) -> None:
        super().__init__(f"Invalid data type ({typ.__name__}): {message}.")


class InvalidModelException(InvalidExperimentException):
    """The trial's model is wrong; raised by trials."""


class InvalidConfigurationException(InvalidExperimentException):
    """The experiment config holds something that the runtime cannot use."""

    def __init__(self, config: dict[str, Any], message: str) -> None:
        super().__init__(f"Invalid configuration ({masked(config)}): {message}.")


class InvalidDeepSpeedConfigException(InvalidExperimentException):
    """A DeepSpeed config cannot be used; the message lists everything that is wrong with it."""


class MetricNotReportedError(RuntimeError, ValueError):
    """``searcher.metric`` is not among the metrics that the trial's validation reports, or is no number."""


class InvalidCheckpointException(Exception):  # noqa: N818
    """A checkpoint is missing, incomplete or damaged; the message names the files."""

    def __init__(self, message: str = "Invalid checkpoint.") -> None:
        super().__init__(message)


class CheckpointNotFound(InvalidCheckpointException):
    """There is no checkpoint of this name."""


class CheckpointMismatchError(InvalidCheckpointException, AssertionError):
    """A checkpoint is of another trial; the message lists what differs. An AssertionError too, as in Determined."""


class UntrustedCheckpointError(InvalidCheckpointException):
    """A checkpoint holds what can run code, and neither did a run of this user write it, nor does the user trust it."""


class CheckpointStorageError(RuntimeError):
    """The remote storage of checkpoints could not be used; the message has the reason, without secrets."""


class TrainingDivergedError(RuntimeError):
    """Training was ended because its loss was NaN or infinite, as ``ds-train --stop-on-nan`` asks."""


class InvalidHP(Exception):  # noqa: N818 - the name that trials raise
    """Raised by a trial: this combination of hyperparameters cannot be trained."""

    def __init__(self, msg: str = "...") -> None:
        if not isinstance(msg, str):
            raise TypeError(f"InvalidHP takes a message (str), not {type(msg).__name__}.")
        super().__init__(msg)
        self.msg = msg


class NotProvidedError(NotImplementedError):
    """Something of Determined's library that needs a cluster was used; the message has what to do instead."""
