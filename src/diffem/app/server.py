"""Serve the page of a run until a signal ends it: Ctrl-C, SIGTERM or SIGHUP.

This module opens the sockets itself, so that the system can choose the port and IPv6 addresses work. The page runs in
threads. The main thread waits for signals, removes abandoned uploads in the meantime, and removes the folder of uploads
at the end. A computation that is still running then cannot be stopped by another thread, and the interpreter's shutdown
would abort under it. The process therefore exits without that shutdown, after everything has been cleaned up.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..core.errors import InputError
from ..em.exports import is_export
from .exported import ExportedViewer
from .folder import sweep, upload_folder
from .guard import LOCAL, MAX_UPLOAD, Guard, own_names
from .page import build, import_gradio
from .viewer import Viewer

PORTS = range(7860, 7960)  # tried in this order when none is named
SWEEP = 30.0  # seconds between two removals of abandoned uploads
ABANDONED = 300.0  # an upload that is not read within this many seconds is removed
PATIENCE = 2  # seconds to wait for open connections at shutdown


class StopSignal(BaseException):
    """The app received a signal to stop."""

    def __init__(self, number: int) -> None:
        self.number = number


def serve(
    path: Path, observations: Path | None, host: str, port: int | None, browser: bool, names: Sequence[str] = ()
) -> NoReturn:
    """Serve the page of a run (the command `diffem app`), and exit the process after a signal.

    Args:
        path: The run's folder, or that of an exported prior.
        observations: A file with the run's observations, for runs that do not contain them.
        host: The name or address to listen on.
        port: The port to listen on; None for the first free one from 7860, 0 to let the system choose.
        browser: Open the page in a browser.
        names: Further host names under which the page may be opened.
    """
    host = host.removeprefix("[").removesuffix("]")
    try:
        with _signals(), ExitStack() as stack:
            viewer = (ExportedViewer if is_export(path) else Viewer)(path, observations)
            _ = viewer.problem  # raises for unsuitable observations before the server starts
            sockets = [stack.enter_context(listening) for listening in listen(host, port)]
            folder = stack.enter_context(upload_folder())
            os.environ["GRADIO_TEMP_DIR"] = str(folder)  # read when gradio is imported, and later
            with served(build(viewer, folder), sockets, host, names, blocked=path) as address:
                print(f"{path}: {address}  (Ctrl-C to stop)", flush=True)
                if host not in LOCAL:
                    print(f"warning: everybody who can connect to {host} can use this page", flush=True)
                if browser:
                    webbrowser.open(address)
                while True:
                    time.sleep(SWEEP)
                    sweep(folder, ABANDONED)
    except StopSignal as stopped:
        # Ctrl-C is the normal way to stop the app; for other signals the exit code is 128 + n, as in shells
        _leave(0 if stopped.number == signal.SIGINT else 128 + stopped.number)


def listen(host: str, port: int | None) -> list[socket.socket]:
    """Open listening sockets, one for each address of `host`, all with the same port number."""
    error: OSError | None = None
    for number in PORTS if port is None else (port,):
        sockets: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, *_, address in dict.fromkeys(found):
                chosen = sockets[0].getsockname()[1] if sockets else number
                sockets.append(socket.create_server((address[0], chosen, *address[2:]), family=family, backlog=128))
        except (OSError, OverflowError) as problem:
            for open_socket in sockets:
                open_socket.close()
            error = OSError(str(problem)) if isinstance(problem, OverflowError) else problem
        else:
            return sockets
    wanted = f"ports {PORTS.start} to {PORTS.stop - 1}" if port is None else f"port {port}"
    raise InputError(f"cannot serve on {host}, {wanted}: {(error and error.strerror) or error}")


def address_of(host: str, port: int) -> str:
    """URL of the page; a wildcard address is replaced by the loopback address."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


@contextmanager
def served(
    page: Any, sockets: list[socket.socket], host: str, names: Sequence[str] = (), blocked: Path | None = None
) -> Iterator[str]:
    """Serve the page behind its guard in a thread, and yield its URL.

    Args:
        page: The Gradio page.
        sockets: Listening sockets of `host`.
        host: The name or address that the page is served on.
        names: Further host names under which it may be opened.
        blocked: A folder whose files must not be named in a request.
    """
    import uvicorn

    guard = Guard(_application(page, blocked), own_names(host, names), any_address=host not in LOCAL)
    options: dict[str, Any] = {"log_level": "warning", "ws": "none", "server_header": False}
    server = uvicorn.Server(uvicorn.Config(guard, timeout_graceful_shutdown=PATIENCE // 2, **options))
    thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise InputError(f"the page cannot be served on {host}")
            time.sleep(0.01)
        yield address_of(host, sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


def _application(page: Any, blocked: Path | None) -> Any:
    """The web application of a page."""
    gr = import_gradio()
    from fastapi import FastAPI

    page.queue(default_concurrency_limit=1, max_size=32, api_open=False)
    page.has_launched = True  # otherwise Gradio does not check the files that a request names
    theme = gr.themes.Base(
        primary_hue="slate",
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    undocumented: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    return gr.mount_gradio_app(
        FastAPI(**undocumented),
        page,
        path="/",
        app_kwargs=undocumented,
        allowed_paths=[],
        blocked_paths=[os.getcwd(), *([str(blocked.resolve())] if blocked else [])],
        max_file_size=MAX_UPLOAD,
        show_error=False,
        footer_links=[],
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        theme=theme,
        css=(files("diffem.app") / "style.css").read_text("utf-8"),
    )


@contextmanager
def _signals() -> Iterator[None]:
    """Raise `StopSignal` once in the main thread on Ctrl-C, SIGTERM or SIGHUP; ignored signals (nohup) stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        for other in numbers:  # the cleanup must not be interrupted; it takes a few seconds at most
            signal.signal(other, signal.SIG_IGN)
        raise StopSignal(number)

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(code: int) -> NoReturn:
    """Exit the process without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the terminal may be gone
            stream.flush()
    os._exit(code)
