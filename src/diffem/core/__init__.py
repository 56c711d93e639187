"""Foundations: errors, shapes, batched values, random numbers, progress, processes, compilation."""
