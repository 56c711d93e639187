"""What every other package builds on: errors, shapes, batched values, random numbers, progress, processes, compilation."""
