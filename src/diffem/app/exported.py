"""An exported prior as the app looks at it: a run of one lap, without measures, draws and observations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import InputError
from ..em import exports as hub
from ..priors import Prior
from ..report.page import lead
from ..runs.recipe import Recipe, load_recipe
from ..runs.rundir import RunDir
from .viewer import Viewer

SAMPLES, STEPS = 32, 32  # drawn once, for the page's first view


class ExportedRun(RunDir):
    """What a run's folder would tell about the prior."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.card = hub.read_card(path)

    def recipe(self) -> Recipe:
        """How the prior is drawn from, and what the page is headed with; a card names no data that could be made again."""
        kept = hub.kept_recipe(self.card)
        base = {"name": "exported", "data": {"source": "given"}, "laps": 1, "train": {"steps": 1}}
        recipe = load_recipe(base) if kept is None else kept
        lap = self.card.get("lap")
        source = recipe.about if kept is None else lead(recipe)
        about = f"an exported prior{'' if lap is None else f' of lap {lap}'}; {source}"
        return recipe.model_copy(update={"about": about.removesuffix("; "), "laps": 0, "final": None})

    def info(self) -> dict[str, Any]:
        return {"status": "exported", "version": str(self.card.get("library_version")), "seed": 0}

    def laps_done(self) -> int:
        return 0

    def metrics(self) -> list[dict[str, Any]]:
        return [{"lap": 0}]

    def problem(self, source: str | None = None) -> None:
        return None


class ExportedViewer(Viewer):
    """The prior of an export as lap 0 of a run."""

    def __init__(
        self, path: str | os.PathLike[str], observations: Path | None = None, device: torch.device | str | None = None
    ) -> None:
        if observations is not None:
            raise InputError(
                f"--observations are those of a run; {path} is an exported prior, which has none of its own"
            )
        super().__init__(path, None, device, ExportedRun(path))
        self._samples: np.ndarray | None = None

    def _load(self, lap: int) -> Prior:
        return hub.load(self.run.path, self.device)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.prior(0).event_shape

    @property
    def range(self) -> tuple[float, float]:
        assert isinstance(self.run, ExportedRun)
        return super().range if (given := hub.card_range(self.run.card)) is None else given

    def stored(self, lap: int, name: str) -> np.ndarray:
        """Samples, drawn when they are first looked at; an export keeps none, and no draws."""
        if name != "samples":
            return np.zeros((0, 0, *self.event_shape), dtype=np.float32)
        if self._samples is None:
            self._samples = self.prior(0).sample(SAMPLES, steps=STEPS, progress=False).cpu().numpy()
        return self._samples
