"""The actions behind the page's buttons and sliders: each turns the values of the controls into HTML."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from ..core.counting import count_of
from ..core.errors import InputError
from ..report.words import observation_in_words
from . import drawing, limits, observing, panels, status
from .observing import ObservedSample
from .upload import Upload, image_shape
from .viewer import Viewer


def _displaying_errors(action: Callable[..., str]) -> Callable[..., str]:
    """Wrap an action so that an `InputError` is displayed in place of its pictures."""

    @wraps(action)
    def answer(*values: Any) -> str:
        try:
            return action(*values)
        except InputError as error:
            return panels.message(str(error))

    return answer


class Actions:
    """Event handlers of the page of one run.

    Args:
        viewer: The run that the page displays.
    """

    def __init__(self, viewer: Viewer) -> None:
        self.viewer, self.recipe = viewer, viewer.recipe
        self._curves = lru_cache(maxsize=2)(self._draw_curves)

    def _draw_curves(self, laps: int) -> str:
        """Plot the run's metrics; `laps`, the last finished lap, is the key of the cache."""
        return panels.curves(self.viewer.run.metrics(), status.losses(self.viewer), self.recipe.e_step.clean)

    @_displaying_errors
    def show_prior(self, lap: Any, n: Any, steps: Any, seed: Any) -> str:
        """Sample the prior of a lap."""
        x = drawing.prior_samples(self.viewer, lap, n, steps, seed).numpy()
        caption = f"{count_of(len(x), 'sample')} of the prior of lap {int(lap)}, seed {int(seed)}"
        return panels.samples(x, self.viewer.range, caption)

    def _draw(self, observed: ObservedSample, lap: Any, draws: Any, steps: Any, seed: Any, caption: str) -> str:
        result = drawing.condition(self.viewer, lap, observed, draws, steps, seed)
        return panels.posterior(result, self.viewer.range, f"{caption}; prior of lap {int(lap)}")

    @_displaying_errors
    def show_observation(self, position: Any, lap: Any, draws: Any, steps: Any, seed: Any) -> str:
        """Draw from the posterior of an observation, chosen by its position in `Viewer.observation_choices`."""
        choices = self.viewer.observation_choices()
        index = choices[limits.whole(position, "observation", 0, len(choices) - 1)] if choices else 0
        observed = observing.observation(self.viewer, index)
        use = "held out" if self.viewer.is_held_out(index) else "trained on"
        caption = f"Observation {index} of the run, {use}: {observation_in_words(observed.obs)}"
        return self._draw(observed, lap, draws, steps, seed, caption)

    @_displaying_errors
    def take_upload(self, file: Upload | InputError | None) -> str:
        """Read and delete a file as soon as it has been uploaded."""
        _require_upload(file)
        return panels.note("Press Corrupt and draw.")

    @_displaying_errors
    def show_upload(
        self, file: Upload | InputError | None, invert: bool, kind: str, missing: Any, width: Any, factor: Any,
        sigma: Any, lap: Any, draws: Any, steps: Any, seed: Any,
    ) -> str:  # fmt: skip
        """Corrupt an uploaded sample with the chosen operator and noise, and draw from its posterior."""
        shape = self.viewer.event_shape
        x = _require_upload(file).sample(shape, self.viewer.range, bool(invert))
        A = observing.make_operator(kind, shape, missing=missing, width=width, factor=factor, seed=seed)
        observed = observing.corrupt(x, A, sigma, seed, noise_unit(self.viewer))
        captions = {
            "mask": f"{float(missing):.0%} of the pixels missing",
            "blur": f"blurred over {count_of(width, 'pixel')}",
        }
        caption = captions.get(kind, f"{factor} times lower resolution") + f", noise {float(sigma):g}"
        return self._draw(observed, lap, draws, steps, seed, caption)

    @_displaying_errors
    def show_lap(self, lap: Any) -> str:
        """Display the prior samples and posterior draws that the run saved after a lap."""
        samples = self.viewer.read_saved(lap, "samples")[:32]
        out = panels.samples(samples, self.viewer.range, f"Prior samples saved by the run after lap {int(lap)}")
        draws = self.viewer.read_saved(lap, "posterior")
        which = "held-out observations" if self.recipe.watch.held_out else "observations it was trained on"
        if is_images(self.viewer) and len(draws):
            out += f"<h4>Draws for {which}, one column each</h4>"
            out += "".join(panels.samples(row, self.viewer.range, "", explained=False) for row in draws[:4])
        elif len(draws):
            out += f"<h4>Draws for {which}</h4>" + panels.vectors(draws)
        return out

    def progress(self) -> tuple[int | None, str, str, str]:
        """Read the progress of the run.

        Returns:
            The last finished lap, or None if the run's files cannot be read, and three pieces of HTML: the status
            line, warnings with curves, and the table of metrics.
        """
        try:
            p = status.progress(self.viewer)
        except InputError as error:
            return None, panels.message(str(error)), "", ""
        notes = "".join(panels.note(f"Note: {text}.") for m in p.metrics for text in m.get("notes", []))
        top = panels.warnings(p.warnings) + notes + self._curves(p.last)
        return p.last, panels.status(p), top, panels.measures(p.metrics, self.recipe.e_step.clean)


def _require_upload(file: Upload | InputError | None) -> Upload:
    if file is None:
        raise InputError("choose a file first: a picture, or a .npy array of the shape of a sample")
    if isinstance(file, InputError):
        raise InputError(str(file))
    return file


def is_images(viewer: Viewer) -> bool:
    """Whether the samples of the run are images, so that pictures can be uploaded."""
    try:
        image_shape(viewer.event_shape)
    except InputError:
        return False
    return True


def noise_unit(viewer: Viewer) -> float:
    """Unit of the noise slider: a quarter of the distance from black to white, 1 for samples in [-2, 2]."""
    try:
        low, high = viewer.range
    except InputError:  # no lap is finished yet
        return 1.0
    return (high - low) / 4
