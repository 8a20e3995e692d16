"""Lookup by name: definitions, imports, registries and factories."""
