"""The paper's Figure 2, errors of approximations of V[x | x_t]: `python -m benchmarks.figure2 [--quick]`.

The prior is 256 equal isotropic Gaussians (standard deviation 1e-2) along a random curve in R³. The operator is one
random unit row, and σ_y = 1e-2. For every σ_t, p(x_t | y) and q(x_t | y) ∝ p(x_t) N(y | A x̂, σ_y² + A V Aᵀ) are
sampled by importance resampling of 2²⁰ prior samples, where V is 0, Σ_t, (Σ_x⁻¹ + Σ_t⁻¹)⁻¹ or the exact covariance.
There are three measures, all with entropic optimal transport of squared distances and regularisation 1e-3:

- `divergence`: the Sinkhorn divergence S(u, v), with u from p and v from q. The divergence S(u, u') of two sets from p
  is the `floor`.
- `paper`: OT(u, v) − OT(u, u'), as in the paper's code.
- `coupled`: S(u, v), with u and v resampled from the same prior samples so that they share as many points as possible.
  u still follows p and v still follows q, but the floor vanishes if p and q agree.

The full benchmark takes 16 minutes on an H200 with three workers.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffem import priors
from diffem.core.randomness import Stream
from diffem.datasets.manifold import curve
from diffem.files.reading import read_json
from diffem.files.writing import write_json
from diffem.metrics.transport import entropic_cost
from diffem.report.pictures import ACCENT, INK, MUTED

from .record import RESULTS, ROOT, record
from .workers import shared_out

SIGMAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIGMA_Y, STD, COMPONENTS, REGULARISATION = 1e-2, 1e-2, 256, 1e-3
COVARIANCES = {"0": "V = 0", "sigma_t": "Σ_t", "sigma_x": "(Σ_x⁻¹ + Σ_t⁻¹)⁻¹", "exact": "V[x | x_t]"}
CHUNK = 1 << 16


class Problem:
    """A curve, a row and a measured value, all functions of the seed."""

    def __init__(self, seed: int, device: str) -> None:
        self.seed = seed
        z = (torch.arange(COMPONENTS, dtype=torch.float64) + 0.5) / COMPONENTS
        ones = torch.ones(COMPONENTS, dtype=torch.float64)
        self.prior = priors.MixturePrior(ones, curve(z, seed, 3), STD * ones).to(device)
        row = self.normal("row", 1)[0]
        self.row = row / row.norm()
        self.y = self.row @ self.samples("truth", 1)[0] + SIGMA_Y * self.normal("noise", 1)[0, 0]

    def normal(self, purpose: str, n: int) -> Tensor:
        """`(n, 3)` standard normals."""
        index = torch.arange(n, device=self.prior.mean.device)
        return Stream(self.seed, f"figure2 {purpose}").normal(index, (3,), dtype=torch.float64)

    def uniform(self, purpose: str, n: int) -> Tensor:
        index = torch.arange(n, device=self.prior.mean.device)
        return Stream(self.seed, f"figure2 {purpose}").uniform(index, (), dtype=torch.float64)

    def samples(self, purpose: str, n: int) -> Tensor:
        """n samples of the prior, `(n, 3)`."""
        return self.prior.exact_sample(self.uniform(f"{purpose} component", n), self.normal(f"{purpose} place", n))

    def log_likelihoods(self, x_t: Tensor, sigma: float) -> dict[str, Tensor]:
        """log N(y | A x̂, σ_y² + A V Aᵀ) up to a constant, `(n,)`, for every V; `truth`: log p(y | x_t) itself."""
        log_r, shrink = self.prior.responsibilities(x_t, torch.tensor(sigma, dtype=x_t.dtype, device=x_t.device))
        r = log_r.exp()
        # along the row, component k of p(x | x_t) is N(m_k, v_k); y depends on nothing else
        m = torch.lerp(self.prior.means @ self.row, (x_t @ self.row).unsqueeze(1), shrink)
        x_hat = (r * m).sum(1)
        cov_x = self.prior.covariance().plus(sigma**2)
        solved = cov_x.solve(self.row[None])[0]
        variances: dict[str, Tensor | float] = {
            "0": 0.0,
            "sigma_t": sigma**2,
            "sigma_x": sigma**2 * float(self.row @ self.prior.covariance().matvec(solved[None])[0]),
            "exact": (r * (m - x_hat.unsqueeze(1)) ** 2).sum(1) + (r * shrink).sum(1) * sigma**2,
        }
        v = shrink * sigma**2 + SIGMA_Y**2
        out = {"truth": torch.logsumexp(log_r - 0.5 * ((self.y - m) ** 2 / v + v.log()), 1)}
        for name, variance in variances.items():
            spread = torch.as_tensor(SIGMA_Y**2 + variance, dtype=x_t.dtype, device=x_t.device)
            out[name] = -0.5 * ((self.y - x_hat) ** 2 / spread + spread.log())
        return out


def pick(w: Tensor, points: int, u: Tensor) -> Tensor:
    """Indices `(points,)` by systematic resampling with weights w (of any sum) from one uniform number."""
    ladder = w.cumsum(0)
    levels = (torch.arange(points, device=w.device, dtype=w.dtype) + u) / points
    return torch.searchsorted(ladder, levels * ladder[-1]).clamp(max=len(w) - 1)


def picked_together(w_p: Tensor, w_q: Tensor, points: int, u: Tensor) -> tuple[Tensor, Tensor]:
    """Indices from p and from q that agree as often as possible.

    They are first drawn from the common part min(p, q), then from the rest of each.
    """
    common = torch.minimum(w_p, w_q)
    shared = min(points, round(points * float(common.sum())))
    same, rest = pick(common, shared, u[0]), points - shared
    left = [pick(w - common, rest, u[k]) for k, w in ((1, w_p), (2, w_q))] if rest else [same[:0], same[:0]]
    return torch.cat([same, left[0]]), torch.cat([same, left[1]])


def measure(seed: int, sigma: float, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    problem, points = Problem(seed, arguments.device), arguments.points
    u = problem.uniform("resampling", 5)

    def prior_samples(which: int) -> Tensor:
        x = problem.samples(f"prior {which}", arguments.samples)
        return x + sigma * problem.normal(f"noise of x_t {which}", arguments.samples)

    def weights(x_t: Tensor) -> dict[str, Tensor]:
        parts = [problem.log_likelihoods(part, sigma) for part in x_t.split(CHUNK)]
        return {name: torch.softmax(torch.cat([part[name] for part in parts]), 0) for name in parts[0]}

    def cost(a: Tensor, b: Tensor | None) -> float:
        return entropic_cost(a.float(), None if b is None else b.float(), REGULARISATION)

    x_1, x_2 = prior_samples(0), prior_samples(1)
    w_1, w_2 = weights(x_1), weights(x_2)
    u_1, u_2 = x_1[pick(w_1["truth"], points, u[0])], x_2[pick(w_2["truth"], points, u[1])]
    self_1, between = cost(u_1, None), cost(u_1, u_2)
    floor = between - 0.5 * (self_1 + cost(u_2, None))
    rows = []
    for name in COVARIANCES:
        p, q = picked_together(w_2["truth"], w_2[name], points, u[2:5])
        together, v = x_2[p], x_2[q]  # v shares points with `together`, but none with u_1
        cross, self_v = cost(u_1, v), cost(v, None)
        rows.append(
            {
                "seed": seed,
                "sigma_t": sigma,
                "covariance": name,
                "divergence": cross - 0.5 * (self_1 + self_v),
                "floor": floor,
                "paper": cross - between,
                "coupled": cost(together, v) - 0.5 * (cost(together, None) + self_v),
                "total_variation": float(0.5 * (w_2["truth"] - w_2[name]).abs().sum()),
                "effective": float(1 / w_2[name].square().sum()),
            }
        )
    return rows


def measure_curve(seed: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all noise levels of one curve; levels that an earlier run finished are read from `--folder`."""
    start = time.monotonic()
    rows = []
    for sigma in arguments.sigmas:
        name = f"curve-{seed}-sigma-{sigma:g}-points-{arguments.points}-samples-{arguments.samples}.json"
        file = None if arguments.folder is None else arguments.folder / name
        known = file is not None and file.is_file()
        found = read_json(file)["rows"] if known else measure(seed, sigma, arguments)
        if file is not None and not known:
            write_json(file, {"rows": found})
        rows += found
    print(f"curve {seed}: {time.monotonic() - start:.0f} s", flush=True)
    return rows


