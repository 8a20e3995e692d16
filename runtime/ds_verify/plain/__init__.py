"""``ds-verify --plain``: train a script and its conversion side by side; neither is edited.

From the command line to the report, besides the parts that verifications of trials have too::

    cli                  the options
    sides                the original and the converted code
    runs                 the runs: both sides and a control, on each number of ranks
    worker               one rank: runs the script under an observer
    observer             losses, gradients, learning rates and weights, by hooks of torch and DeepSpeed
    weights              parameters and buffers under names that do not depend on who wraps them
    data_order           one order of the data for samplers of any kind
    training_loaders     which loaders of a script give the batches that it trains on
    reference            what a script without DistributedDataParallel is on several ranks
    file_isolation       files of the user's that a script would overwrite
"""
