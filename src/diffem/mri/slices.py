"""Pictures of reconstructed slices, one row per acceleration."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..report.pictures import new_figure, to_png
from .reconstruction import Reconstruction, intensity


def _image(x: Tensor) -> np.ndarray:
    return intensity(x)[0].numpy()


def slice_by_measurement(parts: list[Reconstruction], i: int, title: str = "zero-filled") -> bytes:
    """Draw slice i: zero-filled image, two draws, mean, standard deviation and, if the truth is known, error and truth.

    Standard deviation and error have the same scale, so that they can be compared.

    Args:
        parts: The reconstructions, one row each.
        i: Index of the slice.
        title: Heading of the first column.
    """
    known = parts[0].truth is not None
    titles = [title, "draw 1", "draw 2", f"mean of {len(parts[0].draws)}", "std"]
    titles += ["|mean − truth|", "truth"] if known else []
    height, width = parts[0].draws.shape[-2:]
    figure, axes = new_figure(
        1.6 * len(titles) + 0.3, 1.6 * height / width * len(parts) + 0.3, nrows=len(parts), ncols=len(titles)
    )
    spreads = [spread_of(p)[i].numpy() for p in parts]
    top = max(1e-6, float(np.percentile(np.stack(spreads), 99.5)))
    for r, (row, part, spread) in enumerate(zip(axes, parts, spreads, strict=True)):
        mean = _image(part.mean[i])
        panels = [
            _image(part.zero_filled[i]),
            _image(part.draws[0, i]),
            _image(part.draws[1, i]),
            mean,
        ]
        panels.append(spread)
        if part.truth is not None:
            truth = _image(part.truth[i])
            panels += [np.abs(mean - truth), truth]
        for axis, panel, name in zip(row, panels, titles, strict=True):
            warm = name in ("std", "|mean − truth|")
            axis.imshow(
                panel, cmap="magma" if warm else "gray", vmin=0, vmax=top if warm else 1, interpolation="nearest"
            )
            axis.set(xticks=[], yticks=[])
            for spine in axis.spines.values():
                spine.set_visible(False)
            if r == 0:
                axis.set_title(name, fontsize=9)
        row[0].set_ylabel(part.name, fontsize=9)
    return to_png(figure)


def spread_of(part: Reconstruction) -> Tensor:
    """Standard deviation of the intensities of the draws, `(n, H, W)`."""
    return intensity(part.draws).std(0)[:, 0]
