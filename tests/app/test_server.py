"""The server serves the page and no other file. Skipped if gradio is not installed."""

import http.client
import json
import urllib.parse
import urllib.request
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from diffem.cli.commands import app

from .serving import served

pytestmark = pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed")


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """The folder in which the server keeps uploads."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def server(run, temporary):
    with served(run, temporary=temporary) as (address, process):
        yield address, process


def request(address, method, path, body=None, **headers):
    """A response and its body; the path is sent unchanged."""
    host = urllib.parse.urlsplit(address).netloc
    headers = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body is not None:
        headers["content-length"] = str(len(body))
    with closing(http.client.HTTPConnection(host, timeout=120)) as connection:
        connection.putrequest(method, path, skip_host=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer, answer.read()


def get(address, path, **headers):
    return request(address, "GET", path, **headers)


def send_file(address, data, name="x.png", **headers):
    """Upload a file as the page does."""
    body = b"--b\r\n" + f'Content-Disposition: form-data; name="files"; filename="{name}"'.encode() + b"\r\n\r\n"
    body += data + b"\r\n--b--\r\n"
    kind = "multipart/form-data; boundary=b"
    return request(address, "POST", "/gradio_api/upload", body, content_type=kind, **headers)


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


REST = [False, "mask", 0.5, 1.0, 2, 0.1, 1, 2, 2, 0]  # further arguments of show_upload beside the file


def file_data(path):
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def result(messages):
    done = next(m for m in messages if m["msg"] == "process_completed")
    assert done["success"], done
    return done["output"]["data"][0]


def call(server, name, data):
    """Call a function of the page as its JavaScript does; returns the messages of the queue."""
    address, _ = server
    config = json.loads(urllib.request.urlopen(f"{address}/config", timeout=120).read())
    index = next(d["id"] for d in config["dependencies"] if d["api_name"] == name)
    body = json.dumps({"data": data, "fn_index": index, "session_hash": "test"}).encode()
    request = urllib.request.Request(f"{address}/gradio_api/queue/join", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=120).read()
    text = urllib.request.urlopen(f"{address}/gradio_api/queue/data?session_hash=test", timeout=120).read().decode()
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def test_it_is_bound_to_this_machine_and_reports_nothing(server):
    address, process = server
    listening = [c.laddr.ip for c in psutil.Process(process).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]
    answer, body = get(address, "/")
    assert answer.status == 200
    assert b"digits" in body
    assert answer.getheader("content-security-policy").startswith("default-src 'self'")
    assert json.loads(get(address, "/config")[1])["analytics_enabled"] is False


def test_another_name_for_this_machine_is_refused(server):
    address, _ = server
    assert get(address, "/", host="evil.example")[0].status == 400


def test_no_file_is_served(server, run, tmp_path):
    address, _ = server
    (tmp_path / "secret.txt").write_text("root:x:0:0")
    here = Path.cwd()
    targets = ["/etc/passwd", run / "run.json", run / "recipe.yaml", here / "pyproject.toml", tmp_path / "secret.txt"]
    climbs = [f"{run}/../secret", "../../../../../../etc/passwd", "..%2f..%2f..%2f..%2fetc%2fpasswd", "pyproject.toml"]
    for prefix in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/", "/gradio_api/stream/"):
        for target in [*map(str, targets), *climbs]:
            answer, body = get(address, prefix + target)
            assert answer.status != 200 or b"<!doctype html" in body.lower(), (prefix, target)
            assert b"root:x" not in body
            assert b"build-backend" not in body
    for path in ("/docs", "/openapi.json", "/gradio_api/proxy=http://127.0.0.1/"):
        answer, body = get(address, path)
        assert answer.status != 200 or b"<!doctype html" in body.lower(), path


def test_a_request_cannot_name_a_file_that_was_not_uploaded(server, tmp_path, picture, run):
    """An upload is identified by a path; a path that was never uploaded is rejected before it is opened."""
    for folder in (tmp_path, run):
        (folder / "secret.png").write_bytes(picture)
        path = str(folder / "secret.png")
        for extra in ({}, {"url": f"file://{path}"}, {"is_stream": True}):
            messages = call(server, "show_upload", [{**file_data(path), **extra}, *REST])
            done = [m for m in messages if m["msg"] == "process_completed"]
            assert done
            assert not any(m["success"] for m in done)
            assert "data:image" not in json.dumps(messages)
        (folder / "secret.png").unlink()


def test_a_request_cannot_name_an_address_to_download_from(server, temporary):
    address, _ = server
    for path in (f"{address}/favicon.ico", "http://203.0.113.7/x.png", "file:///etc/passwd", "../../etc/passwd"):
        messages = call(server, "show_upload", [file_data(path), *REST])
        assert not any(m["success"] for m in messages if m["msg"] == "process_completed")
    assert files_in(temporary) == []


class TestUploads:
    def test_a_file_is_removed_once_read_and_can_be_drawn_from_again(self, server, temporary, picture):
        address, _ = server
        answer, text = send_file(address, picture, origin=address)
        assert answer.status == 200
        (path,) = json.loads(text)
        assert files_in(temporary) == [Path(path)]
        assert "Press" in result(call(server, "take_upload", [file_data(path)]))
        assert files_in(temporary) == []
        masked = result(call(server, "show_upload", [file_data(path), *REST]))
        blurred = result(call(server, "show_upload", [file_data(path), False, "blur", *REST[2:]]))
        assert masked.count("data:image/png") == blurred.count("data:image/png") == 5 + 2
        assert masked != blurred

    def test_a_file_that_cannot_be_decoded_is_removed_too(self, server, temporary):
        address, _ = server
        postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
        (path,) = json.loads(send_file(address, postscript)[1])
        for _ in range(2):
            assert "not a readable picture" in result(call(server, "take_upload", [file_data(path)]))
            assert files_in(temporary) == []

    def test_a_removed_file_must_be_uploaded_again(self, server, temporary):
        gone = next(temporary.glob("diffem-app-*")) / ("0" * 64) / "x.png"
        assert "choose it again" in result(call(server, "show_upload", [file_data(str(gone)), *REST]))

    def test_too_large_files_are_rejected(self, server, temporary):
        address, _ = server
        assert send_file(address, bytes((16 << 20) + 1))[0].status == 413
        kind = {"content_type": "multipart/form-data; boundary=b", "content_length": str(1 << 25)}
        # rejected before the body is sent
        assert request(address, "POST", "/gradio_api/upload", **kind)[0].status == 413
        assert files_in(temporary) == []

    def test_nothing_else_is_left_in_the_temporary_folder(self, server, temporary):
        (folder,) = temporary.iterdir()
        assert folder.name.startswith("diffem-app-")
        assert folder.stat().st_mode & 0o077 == 0  # other users cannot read it


class TestOtherPages:
    """A page of another origin, open in the same browser, can do nothing."""

    ORIGINS = ("http://evil.example", "null", "http://localhost:1", "https://{host}", "http://{host}.evil.example")

    @pytest.mark.parametrize("origin", ORIGINS)
    def test_it_cannot_upload(self, server, temporary, picture, origin):
        address, _ = server
        origin = origin.format(host=urllib.parse.urlsplit(address).netloc)
        answer, _ = send_file(address, picture, origin=origin)
        assert answer.status == 403
        assert answer.getheader("access-control-allow-origin") is None
        assert files_in(temporary) == []

    @pytest.mark.parametrize("path",
        ["queue/join", "upload", "run/show_prior", "api/show_prior", "call/show_prior", "call/v2/show_prior",
         "cancel", "reset", "component_server", "stream/x", "process_recording"],
    )  # fmt: skip
    def test_it_cannot_compute(self, server, path):
        """Neither with a request that browsers send directly (text/plain), nor with one that needs a preflight."""
        address, _ = server
        body = json.dumps({"data": [1, 2, 2, 0], "fn_index": 0, "session_hash": "x", "event_id": "x"}).encode()
        for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded"):
            for origin in ("http://evil.example", "null"):
                answer, _ = request(
                    address, "POST", f"/gradio_api/{path}", body, content_type=kind, origin=origin
                )  # fmt: skip
                assert answer.status == 403
        asking = {"origin": "http://evil.example", "access_control_request_method": "POST"}
        answer, _ = request(address, "OPTIONS", f"/gradio_api/{path}", **asking)
        assert answer.status == 403
        assert answer.getheader("access-control-allow-origin") is None

    @pytest.mark.parametrize(
        "path", ["/config", "/gradio_api/queue/data?session_hash=x", "/gradio_api/heartbeat/x", "/"]
    )
    def test_it_cannot_read(self, server, path):
        address, _ = server
        assert get(address, path, origin="http://evil.example")[0].status == 403
        assert get(address, path, sec_fetch_site="cross-site", sec_fetch_mode="no-cors")[0].status == 403

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost.evil.example", ""]
    )
    def test_it_cannot_rebind_its_own_name_to_this_machine(self, server, temporary, picture, host):
        """DNS rebinding: the browser treats both as one origin, and only the name in `Host` differs."""
        address, _ = server
        host = host.format(port=urllib.parse.urlsplit(address).port)
        assert send_file(address, picture, host=host, origin=f"http://{host}")[0].status == 400
        assert get(address, "/config", host=host)[0].status == 400
        assert files_in(temporary) == []


def test_actions_return_results_or_error_messages(server):
    def output(name, data):
        return result(call(server, name, data))

    assert output("show_prior", [1, 2, 2, 0]).count("data:image/png") == 2
    assert "steps must be a whole number" in output("show_prior", [1, 2, 10**6, 0])
    assert "choose a file first" in output("show_upload", [None, *REST])


def test_the_command_names_the_missing_package(monkeypatch, run):
    import sys

    monkeypatch.setitem(sys.modules, "gradio", None)
    result = CliRunner().invoke(app, ["app", str(run)])
    assert "pip install 'diffem[app]'" in str(result.exception)
