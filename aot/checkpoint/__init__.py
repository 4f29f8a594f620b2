"""Checkpoints that people have, written once in the layout that kernels read: `aot pack`."""
