"""Categories as points: every category has a code word, and a draw is decoded to the category of the nearest word.

Two categories are −1 and 1. Up to `ONE_HOT` categories have one coordinate each (±1, centred); more are numbered in
binary, one coordinate per bit (Chen et al. 2022, "Analog Bits"). Every draw decodes to an observed category.
"""

from __future__ import annotations

import numpy as np

ONE_HOT = 16


class Codebook:
    """The code words of one column.

    Attributes:
        words: `(categories, coordinates)`.
    """

    def __init__(self, shares: np.ndarray) -> None:
        """shares: `(categories,)`. The counts of at least two observed categories."""
        count = len(shares)
        if count == 2:
            words = np.array([[-1.0], [1.0]])
        elif count <= ONE_HOT:
            words = 2 * np.eye(count)
        else:
            bits = np.arange((count - 1).bit_length())
            words = 2.0 * (np.arange(count)[:, None] >> bits & 1) - 1
        self._offset = shares @ words / shares.sum()
        self.words = words - self._offset

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Code words `(..., coordinates)` of category numbers `(...)`; NaN where a number is negative."""
        words = self.words[np.maximum(codes, 0)]
        return np.where((codes >= 0)[..., None], words, np.nan)

    def probabilities(self, mean: np.ndarray) -> np.ndarray | None:
        """Probabilities `(..., categories)` from the expectation of the code word.

        Errors of the expectation may move them slightly outside [0, 1]. None for binary codes, whose expectation does
        not determine the probabilities.
        """
        if len(self.words) == 2:
            p = (mean + self._offset + 1) / 2
            return np.concatenate([1 - p, p], -1)
        return (mean + self._offset) / 2 if self.words.shape[1] == len(self.words) else None

    def decode(self, x: np.ndarray) -> np.ndarray:
        """The numbers of the nearest code words, `(...)`, of points `(..., coordinates)`."""
        # ‖x − w‖² = ‖x‖² − 2 x·w + ‖w‖², and ‖x‖² is the same for all
        return np.argmin((self.words**2).sum(1) - 2 * x @ self.words.T, -1)
