"""Facts about DeepSpeed that the codemod and the runtime share. Needs neither.

Bytes a parameter are those of weights, gradients and the optimizer's state, as counted in engines of DeepSpeed 0.19.8
on 1 and 2 ranks (``tests/runtime/test_state_bytes.py``). Activations, buffers of communication and fragmentation come
on top. A byte a parameter is a gigabyte for a billion parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

_HALF = ("bf16", "fp16")


@dataclass(frozen=True)
class Bytes:
    """Bytes a parameter on each of N ranks.

    Attributes:
        whole: on the device, whatever N is.
        shared: on the device, divided among the ranks.
        host: in host memory, divided among the ranks.
        alone: on the device, in addition when there is one rank.
    """

    whole: int
    shared: int = 0
    host: int = 0
    alone: int = 0

    def on_device(self, ranks: int) -> float:
        """Return the bytes on the device of each of ``ranks`` ranks."""
        return self.whole + self.shared / ranks + (self.alone if ranks == 1 else 0)

    def on_host(self, ranks: int) -> float:
        """Return the bytes in host memory for each of ``ranks`` ranks."""
        return self.host / ranks

    def shown(self, ranks: int) -> str:
        """Return the gigabytes for a billion parameters on each of ``ranks`` ranks."""
        device, host = self.on_device(ranks), self.on_host(ranks)
        return f"{device:.1f}" + (f" and {host:.1f} in host memory" if host else "")

    def __str__(self) -> str:
        parts = [str(self.whole)] if self.whole or not (self.shared or self.host) else []
        parts += [f"{self.shared}/N"] if self.shared else []
        host = f"{self.host}/N in host memory" if self.host else ""
        return " + ".join(parts) + (f" (and {host})" if parts and host else host)


def training_state(stage: int, precision: str, offload: str, states: int) -> Bytes:
    """Return the bytes a parameter that each rank holds when most of them are alive.

    That is at the end of backward or in the optimizer's step, whichever holds more.

    Args:
        stage: the ZeRO stage.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``autocast``, which keeps float32 weights.
        offload: ``none``, ``optimizer`` or ``parameters``.
        states: float32 values that the optimizer keeps for each parameter (2 for Adam).
    """
    is_half = precision in _HALF
    weights = gradients = 2 if is_half else 4
    if stage == 0:  # in half precision the optimizer steps float32 copies, with float32 gradients
        return Bytes(weights + gradients + 4 * states + (8 if is_half else 0))
    masters = master_gradients = 4  # each rank steps a float32 copy of its share, in full precision too
    stepped = masters + master_gradients + 4 * states
    if offload != "none":  # the host keeps a second copy of each share's weights or, at stage 3, of its gradients
        host = stepped + (gradients if stage == 3 else weights)
        if stage == 1:
            return Bytes(weights + gradients, host=host)
        if stage == 2:
            return Bytes(weights, host=host)
        return Bytes(0, weights, host) if offload == "optimizer" else Bytes(0, host=host + weights)
    if stage == 1:  # gradients are whole until they are reduced; the float32 ones of the share are made then
        return Bytes(weights + gradients, masters + 4 * states, alone=master_gradients - gradients)
    if stage == 2:
        return Bytes(weights, stepped)
    return Bytes(0, weights + gradients + stepped)


# Optimizers that keep one float32 value for each parameter; SGD does with momentum, without it none.
_ONE_STATE = frozenset({"lion", "adagrad", "rmsprop", "asgd"})


def optimizer_states(name: str, momentum: bool = False) -> int:
    """Return the float32 values that an optimizer keeps for each parameter: 2, as Adam, for one that is not known.

    Args:
        name: the name of its class, or of its type in a DeepSpeed config.
        momentum: whether it has momentum; read for SGD.
    """
    if name.lower() == "sgd":
        return int(momentum)
    return 1 if name.lower() in _ONE_STATE else 2


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
