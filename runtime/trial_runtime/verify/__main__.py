"""``python -m trial_runtime.verify``: ds-verify, where no command is installed (PYTHONPATH alone)."""

import sys

from trial_runtime.verify.cli import main

if __name__ == "__main__":
    sys.exit(main())
