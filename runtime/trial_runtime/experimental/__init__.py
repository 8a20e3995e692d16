"""What is left of ``determined.experimental`` without a cluster: :mod:`trial_runtime.experimental.client`."""
