"""The page: controls on the left, pictures on the right; it asks `drawing` and `standing` and shows what `panels` makes of the answer.

It is served to this machine alone unless a host is named. No file is served: pictures travel inside the page, and what is uploaded is read
once and removed. Nothing is reported to anybody and nothing is fetched from elsewhere.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import lru_cache, wraps
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import InputError
from . import asked, drawing, observing, panels, standing
from .observing import Observed
from .upload import image_shape, read_upload
from .viewer import Viewer

SMALL = 2_000_000  # parameters of a network that draws in a moment: the page opens with its draws
LOCAL = ("127.0.0.1", "localhost", "::1")
MAX_UPLOAD = "16mb"
# The browser itself refuses to fetch from anywhere else.
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'"


def _gradio() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
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


def build(viewer: Viewer) -> Any:
    """The page of a run."""
    gr = _gradio()
    last, recipe = max(viewer.last, 0), viewer.recipe
    images = _is_images(viewer)
    steps = min(recipe.e_step.steps, 256)

    @lru_cache(maxsize=2)
    def curves(laps: int) -> str:
        return panels.curves(viewer.run.metrics(), standing.losses(viewer))

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
        return draw(observed, lap, draws, steps, seed, f"Observation {index} of the run, {observed.obs.A}")

    @_answering
    def show_upload(
        file: bytes | None, invert: bool, kind: str, missing: Any, width: Any, factor: Any, sigma: Any,
        lap: Any, draws: Any, steps: Any, seed: Any,
    ) -> str:  # fmt: skip
        shape = viewer.event_shape
        x = read_upload(file, shape, viewer.range, bool(invert))
        A = observing.make_operator(kind, shape, missing=missing, width=width, factor=factor, seed=seed)
        observed = observing.corrupt(x, A, sigma, seed)
        what = {"mask": f"{float(missing):.0%} of the pixels missing", "blur": f"blurred over {width} pixels"}
        return draw(
            observed, lap, draws, steps, seed, what.get(kind, f"reduced by {factor}") + f", noise {float(sigma):g}"
        )

    @_answering
    def show_lap(lap: Any) -> str:
        kept = viewer.stored(lap, "samples")[:32]
        out = panels.samples(kept, viewer.range, f"Samples of the prior after lap {int(lap)}, as the run kept them")
        drawn = viewer.stored(lap, "posterior")[:4]
        if images:
            out += "<h4>Draws for held-out observations, one column each</h4>"
            out += "".join(panels.samples(row, viewer.range, "") for row in drawn)
        return out

    def refresh(seen: int) -> tuple[Any, ...]:
        """Where the run stands; when a lap has ended since the last look, the sliders move to it, and with them the pictures."""
        try:
            p = standing.progress(viewer)
        except InputError as error:
            return panels.message(str(error)), "", "", seen, *[gr.skip()] * 3
        moved = {"value": p.last} if p.last > seen else {}
        slider = gr.update(maximum=max(p.last, 1), interactive=p.last > 0, **moved)
        top = panels.warnings(p.warnings) + curves(p.last)
        return panels.status(p), top, panels.measures(p.metrics), p.last, *[slider] * 3

    def lap_slider() -> Any:
        return gr.Slider(
            0, max(last, 1), value=last, step=1, label="lap", info="0 is the Gaussian start", interactive=last > 0
        )

    with gr.Blocks(
        title=f"{recipe.name} · diffem", analytics_enabled=False, fill_width=True, delete_cache=(60, 600)
    ) as page:
        gr.HTML(
            f'<div class="head"><h1>{escape(recipe.name)}</h1><p>{escape(recipe.about)}</p>'
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
                            upload = gr.File(
                                type="binary", label="picture, or .npy of a sample", height=120, elem_id="upload"
                            )
                            invert = gr.Checkbox(False, label="invert: dark ink on white paper")
                            kind = gr.Radio(
                                list(observing.OPERATORS), value="mask", label="operator", elem_id="operator"
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
                            sigma = gr.Slider(
                                0.01, 1.0, value=0.1, step=0.01, label="noise", info="on the scale of samples"
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


def _is_images(viewer: Viewer) -> bool:
    try:
        image_shape(viewer.event_shape)
    except InputError:
        return False
    return True


def _widest(viewer: Viewer) -> float:
    try:
        return min(image_shape(viewer.event_shape)[1:]) / 4
    except InputError:
        return 1.0


def _parameters(viewer: Viewer) -> int:
    return sum(p.numel() for p in viewer.prior(viewer.last).parameters())


def launch(
    viewer: Viewer, host: str = "127.0.0.1", port: int | None = None, *, browser: bool = False, block: bool = True
) -> Any:
    """Serve the page; returns (the page, its address) when not blocking."""
    gr = _gradio()
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    uploads = tempfile.TemporaryDirectory(prefix="diffem-app-")
    os.environ["GRADIO_TEMP_DIR"] = uploads.name
    middleware = [Middleware(_Policy)]
    if host in LOCAL:  # a page elsewhere cannot reach this one by giving this machine another name
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL)))
    page = build(viewer)
    page.uploads = uploads  # lives, and is removed, with the page
    page.queue(default_concurrency_limit=1, max_size=32, api_open=False)
    theme = gr.themes.Base(
        primary_hue="slate",
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            inbrowser=browser,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            allowed_paths=[],
            blocked_paths=[os.getcwd(), str(viewer.run.path.resolve())],
            max_file_size=MAX_UPLOAD,
            footer_links=[],
            enable_monitoring=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            app_kwargs={"middleware": middleware, "docs_url": None, "redoc_url": None, "openapi_url": None},
            theme=theme,
            css=(files("diffem.app") / "style.css").read_text(),
        )
    except OSError as error:
        raise InputError(f"cannot serve on {host}, port {port or 'any'}: {error}") from None
    if block:
        print(f"{viewer.run.path}: {address}  (Ctrl-C to stop)", flush=True)
        if host not in LOCAL:
            print(f"anybody who can reach {host} can use this page", flush=True)
        page.block_thread()
    return page, address


class _Policy:
    """Adds the content security policy to every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def guarded(event: Any) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", []), (b"content-security-policy", POLICY.encode())]
            await send(event)

        await self.app(scope, receive, guarded)


def serve(path: Path, observations: Path | None, host: str, port: int | None, browser: bool) -> None:
    """What `diffem app` does."""
    _gradio()
    launch(Viewer(path, observations), host, port, browser=browser)
