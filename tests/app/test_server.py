"""What the page's server gives away: nothing but the page. Skipped where gradio is not installed."""

import http.client
import json
import urllib.parse
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from diffem.cli import app

from .serving import served

pytestmark = pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed")


@pytest.fixture(scope="module")
def server(run):
    with served(run) as (address, process):
        yield address, process


def get(address, path, **headers):
    """Status and body; the path is sent as it is."""
    host = urllib.parse.urlsplit(address).netloc
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", headers.pop("host", host))
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def call(server, name, data):
    """Ask for a function of the page as its JavaScript does; returns the messages of the queue."""
    address, _ = server
    config = json.loads(urllib.request.urlopen(f"{address}/config", timeout=20).read())
    index = next(d["id"] for d in config["dependencies"] if d["api_name"] == name)
    body = json.dumps({"data": data, "fn_index": index, "session_hash": "test"}).encode()
    request = urllib.request.Request(f"{address}/gradio_api/queue/join", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=20).read()
    text = urllib.request.urlopen(f"{address}/gradio_api/queue/data?session_hash=test", timeout=60).read().decode()
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


def test_a_request_cannot_name_a_file_of_its_own(server, tmp_path, picture, run):
    """An upload is known by a path; one that was never uploaded is refused before it is opened."""
    rest = [False, "mask", 0.5, 1.0, 2, 0.1, 1, 2, 2, 0]
    for folder in (tmp_path, run):
        (folder / "secret.png").write_bytes(picture)
        path = str(folder / "secret.png")
        for extra in ({}, {"url": f"file://{path}"}, {"is_stream": True}):
            data = {"path": path, "meta": {"_type": "gradio.FileData"}, **extra}
            messages = call(server, "show_upload", [data, *rest])
            done = [m for m in messages if m["msg"] == "process_completed"]
            assert done
            assert not any(m["success"] for m in done)
            assert "data:image" not in json.dumps(messages)
        (folder / "secret.png").unlink()


def test_actions_answer_and_refuse_in_words(server):
    def output(name, data):
        done = next(m for m in call(server, name, data) if m["msg"] == "process_completed")
        assert done["success"], done
        return done["output"]["data"][0]

    assert output("show_prior", [1, 2, 2, 0]).count("data:image/png") == 2
    assert "steps must be a whole number" in output("show_prior", [1, 2, 10**6, 0])
    assert "choose a file first" in output("show_upload", [None, False, "mask", 0.5, 1.0, 2, 0.1, 1, 2, 2, 0])


def test_the_command_says_what_is_missing(monkeypatch, run):
    import sys

    monkeypatch.setitem(sys.modules, "gradio", None)
    result = CliRunner().invoke(app, ["app", str(run)])
    assert "pip install 'diffem[app]'" in str(result.exception)
