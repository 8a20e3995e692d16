"""``ds-verify``: train an original trial and its conversion side by side, and say whether they are the same.

The data's way::

    sources     the original and the converted code, each in a working copy of its own
    choose      which trial, from which experiment config, with which hyperparameters
    plan        what is trained: side by side, ranks, stages; saved and resumed in the middle
    processes   one process a rank, watched
    rank        in each of them: runs the entrypoint under an observer of ``Trainer.fit()``
    record      what one run gave: metrics, learning rates, weights, buffers, by step
    limits      how far two runs of the same training part by rounding alone
    compare     where two records part by more
    verdict     same or different, the first step, and the finding that may explain it
    console, page   the table on the terminal and the HTML report
"""
