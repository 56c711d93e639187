"""The page: controls on the left, pictures on the right, made by `panels` from what `drawing` and `standing` compute.

How it is served is in `server`. No file is served: pictures travel inside the page, and what is uploaded is read once
and removed. Nothing is reported to anybody and nothing is fetched from elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from html import escape
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.version import __version__
from ..report.page import is_own, lead
from ..report.words import observation_in_words
from . import asked, drawing, observing, panels, standing
from .incoming import Incoming
from .observing import Observed
from .upload import Upload, decode, image_shape
from .viewer import Viewer

SMALL = 2_000_000  # parameters of a network that draws in a moment: the page opens with its draws


def import_gradio() -> Any:
    """Gradio, with everything switched off that stores or reports what visitors do."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    os.environ["GRADIO_RUN_HISTORY"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import gradio
    except ImportError:
        raise InputError("the app needs gradio: pip install 'diffem[app]'") from None
    return gradio


def _answering(action: Callable[..., str]) -> Callable[..., str]:
    """An action whose refusals are shown where its pictures would be."""

    @wraps(action)
    def answer(*values: Any) -> str:
        try:
            return action(*values)
        except InputError as error:
            return panels.message(str(error))

    return answer


def build(viewer: Viewer, folder: Path) -> Any:
    """The page of a run; folder: where Gradio stores uploads."""
    gr = import_gradio()
    incoming = Incoming(folder, lambda data: decode(data, viewer.event_shape))
    last, recipe = max(viewer.last, 0), viewer.recipe
    images = _is_images(viewer)
    steps = min(recipe.drawing.steps, 256)

    @lru_cache(maxsize=2)
    def curves(laps: int) -> str:
        return panels.curves(viewer.run.metrics(), standing.losses(viewer), recipe.e_step.clean)

    @_answering
    def show_prior(lap: Any, n: Any, steps: Any, seed: Any) -> str:
        x = drawing.prior_samples(viewer, lap, n, steps, seed).numpy()
        return panels.samples(x, viewer.range, f"{len(x)} samples of the prior of lap {int(lap)}, seed {int(seed)}")

    def draw(observed: Observed, lap: Any, draws: Any, steps: Any, seed: Any, what: str) -> str:
        result = drawing.condition(viewer, lap, observed, draws, steps, seed)
        return panels.posterior(result, viewer.range, f"{what}; prior of lap {int(lap)}")

    @_answering
    def show_observation(position: Any, lap: Any, draws: Any, steps: Any, seed: Any) -> str:
        choices = viewer.shown()
        index = choices[asked.whole(position, "observation", 0, len(choices) - 1)] if choices else 0
        observed = observing.observation(viewer, index)
        held = "held out" if viewer.is_held_out(index) else "trained on"
        what = f"Observation {index} of the run, {held}: {observation_in_words(observed.obs)}"
        return draw(observed, lap, draws, steps, seed, what)

    @_answering
    def take_upload(file: Upload | InputError | None) -> str:
        """Read and delete a file as soon as it has been uploaded."""
        _chosen(file)
        return panels.note("Press Corrupt and draw.")

    @_answering
    def show_upload(
        file: Upload | InputError | None, invert: bool, kind: str, missing: Any, width: Any, factor: Any, sigma: Any,
        lap: Any, draws: Any, steps: Any, seed: Any,
    ) -> str:  # fmt: skip
        shape = viewer.event_shape
        x = _chosen(file).sample(shape, viewer.range, bool(invert))
        A = observing.make_operator(kind, shape, missing=missing, width=width, factor=factor, seed=seed)
        observed = observing.corrupt(x, A, sigma, seed, _unit(viewer))
        what = {"mask": f"{float(missing):.0%} of the pixels missing", "blur": f"blurred over {width} pixels"}
        return draw(
            observed,
            lap,
            draws,
            steps,
            seed,
            what.get(kind, f"{factor} times lower resolution") + f", noise {float(sigma):g}",
        )

    @_answering
    def show_lap(lap: Any) -> str:
        kept = viewer.stored(lap, "samples")[:32]
        out = panels.samples(kept, viewer.range, f"Samples of the prior after lap {int(lap)}, as the run kept them")
        drawn = viewer.stored(lap, "posterior")[:4]
        which = "held-out observations" if recipe.watch.held_out else "observations it was trained on"
        if images and len(drawn):
            out += f"<h4>Draws for {which}, one column each</h4>"
            out += "".join(panels.samples(row, viewer.range, "", explained=False) for row in drawn)
        elif len(drawn):
            out += f"<h4>Draws for {which}</h4>" + panels.vectors(viewer.stored(lap, "posterior"))
        return out

    def refresh(seen: int) -> tuple[Any, ...]:
        """Where the run stands; when a lap has ended since the last look, the sliders move to it, and with them the pictures."""
        try:
            p = standing.progress(viewer)
        except InputError as error:
            return panels.message(str(error)), "", "", seen, *[gr.skip()] * 3
        moved = {"value": p.last} if p.last > seen else {}
        slider = gr.update(maximum=max(p.last, 1), interactive=p.last > 0, **moved)
        noted = "".join(panels.note(f"Note: {text}.") for m in p.metrics for text in m.get("notes", []))
        top = panels.warnings(p.warnings) + noted + curves(p.last)
        return panels.status(p), top, panels.measures(p.metrics, recipe.e_step.clean), p.last, *[slider] * 3

    def lap_slider() -> Any:
        return gr.Slider(0, max(last, 1), value=last, step=1, label="lap", info="0 is the start", interactive=last > 0)

    title = viewer.run.path.absolute().name if is_own(recipe) else recipe.name
    about = recipe.about if viewer.run.info().get("status") == "exported" else lead(recipe)
    with gr.Blocks(title=f"{title} · diffem", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(
            f'<div class="head"><h1>{escape(title)}</h1><p>{escape(about)}</p>'
            f"<p>{escape(str(viewer.run.path))} · diffem {__version__}</p></div>"
        )
        state = gr.HTML(elem_id="status")
        with gr.Tabs():
            with gr.Tab("Posterior"), gr.Row():
                with gr.Column(scale=2, min_width=300):
                    lap = lap_slider()
                    draws = gr.Slider(2, asked.LIMITS["draws"], value=12, step=1, label="draws")
                    with gr.Row():
                        post_steps = gr.Number(steps, label="steps", precision=0, minimum=1, min_width=80)
                        post_seed = gr.Number(0, label="seed", precision=0, minimum=0, min_width=80)
                    with gr.Tabs():
                        with gr.Tab("From the run"):
                            count = len(viewer.shown())
                            position = gr.Slider(
                                0, max(count - 1, 1), value=0, step=1, label="observation", interactive=count > 1,
                                info="held-out ones first" if count else "the run does not keep its observations",
                            )  # fmt: skip
                            go = gr.Button("Draw", variant="primary", elem_id="draw-observation")
                        with gr.Tab("Upload", visible=images):
                            upload = incoming.field(
                                gr, label="picture, or .npy of a sample", height=120, elem_id="upload"
                            )
                            invert = gr.Checkbox(False, label="invert: dark ink on white paper")
                            kind = gr.Radio(
                                [(observing.NAMES[kind], kind) for kind in observing.OPERATORS],
                                value="mask",
                                label="what is done to the picture",
                                elem_id="operator",
                            )
                            missing = gr.Slider(0, 0.98, value=0.5, step=0.02, label="fraction of pixels missing")
                            width = gr.Slider(
                                0.3,
                                _widest(viewer),
                                value=min(1.0, _widest(viewer)),
                                step=0.1,
                                label="width of the blur in pixels",
                                visible=False,
                            )
                            choices = observing.factors(viewer.event_shape) if images else [2]
                            factor = gr.Radio(
                                choices, value=choices[0] if choices else None, label="reduce by", visible=False
                            )
                            unit = _unit(viewer)
                            sigma = gr.Slider(
                                0.01 * unit,
                                unit,
                                value=0.1 * unit,
                                step=0.01 * unit,
                                label="noise",
                                info="on the scale of samples",
                            )
                            own = gr.Button("Corrupt and draw", variant="primary", elem_id="draw-upload")
                with gr.Column(scale=5):
                    pictures = gr.HTML(panels.note("Press Draw."), elem_id="posterior")
            with gr.Tab("Prior"), gr.Row():
                with gr.Column(scale=2, min_width=300):
                    prior_lap = lap_slider()
                    n = gr.Slider(1, asked.LIMITS["samples"], value=40, step=1, label="samples")
                    with gr.Row():
                        prior_steps = gr.Number(64, label="steps", precision=0, minimum=1, min_width=80)
                        prior_seed = gr.Number(0, label="seed", precision=0, minimum=0, min_width=80)
                    more = gr.Button("Sample", variant="primary", elem_id="sample")
                with gr.Column(scale=5):
                    sampled = gr.HTML(panels.note("Press Sample."), elem_id="prior")
            with gr.Tab("Run"):
                curve = gr.HTML(elem_id="curves")
                table = gr.HTML(elem_id="measures")
                run_lap = lap_slider()
                kept = gr.HTML(elem_id="kept")

        from_run = [position, lap, draws, post_steps, post_seed]
        from_file = [upload, invert, kind, missing, width, factor, sigma, lap, draws, post_steps, post_seed]
        from_prior = [prior_lap, n, prior_steps, prior_seed]
        private: dict[str, Any] = {"api_visibility": "private"}
        go.click(show_observation, from_run, pictures, **private)
        position.release(show_observation, from_run, pictures, **private)
        upload.upload(take_upload, upload, pictures, show_progress="hidden", **private)
        own.click(show_upload, from_file, pictures, **private)
        more.click(show_prior, from_prior, sampled, **private)
        prior_lap.release(show_prior, from_prior, sampled, **private)
        run_lap.change(show_lap, run_lap, kept, show_progress="hidden", **private)
        kind.change(
            lambda k: [gr.update(visible=k == name) for name in observing.OPERATORS],
            kind,
            [missing, width, factor],
            **private,
        )
        newest = gr.State(viewer.last)
        live = [state, curve, table, newest, lap, prior_lap, run_lap]
        page.load(refresh, newest, live, show_progress="hidden", **private)
        gr.Timer(5).tick(refresh, newest, live, show_progress="hidden", **private)
        if viewer.last >= 0:
            page.load(show_lap, run_lap, kept, show_progress="hidden", **private)
            if _parameters(viewer) < SMALL:
                page.load(show_prior, from_prior, sampled, show_progress="hidden", **private)
                if viewer.shown():
                    page.load(show_observation, from_run, pictures, show_progress="hidden", **private)
    return page


def _chosen(file: Upload | InputError | None) -> Upload:
    if file is None:
        raise InputError("choose a file first: a picture, or a .npy array of the shape of a sample")
    if isinstance(file, InputError):
        raise InputError(str(file))
    return file


def _is_images(viewer: Viewer) -> bool:
    try:
        image_shape(viewer.event_shape)
    except InputError:
        return False
    return True


def _unit(viewer: Viewer) -> float:
    """The unit of the noise: a quarter of the way from black to white, 1 for samples in [-2, 2]."""
    try:
        low, high = viewer.range
    except InputError:  # no lap is finished yet
        return 1.0
    return (high - low) / 4


def _widest(viewer: Viewer) -> float:
    try:
        return min(image_shape(viewer.event_shape)[1:]) / 4
    except InputError:
        return 1.0


def _parameters(viewer: Viewer) -> int:
    return sum(p.numel() for p in viewer.prior(viewer.last).parameters())
