"""DeepSpeed engines: how they are made, guarded, grouped and driven by the loop."""
