"""Pictures of posterior draws of vectors: intervals of the draws, measured values and truth, entry by entry."""

from __future__ import annotations

import numpy as np

from .pictures import ACCENT, INK, MUTED, new_figure, to_png

MOST = 64  # entries; longer vectors are drawn as bands instead of separate intervals


def intervals(
    draws: np.ndarray, measured: np.ndarray | None = None, truth: np.ndarray | None = None, rows: int = 8
) -> bytes:
    """Draw one panel per observation, in two columns.

    Each panel has its own scale, so that one observation with wide intervals does not flatten the others.

    Args:
        draws: `(k, n, *event)`.
        measured: `(n, *event)`. The measured entries of x, NaN elsewhere; None if A does not measure single entries.
        truth: `(n, *event)`, if it is known.
        rows: Largest number of observations.
    """
    k, n = draws.shape[:2]
    flat = draws.reshape(k, n, -1)
    shown, size = min(rows, n), flat.shape[-1]
    figure, axes = new_figure(9.6, 0.5 + 1.7 * -(-shown // 2), nrows=-(-shown // 2), ncols=min(2, shown), sharex=True)
    entries = np.arange(1, size + 1)
    seen = None if measured is None else measured.reshape(n, -1)
    for i, axis in enumerate(axes.flat):
        if i >= shown:
            axis.set_axis_off()
            continue
        low, high = np.percentile(flat[:, i], [5, 95], axis=0)
        mean = flat[:, i].mean(0)
        if size > MOST:
            axis.fill_between(entries, low, high, color=ACCENT, alpha=0.3, linewidth=0, label="90 % of the draws")
            axis.plot(entries, mean, color=ACCENT, linewidth=1.2, label="mean of the draws")
        else:
            axis.vlines(entries, low, high, color=ACCENT, alpha=0.5, linewidth=5, label="90 % of the draws")
            axis.plot(entries, mean, "_", color=ACCENT, markersize=9, markeredgewidth=2, label="mean of the draws")
        if truth is not None:
            axis.plot(entries, truth.reshape(n, -1)[i], "x", color=MUTED, markersize=6, label="truth")
        if seen is not None:
            axis.plot(entries, seen[i], "o", color=INK, markersize=4, label="measured")
        axis.set_title(f"observation {i + 1}", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        if i >= shown - 2:
            axis.set_xlabel("entry of x", fontsize=8)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=9, frameon=False)
    return to_png(figure)
