"""A stand-in for torchvision, which scripts of packages import: data that is drawn here, and transforms of tensors."""
