"""``python -m trial_runtime.doctor``."""

import sys

from trial_runtime.doctor.cli import main

if __name__ == "__main__":
    sys.exit(main())
