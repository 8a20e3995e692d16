"""Output that only rank 0 makes: it prints, logs, plots, and writes files."""
