"""Turn Determined AI ``PyTorchTrial`` code into ``DeepSpeedTrial`` code."""

__version__ = "0.1.0"
