"""Exported priors in the layout of the Hugging Face hub; `em/exports.py` contains the implementation."""

from ..em.exports import describe_observations, export, export_run, is_export, load, read_card

__all__ = ["describe_observations", "export", "export_run", "is_export", "load", "read_card"]
