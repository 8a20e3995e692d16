"""Reporting of metrics: reduced over ranks, written to sinks, shown on a progress bar."""
