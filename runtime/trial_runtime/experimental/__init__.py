"""The part of ``determined.experimental`` that needs no cluster: :mod:`trial_runtime.experimental.client`."""
