"""The record of how the draws of a shard were made, stored next to the shard and summed over the shards of a lap."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from ..posterior.evaluation import Statistics
from .screening import Screening

# Reasons for the first rejection of a draw: NaN, a residual that is too large, or only |x| beyond the bound; and the
# number of draws that were beyond the bound in every attempt.
CAUSES = ("not_finite", "misfit", "outside", "stuck")
OUTCOMES = ("rejected", "redrawn", "kept", "replaced")


@dataclass
class ShardReport:
    """Counts and sums over the new draws of a shard.

    Attributes:
        observations: The observations of the shard.
        draws: The new draws; the other draws are those of the previous lap.
        informed: The new draws whose observation has measured values. χ² is averaged over these.
        rejected: Draws that failed the screening at the first attempt.
        redrawn: Rejected draws that a later attempt replaced.
        kept: Rejected draws that were replaced by the draw of the previous lap.
        replaced: Rejected draws that were replaced by a posterior mean, because there was no previous lap.
        not_finite, misfit, outside, stuck: See `CAUSES`.
        chi2: The sum of χ² per measured value over the informed draws; on disk, the mean.
        guards: Solves that the curvature guard stopped or that diverged (`posterior.Statistics`).
        evaluations: Evaluations of the denoiser.
        vjps: Vector–Jacobian products.
    """

    observations: int
    draws: int = 0
    informed: int = 0
    rejected: int = 0
    redrawn: int = 0
    kept: int = 0
    replaced: int = 0
    not_finite: int = 0
    misfit: int = 0
    outside: int = 0
    stuck: int = 0
    chi2: float = 0.0
    guards: float = 0.0
    evaluations: float = 0.0
    vjps: float = 0.0

    def add_cost(self, statistics: Statistics) -> None:
        """Add the cost of a batch of draws."""
        self.guards += float(statistics.guards.sum())
        self.evaluations += float(statistics.evaluations.sum())
        self.vjps += float(statistics.vjps.sum())

    def add_rejections(self, tests: Screening, good: Tensor) -> None:
        """Add the first screening of some draws; good: which of them passed all tests, of the shape of the tests."""
        self.rejected += int((~good).sum())
        self.not_finite += int((~tests.finite).sum())
        self.misfit += int(tests.misfit.sum())
        self.outside += int(tests.only_outside.sum())

    def to_json(self) -> dict[str, float]:
        """Return the record as it is stored, with the mean of χ²."""
        return {**asdict(self), "chi2": self.chi2 / max(self.informed, 1)}


def summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of a lap: counts as fractions of the new draws, and the mean of χ².

    Args:
        reports: The stored records of all shards. Records of earlier versions have fewer entries.
    """
    count = sum(r["draws"] for r in reports)
    metrics: dict[str, Any] = {"draws": count}
    for name in (*OUTCOMES, *CAUSES):
        metrics[name] = sum(r.get(name, 0) for r in reports) / count
    informed = [r.get("informed", r["draws"]) for r in reports]
    if any(informed):
        metrics["chi2"] = sum(r["chi2"] * n for r, n in zip(reports, informed, strict=True)) / sum(informed)
    evaluations = sum(r["evaluations"] for r in reports)
    metrics["guards"] = sum(r["guards"] for r in reports) / evaluations if evaluations else 0.0
    return metrics
