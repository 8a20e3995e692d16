"""``python -m ds_verify``: ds-verify, where no command is installed (PYTHONPATH alone)."""

import sys

from ds_verify.cli import main

if __name__ == "__main__":
    sys.exit(main())
