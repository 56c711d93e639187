"""Imputers for tables and time series with the interface of scikit-learn (`pip install 'diffem[tables]'`).

The modules, in the order in which a table passes through them:

    frames, files         tables in and out: checks of data frames, CSV and Parquet
    columns               the kind of a column: numbers, integers, Booleans, categories
    encoding              the table as a matrix of about standard normal numbers (numbers: quantiles, categories: codes)
    windows               a time series as such a matrix, one row per window
    gaps                  which rows are held out of a run, and which of their values are hidden
    recipe, engine        the runs of EM, and the model that they learn
    held_out, calibration hidden values decide which laps impute, and how wide their draws are
    drawing, predictions  draws of whole rows, and predictions of single gaps
    base, imputer, series the two estimators
    assessment, scores, report, command     `diffem impute`
"""

from .imputer import DiffusionImputer
from .series import SeriesImputer

__all__ = ["DiffusionImputer", "SeriesImputer"]
