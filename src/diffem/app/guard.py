"""Reject HTTP requests that were not made by the page's own JavaScript.

Any web page that is open in the user's browser can send requests to servers on the same machine and in the same
network. Gradio compares `Origin` with `Host` only to set CORS headers, which decide whether the other page may *read*
the answer; it executes the request in either case. A page whose host name is made to resolve to this machine (DNS
rebinding) even has the same origin. These checks therefore run before Gradio:

- `Host` must be a name of this server. DNS rebinding needs a name that belongs to the attacker.
- `Origin`, if present, must be the address that the request was sent to, and `Sec-Fetch-Site` must not name another
  site. The only exception is a link to the page itself. Programs that send neither header are served.
- Only the routes that the page uses are available. Other routes of Gradio read files and fetch addresses that the
  request names.
- A request has at most `MAX_BODY` bytes, whatever its `Content-Length`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import ip_address
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LOCAL = ("127.0.0.1", "localhost", "::1")
MAX_UPLOAD = 16 << 20  # bytes of an uploaded file
MAX_BODY = MAX_UPLOAD + (1 << 16)  # bytes of a request: the file and the headers around it
TOO_LONG = 413, f"a request has at most {MAX_BODY} bytes"
# The browser then loads nothing from other hosts and does not display the page inside another one.
POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'"
ROUTES = re.compile(
    r"/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)?"
    r"|/(assets|static|svelte)/.+"
    r"|/gradio_api/(app_id|startup-events|theme\.css|upload|upload_progress|cancel|reset|queue/(join|data))/?"
    r"|/gradio_api/heartbeat/\w+/?"
)


def own_names(host: str, others: Iterable[str] = ()) -> frozenset[str]:
    """Host names, in lower case, under which a page that is served on `host` may be opened."""
    names = {host, *LOCAL, *others}
    if host not in LOCAL:
        machine = socket.gethostname()
        names |= {machine, f"{machine}.local", socket.getfqdn()}
    return frozenset(name.lower() for name in names)


class Guard:
    """ASGI middleware that rejects requests from other web pages and adds a content security policy to every response.

    Args:
        app: The application to protect.
        names: Host names that the page is served under.
        any_address: Accept every numeric address as a host name, for servers that listen on a network and may have
            several addresses. DNS rebinding does not work with numeric addresses.
    """

    def __init__(self, app: Application, names: frozenset[str], any_address: bool = False) -> None:
        self.app, self.names, self.any_address = app, names, any_address

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":  # the page uses no websockets
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif rejection := self.rejection(scope):
            await _answer(send, *rejection)
        else:
            exchange = _Exchange(receive, send)
            try:
                await self.app(scope, exchange.receive, exchange.send)
            except Exception:
                if not exchange.too_long:
                    raise
            if exchange.too_long and not exchange.answered:
                await _answer(send, *TOO_LONG)

    def rejection(self, scope: Message) -> tuple[int, str] | None:
        """Status code and reason if a request is rejected; None if it is accepted."""
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        sites = headers.get(b"sec-fetch-site", ["none"])
        if len(hosts) != 1 or not self.is_own(hosts[0]):
            return 400, "this page is not served under this host name; to allow it, start the app with --name HOSTNAME"
        if origins and origins != [f"{scope['scheme']}://{hosts[0]}"]:
            return 403, "requests from other web pages are rejected"
        if any(site not in ("same-origin", "none") for site in sites) and not _is_link(scope, headers):
            return 403, "requests from other web sites are rejected"
        if not ROUTES.fullmatch(scope["path"]):
            return 404, "not found"
        length = headers.get(b"content-length", ["0"])[0]
        if length.isdecimal() and int(length) > MAX_BODY:
            return TOO_LONG
        return None

    def is_own(self, host: str) -> bool:
        """Whether a `Host` header names this server. Ports are not compared, because a tunnel may use another port."""
        found = re.fullmatch(r"(?:\[([\da-fA-F:.]+)\]|([^\[\]:/@?#\s]+))(?::\d{1,5})?", host)
        if found is None:
            return False
        name = (found[1] or found[2]).lower().removesuffix(".")
        return name in self.names or (self.any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_link(scope: Message, headers: dict[bytes, list[str]]) -> bool:
    """Whether the user follows a link to the page. The linking page cannot read the result."""
    navigating = headers.get(b"sec-fetch-mode") == ["navigate"]
    alone = headers.get(b"sec-fetch-dest") == ["document"]
    return scope["method"] == "GET" and scope["path"] == "/" and navigating and alone


async def _answer(send: Send, status: int, reason: str) -> None:
    body = reason.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    headers += [(b"content-security-policy", POLICY), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Exchange:
    """One request and its response, with a bounded body and the content security policy.

    `Content-Length` may be absent, so the bytes are counted as they arrive. If there are too many, the application
    receives a disconnect message, and its response is replaced by an error.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.length, self.answered = 0, False

    @property
    def too_long(self) -> bool:
        return self.length > MAX_BODY

    async def receive(self) -> Message:
        message = await self._receive()
        self.length += len(message.get("body", b""))
        return {"type": "http.disconnect"} if self.too_long else message

    async def send(self, message: Message) -> None:
        if self.too_long and not self.answered:
            return
        if message["type"] == "http.response.start":
            self.answered = True
            message["headers"] = [*message.get("headers", []), (b"content-security-policy", POLICY)]
        await self._send(message)
