"""The names of torch, and of libraries beside it, that matter in a training loop."""

from __future__ import annotations

import re

from ds_migrate.plain.dataflow.values import Kind

DISTRIBUTED = frozenset(
    {"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"}
)
INIT = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")
BACKEND = ("torch.distributed.get_backend", "torch.distributed.distributed_c10d.get_backend")
DESTROY = (
    "torch.distributed.destroy_process_group", "torch.distributed.distributed_c10d.destroy_process_group",
)  # fmt: skip
WRAPPERS = DISTRIBUTED | {
    "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel",
}
# Calls that return the module that they are given.
SAME_MODULE = frozenset(
    {"torch.compile", "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "torch.nn.utils.convert_sync_batchnorm"}
)
# Methods of a module that return the module.
FLUENT = frozenset(
    {"to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type", "train", "eval", "requires_grad_", "apply"}
)
CLIP_NORM = frozenset(
    {"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm", "torch.nn.utils.clip_grad.clip_grad_norm_"}
)
# Functions of libraries that make an optimizer of a model or its parameters, in lower case.
OPTIMIZER_FACTORIES = frozenset(
    {"create_optimizer", "create_optimizer_v2", "get_optimizer", "build_optimizer", "make_optimizer"}
)
COPY = frozenset({"copy.deepcopy"})
CAST = "typing.cast"  # returns its second argument
NAMED_TUPLE = "collections.namedtuple"
NAMESPACES = frozenset({"types.SimpleNamespace", "argparse.Namespace"})
# Dicts whose items are attributes, too.
ATTRIBUTE_DICTS = frozenset(
    {"munch.Munch", "easydict.EasyDict", "addict.Dict", "box.Box", "attrdict.AttrDict", "ml_collections.ConfigDict",
     "dotmap.DotMap"}
)  # fmt: skip
SCALERS = frozenset(
    {"torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.GradScaler"}
    | {"torch.cuda.amp.grad_scaler.GradScaler", "torch.amp.grad_scaler.GradScaler"}
)
NO_GRAD = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.set_grad_enabled"})

# Packages whose optimizers step parameters that are none of torch's.
_NOT_TORCH = frozenset({
    "flax", "jax", "jittor", "keras", "megengine", "mindspore", "minitorch", "mlx", "mxnet", "oneflow", "optax",
    "paddle", "tensorflow", "tinygrad",
})  # fmt: skip

_CLIPS = re.compile(r"\w*clip_?grad\w*|(get_)?(total_)?grad(ient)?_norm_?", re.IGNORECASE)
# Classes of torch's DataLoader, of PyTorch Geometric.
_LOADERS = frozenset(
    f"torch_geometric.{package}.{name}"
    for package in ("loader", "data")
    for name in ("ClusterLoader", "DenseDataLoader", "HGTLoader", "LinkNeighborLoader", "NeighborLoader",
                 "NeighborSampler", "RandomNodeLoader")
)  # fmt: skip
_OPTIMIZER = re.compile(
    r"(Adam\w*|\w*SGD\w*|RMSprop\w*|Ada\w+|[RN]Adam|ASGD|Rprop|LBFGS|LARS|LARC|Lamb|LAMB|Lion|Ranger\w*|SAM|ESAM|"
    r"Lookahead|\w*[Oo]ptimizer\w*|\?)"
)
_SCHEDULE = re.compile(r"(\w*LR|\w*Schedule[r]?\w*|CosineAnnealing\w*|ReduceLROnPlateau|get_\w*schedule\w*)")


def clips_gradients(name: str) -> bool:
    """Return whether an external function clips the gradients of parameters that it is given, or returns their norm."""
    return _CLIPS.fullmatch(name.rpartition(".")[2]) is not None


def is_optimizer_name(name: str) -> bool:
    """Return whether an external class that is given a module's parameters is an optimizer, whatever its package."""
    last = name.rpartition(".")[2]
    return last[:1].isupper() and _OPTIMIZER.match(last) is not None and not is_of_other_framework(name)


def is_of_other_framework(name: str) -> bool:
    """Return whether an external name is one of a framework that torch has no part in."""
    return name.partition(".")[0] in _NOT_TORCH


def kind_made_by(name: str) -> Kind:
    """Return the kind of value that a call of an external name makes."""
    last = name.rpartition(".")[2]
    if is_of_other_framework(name):
        return Kind.OBJECT
    if ".swa_utils." in name and last != "SWALR":
        return Kind.OBJECT  # an average of weights
    if name in SCALERS or last == "GradScaler":
        return Kind.SCALER
    if ".lr_scheduler." in name or _SCHEDULE.fullmatch(last):
        return Kind.SCHEDULE
    if name.startswith("torch.optim.") and name.count(".") <= 3 and (last[:1].isupper() or last == "?"):
        return Kind.OPTIMIZER
    if "optim" in name.lower().rpartition(".")[0] and (_OPTIMIZER.fullmatch(last) or last[:1].isupper()):
        return Kind.OPTIMIZER
    if last.lower() in OPTIMIZER_FACTORIES or last in ("AdamW", "FusedAdam", "FusedSGD"):
        return Kind.OPTIMIZER
    if last == "DataLoader" or name in _LOADERS:
        return Kind.LOADER
    return Kind.OBJECT
