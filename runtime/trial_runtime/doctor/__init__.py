"""``python -m trial_runtime.doctor``: what this machine has, and what a DeepSpeed config would need."""
