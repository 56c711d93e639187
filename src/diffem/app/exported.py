"""An exported prior, presented to the app as a run with one lap and without metrics, draws or observations."""

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

SAMPLES, STEPS = 32, 32  # number and sampling steps of the prior samples that are drawn when the page opens


class ExportedRun(RunDir):
    """A run folder that is emulated from the card of an exported prior."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.card = hub.read_card(path)

    def recipe(self) -> Recipe:
        """The recipe in the card, or a placeholder; it provides the page's heading and the options for drawing."""
        saved = hub.recipe_of_card(self.card)
        base = {"name": "exported", "data": {"source": "given"}, "laps": 1, "train": {"steps": 1}}
        recipe = load_recipe(base) if saved is None else saved
        lap = self.card.get("lap")
        source = recipe.about if saved is None else lead(recipe)
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
    """An exported prior, presented as lap 0 of a run."""

    def __init__(
        self, path: str | os.PathLike[str], observations: Path | None = None, device: torch.device | str | None = None
    ) -> None:
        if observations is not None:
            raise InputError(f"--observations needs a run: {path} is an exported prior, which has no observations")
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

    def read_saved(self, lap: int, name: str) -> np.ndarray:
        """Prior samples, drawn at the first call; an export contains no posterior draws, so those are empty."""
        if name != "samples":
            return np.zeros((0, 0, *self.event_shape), dtype=np.float32)
        if self._samples is None:
            self._samples = self.prior(0).sample(SAMPLES, steps=STEPS, progress=False).cpu().numpy()
        return self._samples
