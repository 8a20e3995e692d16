"""``ds-verify``: train an original trial and its conversion side by side, and report whether they are the same.

From the command line to the report::

    cli               the options
    working_copies    the original and the converted code, each in a separate working copy
    select_trial      the trial, its experiment config and its hyperparameters
    runs              the runs: both sides and a control, on each number of ranks, at each stage
    job               one run: its ranks are started, watched and ended together
    launchers         what starts ranks: forks of one process that has imported torch (fork_server), or fresh processes
    worker            one rank: runs the entrypoint under an observer of ``Trainer.fit()`` (recorder)
    record            what a run gave: metrics, learning rates, weights, buffers, by step
    tolerance         how far two runs of the same training differ by rounding alone
    compare           where two records differ by more
    verdict           same or different, the first step, and the finding that may explain it
    report            everything found, for the terminal (console) and the HTML page (html, curves)
"""
