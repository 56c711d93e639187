"""Tests of `diffem.tables` need its extra, scikit-learn and pandas."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("sklearn") and find_spec("pandas") else ["test_*.py"]
