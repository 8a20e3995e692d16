"""Codes of whole files and whole trials: what could not be read, and what is recognised and left alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileCode:
    code: str
    name: str
    doc: str


def _doc(summary: str, what: str, why: str, then: str) -> str:
    return f"""{summary}

What it does
    {what}

Why
    {why}

What to do
    {then}

Numbers
    Unchanged: the file is left as it is.
"""


FILE_CODES = (
    FileCode(
        "DSM001",
        "unreadable-source",
        _doc(
            "The file cannot be read as Python.",
            "Reports a file that does not decode or does not parse, and goes on with the others.",
            "A file that Python cannot run cannot be migrated either.",
            "Mend the file, or leave it out of the run.",
        ),
    ),
    FileCode(
        "DSM002",
        "not-lossless",
        _doc(
            "The file cannot be printed back byte for byte.",
            "Reports a file whose concrete syntax tree prints differently from its source.",
            "Untouched text must stay as it is; here that could not be promised.",
            "Look for unusual white space (``except OSError :``) or odd line endings at the end of the file.",
        ),
    ),
    FileCode(
        "DSM003",
        "failed-check",
        _doc(
            "The converted file failed its own checks.",
            "Throws a conversion away whose output does not compile, loses a comment, or would change when run again.",
            "Whatever the cause, such output must not reach a disk.",
            "Please report it with the file.",
        ),
    ),
    FileCode(
        "DSM004",
        "not-written",
        _doc(
            "A file could not be written.",
            "Reports a file that changed since it was read, is read-only, or that the disk refused, and every "
            "file that "
            "belongs to the same conversion.",
            "A trial is converted whole or not at all, and nobody's edits are written over.",
            "Mend what the message says, then run again.",
        ),
    ),
    FileCode(
        "DSM005",
        "leftover-marker",
        _doc(
            "A marker of an earlier conversion is still in the code.",
            "Reports each ``# TODO(ds-migrate DSM...)`` comment; --check fails while there is one.",
            "A marker stands where a person has to look before the converted code is right.",
            "Do what the marker says, then delete the comment.",
        ),
    ),
    FileCode(
        "DSM006",
        "control-comment",
        _doc(
            "A ``# ds-migrate:`` comment does nothing, or not what it seems to.",
            "Reports a skip that stands on no trial, an ignore that ignores nothing, codes and words that nobody "
            "knows, and an ignore of a finding that cannot be ignored.",
            "A comment that is thought to do something and does not is how surprises begin. Only *review* findings "
            "can be ignored: a trial with a *blocked* one would be converted wrong.",
            "Delete the comment, mend its code, or skip the whole trial with ``# ds-migrate: skip`` on its class.",
        ),
    ),
    FileCode(
        "DSM009",
        "pytorch-trial",
        _doc(
            "The trial is a PyTorchTrial that can be converted.",
            "Names the trial in formats for other tools, with the whole conversion as its fix.",
            "A review or a pipeline shows where work waits, and some apply it.",
            "Run ``ds-migrate --write`` on it.",
        ),
    ),
    FileCode(
        "DSM010",
        "already-deepspeed",
        _doc(
            "The trial is a DeepSpeedTrial already.",
            "Recognises converted code and trials written for DeepSpeed.",
            "A second run must change nothing.",
            "Nothing.",
        ),
    ),
    FileCode(
        "DSM011",
        "old-api",
        _doc(
            "The trial is written for the API before 0.13 (build_model, optimizer).",
            "Recognises trials that return their model and optimizer from methods instead of wrapping them.",
            "That API ended years before DeepSpeedTrial began; its loop worked differently.",
            "Move the bodies of build_model(), optimizer() and create_lr_scheduler() into __init__ with "
            "context.wrap_model, "
            "context.wrap_optimizer and context.wrap_lr_scheduler, then run again.",
        ),
    ),
    FileCode(
        "DSM012",
        "lightning-adapter",
        _doc(
            "The trial is a LightningAdapter.",
            "Recognises Lightning modules that ran on Determined through its adapter.",
            "Lightning drives DeepSpeed itself.",
            "Drop the adapter and train the LightningModule with lightning.Trainer(strategy='deepspeed').",
        ),
    ),
    FileCode(
        "DSM013",
        "foreign-base",
        _doc(
            "The trial's base class is not in this project.",
            "Recognises trials built on a base class that some library provides.",
            "What the base class wraps and steps cannot be seen, so it cannot be converted.",
            "Copy the base class into the project (or convert it where it is) and run again on both.",
        ),
    ),
    FileCode(
        "DSM014",
        "file-not-named",
        _doc(
            "The conversion needs a file that was not named.",
            "Blocks a trial whose base class, helper or launch script lies in a file that this run may not write.",
            "A trial is converted whole or not at all.",
            "Name that file too, or the folder that holds both.",
        ),
    ),
    FileCode(
        "DSM015",
        "moves-with-blocked",
        _doc(
            "The trial shares files with one that is blocked.",
            "Blocks a trial whose files, or base class, a blocked or skipped trial needs as they are, and one whose "
            "name its file gives to two classes.",
            "Converting the shared file would break the other trial.",
            "Unblock the other trial, part the two, or accept both with ``# ds-migrate: skip``.",
        ),
    ),
    FileCode(
        "DSM016",
        "cluster-client",
        _doc(
            "The script talks to a Determined cluster.",
            "Points at files that import a trial only to submit it through Determined's client; they stay as they are.",
            "There is no cluster to submit to, and nothing to convert.",
            "Run ``ds-train CONFIG.yaml`` instead, and delete the script.",
        ),
    ),
    FileCode(
        "DSM017",
        "still-determined",
        _doc(
            "The file imports determined and belongs to no trial.",
            "Points at files beside converted trials that still need the determined package, and at cells of notebooks "
            "that write a trial into a file (``%%writefile``).",
            "They have no part in training, so no trial needs them converted; they fail without the package.",
            "Delete what only a cluster needed; load checkpoints of converted trials through trial_runtime.",
        ),
    ),
)
