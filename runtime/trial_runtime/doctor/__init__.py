"""``ds-train --check``: this machine, the patches of DeepSpeed in force, and what a DeepSpeed config needs."""
