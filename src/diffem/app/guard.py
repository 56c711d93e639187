"""Which HTTP requests reach the page: those that its own JavaScript makes.

Any web page that somebody has open can send requests to servers on their machine and in their network. Gradio
compares `Origin` with `Host` only to decide about CORS headers, that is, whether the other page may *read* the
answer; it carries the request out all the same. And a page whose own name suddenly resolves to this machine (DNS
rebinding) is of the same origin for the browser. So, before Gradio:

- `Host` must be a name of this server: rebinding needs a name of the attacker's.
- `Origin`, where there is one, must be the address that the request was sent to, and `Sec-Fetch-Site` must not be
  another site's. The one exception is a link to the page itself. Programs, which send neither header, are served.
- Only the routes that the page uses exist: Gradio's others read files and fetch addresses of the visitor's choice.
- A request has at most `MAX_BODY` bytes, whatever it claims.
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
MAX_BODY = MAX_UPLOAD + (1 << 16)  # of a request: the file and the headers around it
TOO_LONG = 413, f"a request has at most {MAX_BODY} bytes"
# The browser itself refuses to fetch from anywhere else, and to show the page inside another.
POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'"
ROUTES = re.compile(
    r"/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)?"
    r"|/(assets|static|svelte)/.+"
    r"|/gradio_api/(app_id|startup-events|theme\.css|upload|upload_progress|cancel|reset|queue/(join|data))/?"
    r"|/gradio_api/heartbeat/\w+/?"
)


def own_names(host: str, others: Iterable[str] = ()) -> frozenset[str]:
    """Names under which a page that is served on `host` may be opened, in lower case."""
    names = {host, *LOCAL, *others}
    if host not in LOCAL:
        machine = socket.gethostname()
        names |= {machine, f"{machine}.local", socket.getfqdn()}
    return frozenset(name.lower() for name in names)


class Guard:
    """ASGI middleware: refuses requests made by other web pages, adds the content security policy to every response.

    Args:
        app: The application to protect.
        names: Host names that the page is served under.
        any_address: Accept every numeric address as a host name. Numeric addresses cannot be rebound; this is for
            servers that listen on a network and do not know under which addresses they are reached.
    """

    def __init__(self, app: Application, names: frozenset[str], any_address: bool = False) -> None:
        self.app, self.names, self.any_address = app, names, any_address

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":  # the page uses no websockets
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif refused := self.refusal(scope):
            await _answer(send, *refused)
        else:
            exchange = _Exchange(receive, send)
            try:
                await self.app(scope, exchange.receive, exchange.send)
            except Exception:
                if not exchange.too_long:
                    raise
            if exchange.too_long and not exchange.answered:
                await _answer(send, *TOO_LONG)

    def refusal(self, scope: Message) -> tuple[int, str] | None:
        """Status code and reason when a request is to be refused."""
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        sites = headers.get(b"sec-fetch-site", ["none"])
        if len(hosts) != 1 or not self.is_own(hosts[0]):
            return 400, "this page is not served under that name; start the app with --name to add one"
        if origins and origins != [f"{scope['scheme']}://{hosts[0]}"]:
            return 403, "requests from other web pages are refused"
        if any(site not in ("same-origin", "none") for site in sites) and not _is_link(scope, headers):
            return 403, "requests from other web sites are refused"
        if not ROUTES.fullmatch(scope["path"]):
            return 404, "there is nothing here"
        length = headers.get(b"content-length", ["0"])[0]
        if length.isdecimal() and int(length) > MAX_BODY:
            return TOO_LONG
        return None

    def is_own(self, host: str) -> bool:
        """Whether a `Host` header names this server; ports are not compared, a tunnel may have another."""
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
    """Whether somebody follows a link to the page: the browser shows it, and the other page sees nothing of it."""
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
    """One request and its response: the body is bounded, and the policy is added.

    `Content-Length` may be absent, so the bytes are counted as they arrive. Once there are too many, the application
    is told that the client has gone, and whatever it then answers is replaced by an error.
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
