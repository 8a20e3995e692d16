"""Patches of DeepSpeed's faults."""
