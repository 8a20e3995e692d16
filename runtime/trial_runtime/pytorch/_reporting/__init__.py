"""Metrics on their way out: reduced over ranks, written to sinks, shown on a progress bar."""
