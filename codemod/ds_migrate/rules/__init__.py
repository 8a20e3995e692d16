"""The rules: one module a code that rewrites Python, all codes in ``codes.py``, a page for each in ``catalog/``."""
