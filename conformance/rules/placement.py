"""Operators whose tensor arguments, all but the input, stay on the CPU on every device."""

OPERATORS = {"tensor_split": "PyTorch reads the indices or sections on the host and refuses device tensors"}
