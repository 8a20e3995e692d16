"""Stand-in for ``determined`` in child processes of a rank.

A data loader worker that is spawned rather than forked is a new interpreter: it inherits ``sys.path`` but no import
hook. The folder above is on that path, so the first ``import determined`` ends here and puts the hook in place.
"""

import importlib
import sys

from trial_runtime.train import determined_alias

del sys.modules[__name__]
determined_alias.install()
importlib.import_module(__name__)
