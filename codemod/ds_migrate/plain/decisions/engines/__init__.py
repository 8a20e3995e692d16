"""The engines of a program, with their ZeRO stages and configs."""
