"""``python -m trial_runtime.verify``: the earlier name of ``python -m ds_verify``."""

from ds_verify.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
