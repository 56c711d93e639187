"""Accelerated MRI: k-space, coils and slices of fastMRI and of image files, reconstructions, and their commands."""
