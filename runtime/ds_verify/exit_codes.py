"""The exit codes of ``ds-verify``, apart from those of signals."""

SAME, DIFFERENT, NOT_RUN = 0, 1, 2
