"""Requests that reach the page, by host, origin, route and size, without a server."""

import asyncio

import pytest

from diffem.app.guard import MAX_BODY, Guard, own_names

HOST = "127.0.0.1:7860"
LOCAL = own_names("127.0.0.1")


def answer(
    *headers, path="/gradio_api/upload", method="POST", body=(b"x",), names=LOCAL, any_address=False, scheme="http"
):
    """The status of a request; 200 if the application read its body to the end."""
    sent = []
    parts = [{"type": "http.request", "body": part, "more_body": True} for part in body]
    parts.append({"type": "http.request", "body": b"", "more_body": False})

    async def application(scope, receive, send):
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError  # as web frameworks do
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": method, "path": path, "scheme": scheme, "headers": encoded}
    asyncio.run(Guard(application, names, any_address)(scope, receive, send))
    starts = [m for m in sent if m["type"] == "http.response.start"]
    assert len(starts) == 1
    assert any(name == b"content-security-policy" for name, _ in starts[0]["headers"])
    return starts[0]["status"]


class TestHosts:
    @pytest.mark.parametrize(
        "host", [HOST, "127.0.0.1", "localhost:9", "LocalHost", "localhost.", "[::1]", "[::1]:7860"]
    )
    def test_names_of_this_machine_at_any_port(self, host):
        assert answer(("host", host)) == 200

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example", "evil.localhost",
         "127.0.0.1@evil.example", "evil.example#127.0.0.1", "127.0.0.1:7860:80", "[::1].evil.example", "[::1", "::1",
         "192.168.0.7", "0.0.0.0", ""],
    )  # fmt: skip
    def test_any_other_name_is_refused(self, host):
        assert answer(("host", host)) == 400

    def test_no_host_and_two_hosts_are_rejected(self):
        assert answer() == 400
        assert answer(("host", HOST), ("host", HOST)) == 400
        assert answer(("host", HOST), ("Host", "evil.example")) == 400

    def test_a_server_on_a_network_accepts_only_its_addresses_and_names(self):
        """A rebound name belongs to the attacker; an address cannot be rebound."""
        names = own_names("0.0.0.0", ["Runs.Lab.Example"])
        for host in ("192.168.0.7:7860", "[fe80::1]", "runs.lab.example", "evil.example"):
            expected = 400 if host == "evil.example" else 200
            assert answer(("host", host), names=names, any_address=True) == expected, host


class TestOrigins:
    def test_its_own_is_served(self):
        assert answer(("host", HOST), ("origin", f"http://{HOST}")) == 200
        assert answer(("host", "[::1]:7860"), ("origin", "http://[::1]:7860")) == 200
        proxied = ("host", "localhost"), ("origin", "https://localhost")  # behind a proxy with TLS
        assert answer(*proxied, scheme="https") == 200

    @pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PUT", "HEAD"])
    @pytest.mark.parametrize(
        "origin",
        ["http://evil.example", "null", "", "http://localhost:7860", "http://127.0.0.1:8888", "http://127.0.0.1",
         f"https://{HOST}", f"http://{HOST}.evil.example", f"http://{HOST}/", f"http://evil.example#{HOST}",
         f"file://{HOST}", HOST],
    )  # fmt: skip
    def test_any_other_is_refused(self, method, origin):
        assert answer(("host", HOST), ("origin", origin), method=method) == 403

    def test_two_origins_are_rejected(self):
        assert answer(("host", HOST), ("origin", f"http://{HOST}"), ("origin", "http://evil.example")) == 403

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_requests_without_an_origin_are_judged_by_their_site(self, site):
        """Images, scripts and event streams of another page; another port of this machine counts as the same site."""
        address = ("host", HOST), ("sec-fetch-site", site)
        assert answer(*address, path="/gradio_api/queue/data", method="GET") == 403
        assert answer(*address, path="/", method="GET") == 403
        frame = ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")
        assert answer(*address, *frame, path="/", method="GET") == 403
        link = ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")
        assert answer(*address, *link, path="/", method="GET") == 200
        assert answer(*address, *link, path="/gradio_api/queue/join") == 403

    def test_requests_of_programs_are_served(self):
        assert answer(("host", HOST)) == 200
        assert answer(("host", HOST), ("sec-fetch-site", "same-origin")) == 200


class TestRoutes:
    @pytest.mark.parametrize(
        "path",
        ["/gradio_api/file=/etc/passwd", "/gradio_api/file=http://evil.example/", "/gradio_api/file/x",
         "/gradio_api/proxy=http://evil.example/", "/gradio_api/call/show_prior", "/gradio_api/run/show_prior",
         "/gradio_api/api/show_prior", "/gradio_api/component_server", "/gradio_api/stream/x",
         "/gradio_api/deep_link", "/gradio_api/process_recording", "/gradio_api/run-history/connect",
         "/gradio_api/runs", "/gradio_api/vibe-edit", "/gradio_api/dev/reload", "/gradio_api/mcp/", "/login",
         "/monitoring", "/docs", "/gradio_api/upload/../file=x", "//"],
    )  # fmt: skip
    def test_routes_that_the_page_does_not_use_are_absent(self, path):
        assert answer(("host", HOST), path=path) == 404


class TestBodies:
    def test_too_long_by_its_content_length(self):
        assert answer(("host", HOST), ("content-length", str(MAX_BODY + 1)), body=()) == 413
        assert answer(("host", HOST), ("content-length", str(MAX_BODY))) == 200

    def test_too_long_without_a_content_length(self):
        part = bytes(1 << 20)
        parts = [part] * (MAX_BODY // len(part)) + [bytes(MAX_BODY % len(part))]
        assert answer(("host", HOST), body=parts) == 200
        assert answer(("host", HOST), body=[*parts, b"x"]) == 413
        assert answer(("host", HOST), ("content-length", "7"), body=[*parts, b"x"]) == 413


def test_websockets_are_closed():
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(None, LOCAL)({"type": "websocket", "headers": []}, receive, send))
    assert [m["type"] for m in sent] == ["websocket.close"]
