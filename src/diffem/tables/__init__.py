"""Missing values in tables and series: estimators of scikit-learn's kind (`pip install diffem[tables]`)."""

from .imputer import DiffusionImputer
from .series import SeriesImputer

__all__ = ["DiffusionImputer", "SeriesImputer"]
