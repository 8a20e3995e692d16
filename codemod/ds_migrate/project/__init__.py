"""A project read once: its modules, its imports, its trial classes, and the comments that control a run."""
