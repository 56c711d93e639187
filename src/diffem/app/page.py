"""The page of a run: controls on the left, pictures on the right, one function per tab.

The handlers of its buttons are in `actions`; `server` serves it. The server sends no files: pictures are embedded in
the page, and an uploaded file is read once and deleted. The page sends no telemetry and loads nothing from other hosts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.version import __version__
from ..report.page import is_own, lead
from . import observing, panels
from .actions import Actions, is_images, noise_unit
from .limits import LIMITS
from .upload import UploadReader, decode, image_shape
from .viewer import Viewer

SMALL = 2_000_000  # parameters; smaller networks draw within seconds, so the page draws with them when it opens
REFRESH = 5  # seconds between two updates of the status line
PRIVATE: dict[str, Any] = {"api_visibility": "private"}
QUIETLY: dict[str, Any] = {"show_progress": "hidden", **PRIVATE}


def import_gradio() -> Any:
    """Import Gradio with analytics, run history and telemetry switched off.

    Raises:
        InputError: If Gradio is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    os.environ["GRADIO_RUN_HISTORY"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import gradio
    except ImportError:
        raise InputError("the app needs gradio: pip install 'diffem[app]'") from None
    return gradio


def build(viewer: Viewer, folder: Path) -> Any:
    """Build the page of a run.

    Args:
        folder: The folder in which Gradio stores uploads.

    Returns:
        The page, a `gradio.Blocks`.
    """
    gr = import_gradio()
    actions = Actions(viewer)
    recipe = viewer.recipe
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
                posterior = _posterior_tab(gr, actions, folder)
            with gr.Tab("Prior"), gr.Row():
                prior = _prior_tab(gr, actions)
            with gr.Tab("Run"):
                curves, table, run = _run_tab(gr, actions)
        _refresh(gr, page, actions, [state, curves, table], [posterior.lap, prior.lap, run.lap])
        if viewer.last >= 0:
            opened = [run]
            if _parameters(viewer) < SMALL:
                opened += [prior, posterior] if viewer.observation_choices() else [prior]
            for tab in opened:
                page.load(tab.show, tab.inputs, tab.output, **QUIETLY)
    return page


@dataclass
class Tab:
    """The main action of a tab.

    Attributes:
        lap: The slider that chooses the lap.
        show: The event handler.
        inputs: The controls whose values it receives.
        output: The component that displays its result.
    """

    lap: Any
    show: Any
    inputs: list[Any]
    output: Any


def _lap_slider(gr: Any, viewer: Viewer) -> Any:
    last = max(viewer.last, 0)
    return gr.Slider(
        0, max(last, 1), value=last, step=1, label="lap", info="0 is the starting prior", interactive=last > 0
    )


def _steps_and_seed(gr: Any, steps: int) -> list[Any]:
    with gr.Row():
        return [
            gr.Number(steps, label="steps", precision=0, minimum=1, min_width=80),
            gr.Number(0, label="seed", precision=0, minimum=0, min_width=80),
        ]


def _posterior_tab(gr: Any, actions: Actions, folder: Path) -> Tab:
    """Draws for one of the run's observations, or for an uploaded sample."""
    viewer = actions.viewer
    with gr.Column(scale=2, min_width=300):
        lap = _lap_slider(gr, viewer)
        draws = gr.Slider(2, LIMITS["draws"], value=12, step=1, label="draws")
        shared = [lap, draws, *_steps_and_seed(gr, min(viewer.recipe.drawing.steps, 256))]
        with gr.Tabs():
            with gr.Tab("From the run"):
                count = len(viewer.observation_choices())
                position = gr.Slider(
                    0, max(count - 1, 1), value=0, step=1, label="observation", interactive=count > 1,
                    info="held-out observations first" if count else "the run does not contain its observations",
                )  # fmt: skip
                draw = gr.Button("Draw", variant="primary", elem_id="draw-observation")
            with gr.Tab("Upload", visible=is_images(viewer)):
                incoming = UploadReader(folder, lambda data: decode(data, viewer.event_shape))
                upload = incoming.field(gr, label="picture, or .npy of a sample", height=120, elem_id="upload")
                corruption = _corruption(gr, viewer)
                corrupt = gr.Button("Corrupt and draw", variant="primary", elem_id="draw-upload")
    with gr.Column(scale=5):
        pictures = gr.HTML(panels.note("Press Draw."), elem_id="posterior")
    inputs = [position, *shared]
    draw.click(actions.show_observation, inputs, pictures, **PRIVATE)
    position.release(actions.show_observation, inputs, pictures, **PRIVATE)
    upload.upload(actions.take_upload, upload, pictures, **QUIETLY)
    corrupt.click(actions.show_upload, [upload, *corruption, *shared], pictures, **PRIVATE)
    return Tab(lap, actions.show_observation, inputs, pictures)


def _corruption(gr: Any, viewer: Viewer) -> list[Any]:
    """Controls for the operator and the noise that are applied to an uploaded sample, in the order of `show_upload`."""
    invert = gr.Checkbox(False, label="invert: dark ink on white paper")
    kind = gr.Radio(
        [(observing.NAMES[kind], kind) for kind in observing.OPERATORS],
        value="mask",
        label="how the picture is corrupted",
        elem_id="operator",
    )
    missing = gr.Slider(0, 0.98, value=0.5, step=0.02, label="fraction of pixels missing")
    widest = _widest_blur(viewer)
    blur = {"value": min(1.0, widest), "step": 0.1, "label": "width of the blur in pixels", "visible": False}
    width = gr.Slider(0.3, widest, **blur)
    choices = observing.factors(viewer.event_shape) if is_images(viewer) else [2]
    factor = gr.Radio(choices, value=choices[0] if choices else None, label="reduce by", visible=False)
    unit = noise_unit(viewer)
    noise = {"value": 0.1 * unit, "step": 0.01 * unit, "label": "noise level", "info": "in the units of x"}
    sigma = gr.Slider(0.01 * unit, unit, **noise)
    kind.change(
        lambda k: [gr.update(visible=k == name) for name in observing.OPERATORS],
        kind,
        [missing, width, factor],
        **PRIVATE,
    )
    return [invert, kind, missing, width, factor, sigma]


def _prior_tab(gr: Any, actions: Actions) -> Tab:
    """Samples of the prior of any lap."""
    with gr.Column(scale=2, min_width=300):
        lap = _lap_slider(gr, actions.viewer)
        n = gr.Slider(1, LIMITS["samples"], value=40, step=1, label="samples")
        inputs = [lap, n, *_steps_and_seed(gr, 64)]
        more = gr.Button("Sample", variant="primary", elem_id="sample")
    with gr.Column(scale=5):
        pictures = gr.HTML(panels.note("Press Sample."), elem_id="prior")
    more.click(actions.show_prior, inputs, pictures, **PRIVATE)
    lap.release(actions.show_prior, inputs, pictures, **PRIVATE)
    return Tab(lap, actions.show_prior, inputs, pictures)


def _run_tab(gr: Any, actions: Actions) -> tuple[Any, Any, Tab]:
    """Metrics of all laps, and the samples and draws that the run saved after one of them."""
    curves = gr.HTML(elem_id="curves")
    table = gr.HTML(elem_id="measures")
    lap = _lap_slider(gr, actions.viewer)
    saved = gr.HTML(elem_id="kept")
    lap.change(actions.show_lap, lap, saved, **QUIETLY)
    return curves, table, Tab(lap, actions.show_lap, [lap], saved)


def _refresh(gr: Any, page: Any, actions: Actions, displays: list[Any], sliders: list[Any]) -> None:
    """Update the status, curves and table every few seconds; when a lap ends, move the lap sliders to it."""
    newest = gr.State(actions.viewer.last)

    def refresh(seen: int) -> tuple[Any, ...]:
        last, *html = actions.progress()
        if last is None:
            return *html, seen, *[gr.skip()] * len(sliders)
        moved = {"value": last} if last > seen else {}
        slider = gr.update(maximum=max(last, 1), interactive=last > 0, **moved)
        return *html, last, *[slider] * len(sliders)

    outputs = [*displays, newest, *sliders]
    page.load(refresh, newest, outputs, **QUIETLY)
    gr.Timer(REFRESH).tick(refresh, newest, outputs, **QUIETLY)


def _widest_blur(viewer: Viewer) -> float:
    try:
        return min(image_shape(viewer.event_shape)[1:]) / 4
    except InputError:
        return 1.0


def _parameters(viewer: Viewer) -> int:
    return sum(p.numel() for p in viewer.prior(viewer.last).parameters())
