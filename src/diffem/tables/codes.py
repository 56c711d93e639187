"""Categories as points: every category is a code word, and a draw is the category whose code word is nearest.

Two categories are −1 and 1. Up to `ONE_HOT` categories have a coordinate each (±1, centred); more are numbered in
binary, one coordinate per bit (Chen et al. 2022, "Analog Bits"). Whatever a draw is, it decodes to a category that was
observed.
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
        """shares: `(categories,)`, how often each of at least two categories was observed."""
        count = len(shares)
        if count == 2:
            words = np.array([[-1.0], [1.0]])
        elif count <= ONE_HOT:
            words = 2 * np.eye(count)
        else:
            bits = np.arange((count - 1).bit_length())
            words = 2.0 * (np.arange(count)[:, None] >> bits & 1) - 1
        self.words = words - shares @ words / shares.sum()

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Code words `(..., coordinates)` of category numbers `(...)`; NaN where a number is negative."""
        words = self.words[np.maximum(codes, 0)]
        return np.where((codes >= 0)[..., None], words, np.nan)

    def decode(self, x: np.ndarray) -> np.ndarray:
        """The numbers of the nearest code words, `(...)`, of points `(..., coordinates)`."""
        # ‖x − w‖² = ‖x‖² − 2 x·w + ‖w‖², and ‖x‖² is the same for all
        return np.argmin((self.words**2).sum(1) - 2 * x @ self.words.T, -1)
