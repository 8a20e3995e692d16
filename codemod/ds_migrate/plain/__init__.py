"""The conversion of plain PyTorch training loops, which never had anything to do with Determined."""