def percentiles(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """25, 50 and 75 % over curves, per σ_t and covariance."""
    out = []
    for sigma in dict.fromkeys(row["sigma_t"] for row in rows):
        for name in COVARIANCES:
            some = [row for row in rows if (row["sigma_t"], row["covariance"]) == (sigma, name)]
            line: dict[str, Any] = {"sigma_t": sigma, "covariance": name, "curves": len(some)}
            for key in ("divergence", "paper", "coupled", "floor", "total_variation", "effective"):
                values = np.percentile([row[key] for row in some], [25, 50, 75])
                line |= {key: float(values[1]), f"{key}_25": float(values[0]), f"{key}_75": float(values[2])}
            out.append(line)
    return out


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot both measures side by side: medians, quartiles as bands, and the floor as a dotted line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    inks = {"0": MUTED, "sigma_t": "#7a9e7e", "sigma_x": INK, "exact": ACCENT}
    labels = {
        "0": r"$0$",
        "sigma_t": r"$\Sigma_t$",
        "sigma_x": r"$(\Sigma_x^{-1} + \Sigma_t^{-1})^{-1}$",
        "exact": r"$V[x\,|\,x_t]$",
    }
    titles = {
        "divergence": "Sinkhorn divergence, independent sets",
        "paper": "OT(u, v) − OT(u, u')",
        "coupled": "Sinkhorn divergence, coupled sets",
    }
    for axis, (key, title) in zip(figure.subplots(1, 3, sharey=True), titles.items(), strict=True):
        for name in COVARIANCES:
            some = [row for row in rows if row["covariance"] == name]
            sigma = [row["sigma_t"] for row in some]
            axis.plot(sigma, [row[key] for row in some], color=inks[name], label=labels[name], marker="o", markersize=3)
            low, high = ([max(row[f"{key}_{q}"], 1e-9) for row in some] for q in (25, 75))
            axis.fill_between(sigma, low, high, color=inks[name], alpha=0.15, linewidth=0)
        if key == "divergence":
            floor = {row["sigma_t"]: row["floor"] for row in rows}
            axis.plot(
                list(floor),
                list(floor.values()),
                color="black",
                linestyle=":",
                linewidth=1,
                label="two sets of the truth",
            )
        axis.set(xscale="log", yscale="log", xlabel=r"$\sigma_t$", title=title)
        axis.set_ylim(1e-4, None)
    figure.axes[0].legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="8 curves, 2^15 prior samples, 256 points, four levels: minutes on a CPU"
    )
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--samples", type=int, default=1 << 20, help="prior samples to resample from")
    parser.add_argument("--points", type=int, default=1 << 14)
    parser.add_argument("--sigmas", type=float, nargs="+", default=list(SIGMAS))
    parser.add_argument("--workers", type=int, default=1, help="processes that share the curves")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--folder", type=Path, help="folder of finished curves and levels, for resuming an interrupted run"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "figure2.png")
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.seeds, arguments.samples, arguments.points = 8, 1 << 15, 256
        arguments.sigmas = [0.1, 0.2, 0.5, 1.0]
    found = shared_out(measure_curve, [(seed, arguments) for seed in range(arguments.seeds)], arguments.workers)
    lines = percentiles([row for rows in found for row in rows])
    for line in lines:
        print({key: round(v, 6) if isinstance(v, float) else v for key, v in line.items()})
    figures = {
        f"{key}_{line['covariance']}_{line['sigma_t']:g}": line[key]
        for line in lines
        for key in ("divergence", "paper", "coupled")
    }
    figures |= ratios(lines)
    print(record("figure2", figures, lines, arguments.results))
    picture(lines, arguments.picture)


def ratios(lines: list[dict[str, Any]]) -> dict[str, float]:
    """The smallest ratio of a heuristic's median to the exact covariance's, for σ_t from 0.1 to 1."""
    median = {(line["sigma_t"], line["covariance"]): line for line in lines}
    middle = [sigma for sigma in dict.fromkeys(line["sigma_t"] for line in lines) if 0.1 <= sigma <= 1]
    out = {}
    for key in ("divergence", "paper", "coupled"):
        for name in ("sigma_t", "sigma_x"):
            pairs = [(median[sigma, name][key], median[sigma, "exact"][key]) for sigma in middle]
            if pairs:
                out[f"ratio_{key}_{name}"] = min(a / b if b > 0 else math.inf for a, b in pairs)
    return out


if __name__ == "__main__":
    main()
