"""``ds-train CONFIG.yaml [DIR]``: run a trial from its experiment config, without a cluster."""
