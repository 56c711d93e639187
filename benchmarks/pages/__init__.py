"""Fill the result tables of README, CONTRIBUTING and docs: `python -m benchmarks.pages` (`--check` only compares).

A page marks a block with `<!-- results: NAME -->` … `<!-- end -->`. The content of the block is generated from
`benchmarks/results/NAME.json`, so every number on a page comes with its command, commit and machine. The blocks of
`COMBINED` are generated from several results.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..record import ROOT, load
from . import channel, cifar10, curve, imputing, learning, noise, running, sampling, summary

BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RENDER: dict[str, Callable[[dict[str, Any]], str]] = {
    "digits": learning.digits,
    "covariances": learning.covariances,
    "noise": noise.noise,
    "channel": channel.channel,
    "few-clean": noise.few_clean,
    "calibration": noise.calibration,
    "samplers": sampling.samplers,
    "manifold": curve.manifold,
    "chance": curve.chance,
    "seeds": curve.seeds,
    "last-lap": curve.last_lap,
    "particles": curve.particles,
    "forgetting": learning.forgetting,
    "blurs": learning.blurs,
    "overshoot": learning.overshoot,
    "corrections": learning.corrections,
    "cifar10-fast": cifar10.cifar,
    "cifar10-on": cifar10.cifar,
    "cifar10-conditional": cifar10.cifar_conditional,
    "cifar10-rho75": cifar10.table1,
    "own-data": learning.own_data,
    "esteps": learning.esteps,
    "cifar10-mmps": cifar10.cifar_covariances,
    "floor": cifar10.floor,
    "guidance": cifar10.guidance,
    "mri-fast": learning.mri,
    "mri-conditional": learning.mri,
    "mri-complex": learning.mri,
    "speed": running.speed,
    "speed-conditional": running.speed,
    "optimizers": running.optimizers,
    "fid-sanity": running.fid_sanity,
    "chaos": running.chaos,
    "memory": running.memory,
    "oom": running.oom,
    "scaling": running.scaling,
    "hostile": running.hostile,
    "watch": running.watch,
    "flicker": running.flicker,
    "cost": running.cost,
    "mixture": sampling.mixture,
    "twisted": sampling.twisted,
    "figure2": sampling.figure2,
    "images": sampling.images,
    "images-dps": sampling.images,
    "tables": imputing.tables,
    "series": imputing.series,
}
COMBINED = {"times": summary.times}


def filled(text: str) -> str:
    """Replace the content of every block of a page by its current results."""

    def block(name: str) -> str:
        return COMBINED[name](load) if name in COMBINED else RENDER[name](load(name))

    return BLOCK.sub(lambda m: f"{m[1]}{block(m[2])}\n{m[3]}", text)


def main(check: bool) -> int:
    """Rewrite the pages, or with `check` only list those that differ from the results.

    Returns:
        The exit status: 1 if `check` found a difference, otherwise 0.
    """
    stale = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        if (new := filled(text)) != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                Path(path).write_text(new)
    print(("stale: " if check else "written: ") + (", ".join(stale) or "none"))
    return 1 if check and stale else 0
