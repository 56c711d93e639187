"""Atomic writes, checked reads of arrays, tensors and YAML, and memory limits."""
