"""Decisions about one trial, taken from its facts before any edit: engines, ZeRO stage, location, options."""
