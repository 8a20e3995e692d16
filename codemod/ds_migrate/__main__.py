"""``python -m ds_migrate``, and the command ``ds-migrate``."""

from __future__ import annotations

import sys
from typing import NoReturn

from ds_migrate.cli import main


def run() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
