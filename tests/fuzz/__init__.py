"""Seeded fuzzing of ds-migrate: ``python -m fuzz --minutes 60`` in ``tests/`` runs it for an hour."""
