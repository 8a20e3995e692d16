"""Checkpoints of DeepSpeed engines: loaded on another number of ranks, exported, warm starts."""
