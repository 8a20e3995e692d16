"""``python -m ds_migrate``."""

from ds_migrate.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
