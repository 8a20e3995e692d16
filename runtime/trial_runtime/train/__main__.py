"""``python -m trial_runtime.train``: ds-train, for launchers that want a module."""

import sys

from trial_runtime.train.cli import main

sys.exit(main())
