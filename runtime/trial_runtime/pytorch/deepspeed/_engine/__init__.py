"""DeepSpeed engines: set up, checked, grouped and driven by the loop."""
