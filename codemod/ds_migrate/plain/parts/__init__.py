"""The parts of a program: files that share optimizers, which are converted together, or stay together."""
