"""Operations that return the same on all ranks for the same arguments, and those that change tensors alike there."""

from __future__ import annotations

# All ranks read the same files, on the same machines.
PURE = frozenset({
    "abs", "len", "int", "float", "bool", "min", "max", "round", "str", "range", "trange", "tqdm.trange", "torch.load",
    "os.path.join", "torch.cuda.is_available", "torch.accelerator.is_available", "torch.backends.mps.is_available",
    "dist.get_world_size", "torch.distributed.get_world_size", "get_world_size",
})  # fmt: skip
LOOKS = frozenset({"os.path.isfile", "os.path.exists", "os.path.isdir"})
# Methods and functions of torch and NumPy.
PURE_ON_TENSORS = frozenset({
    "abs", "add", "all", "any", "bmm", "clamp", "clone", "contiguous", "cpu", "cuda", "detach", "div", "dot",
    "double", "eq", "exp", "expand_as", "eye", "flatten", "float", "from_numpy", "ge", "gt", "half", "isfinite",
    "isinf", "isnan", "item", "le", "log", "logical_and", "logical_not", "logical_or", "lt", "matmul", "max",
    "mean", "min", "mm", "mul", "ne", "neg", "norm", "numel", "numpy", "permute", "pow", "relu", "reshape",
    "sigmoid", "sign", "size", "sqrt", "square", "squeeze", "stack", "sub", "sum", "t", "tanh", "to", "transpose",
    "unsqueeze", "view", "view_as", "where", "zeros_like", "ones_like",
})  # fmt: skip
# Methods of texts.
PURE_ON_TEXTS = frozenset({
    "endswith", "format", "join", "lower", "replace", "rstrip", "split", "startswith", "strip", "upper",
})  # fmt: skip
# Methods that change a tensor.
CHANGES = frozenset({
    *(f"{name}_" for name in PURE_ON_TENSORS),
    *("addcdiv_", "addcmul_", "clip_", "copy_", "fill_", "fill_diagonal_", "lerp_", "masked_fill_", "nan_to_num_"),
    "zero_",
})  # fmt: skip
ADDS = frozenset({"append", "extend", "insert", "setdefault", "update"})  # to a container
PARTS_OF_TENSORS = frozenset({"data", "device", "dtype", "ndim", "shape", "T"})
PLACES = frozenset({"device", "dtype"})  # arguments that say where numbers are, or how many digits they have
