"""What training state takes in memory: weights, gradients and the optimizer's state, in bytes a parameter.

After DeepSpeed's own estimators (``estimate_zero2_model_states_mem_needs`` and its relatives). Activations, buffers of
communication and fragmentation come on top. A byte a parameter is a gigabyte for a billion parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

_HALF = ("bf16", "fp16")


@dataclass(frozen=True)
class Bytes:
    """Bytes a parameter on each rank: ``whole``, and ``shared`` among the ranks; ``host`` is shared too, but lies in
    host memory."""

    whole: int
    shared: int = 0
    host: int = 0

    def __str__(self) -> str:
        parts = [str(self.whole)] if self.whole or not self.shared else []
        parts += [f"{self.shared}/N"] if self.shared else []
        return " + ".join(parts) + (f" (and {self.host}/N in host memory)" if self.host else "")


def training_state(stage: int, precision: str, offload: str, states: int) -> Bytes:
    """What one rank holds.

    ``precision`` and ``offload`` as on the command line; ``states``: float32 values that the optimizer keeps for each
    parameter (2 for Adam).
    """
    number = 2 if precision in _HALF else 4  # autocast keeps float32 weights
    weights = gradients = number
    if stage == 0:  # with half precision, the optimizer steps float32 copies
        return Bytes(weights + gradients + 4 * states + (8 if precision in _HALF else 0))
    stepped = 4 + 4 + 4 * states  # each rank's share: float32 weights, their gradients, state
    whole, shared, host = weights, stepped, 0
    if stage == 1:
        whole += gradients
    else:
        shared += gradients
    if stage == 3:
        whole, shared = whole - weights, shared + weights
    if offload != "none":
        shared, host = shared - stepped, stepped
    if offload == "parameters":
        shared, host = shared - weights, host + weights
    return Bytes(whole, shared, host)


# Elementwise optimizers: stepping shards of them is stepping them (matched by exact type, as DeepSpeed does).
ELEMENTWISE_OPTIMIZERS = frozenset(
    f"torch.optim.{name}"
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")
)
# What DeepSpeed itself allows under ZeRO without zero_allow_untested_optimizer.
ZERO_TESTED_OPTIMIZERS = frozenset({"torch.optim.Adam", "torch.optim.AdamW", "torch.optim.Adagrad"})
# Keys of a config whose presence alone makes DeepSpeed 0.19.8 stop.
REMOVED_CONFIG_KEYS = frozenset({
    "amp", "compression_training", "curriculum_learning", "eigenvalue", "elasticity", "graph_harvesting", "nebula",
    "progressive_layer_drop", "quantize_training", "sparse_attention", "sparse_gradients",
})  # fmt: skip
