"""Missing values in tables: `DiffusionImputer` is an estimator of scikit-learn's kind (`pip install diffem[tables]`)."""

from .imputer import DiffusionImputer

__all__ = ["DiffusionImputer"]
