"""Which launcher a script says it was started by."""

from __future__ import annotations

import os


class _DistributedBackend:
    """What Determined's launchers, and scripts of its guide, put into the environment.

    Nothing here depends on it: ranks meet through torch.distributed under every launcher.
    """

    HOROVOD = "USE_HOROVOD"
    DEEPSPEED = "USE_DEEPSPEED"
    TORCH = "USE_TORCH_DISTRIBUTED"

    def use_horovod(self) -> bool:
        """Whether ``USE_HOROVOD`` is set."""
        return bool(os.environ.get(self.HOROVOD))

    def use_torch(self) -> bool:
        """Whether ``USE_TORCH_DISTRIBUTED`` is set."""
        return bool(os.environ.get(self.TORCH))

    def use_deepspeed(self) -> bool:
        """Whether ``USE_DEEPSPEED`` is set."""
        return bool(os.environ.get(self.DEEPSPEED))
