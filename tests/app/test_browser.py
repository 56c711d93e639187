"""The page in headless Chromium. Skipped if Playwright or Chromium is not installed."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Thread

import pytest

from ..browser import CHROMIUM
from .conftest import png
from .serving import served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed"),
    pytest.mark.skipif(find_spec("playwright") is None or CHROMIUM is None, reason="no Playwright or no Chromium"),
]
PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """The folder in which the server keeps uploads."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def opened(run, temporary):
    """The address of the page, and a browser."""
    from playwright.sync_api import sync_playwright

    with served(run, temporary=temporary) as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield address, browser
        browser.close()


@pytest.fixture(scope="module")
def page(opened):
    address, browser = opened
    page = browser.new_page(viewport={"width": 1360, "height": 950})
    page.set_default_timeout(PATIENCE)
    page.elsewhere = []  # hosts other than the page's own that received a request
    page.on(
        "request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else page.elsewhere.append(r.url)
    )
    page.goto(address)
    return page


def pictures(page, where):
    return page.eval_on_selector_all(f"{where} img", "images => images.map(i => i.src)")


def test_the_page_opens_with_the_run(page):
    page.wait_for_selector("#posterior img")
    page.wait_for_selector("text=finished, 2 laps")
    assert page.locator("#posterior .draws img").count() == 12
    assert page.title() == "digits · diffem"


def test_samples_follow_seed_and_lap(page):
    page.get_by_role("tab", name="Prior").click()
    page.wait_for_selector("#prior img")
    before = pictures(page, "#prior")
    assert len(before) == 40
    page.locator("input[aria-label*='seed' i], label:has-text('seed') input").locator("visible=true").fill("7")
    page.click("#sample")
    page.wait_for_selector("text=seed 7")
    assert pictures(page, "#prior") != before


def test_an_uploaded_picture_through_two_operators(page, digit, tmp_path):
    (tmp_path / "seven.png").write_bytes(png(digit))
    page.get_by_role("tab", name="Posterior").click()
    page.get_by_role("tab", name="Upload").click()
    page.set_input_files("#upload input[type=file]", tmp_path / "seven.png")
    page.wait_for_selector("text=Press Corrupt and draw")  # the server has read the file, not only its name
    page.click("#draw-upload")
    page.wait_for_selector("text=50% of the pixels missing")
    masked = pictures(page, "#posterior")
    assert len(masked) == 5 + 12  # observation, mean, deviation, residual, truth; draws
    page.get_by_label("blur", exact=True).check()
    page.click("#draw-upload")
    page.wait_for_selector("text=blurred over")
    blurred = pictures(page, "#posterior")
    truth = 4
    assert blurred[truth] == masked[truth]
    assert all(a != b for i, (a, b) in enumerate(zip(masked, blurred, strict=True)) if i != truth)


def test_a_bad_upload_is_rejected_with_a_message(page, tmp_path):
    (tmp_path / "poem.png").write_text("no picture at all")
    page.get_by_role("tab", name="Posterior").click()
    page.get_by_role("tab", name="Upload").click()
    if page.get_by_label("Clear").count():
        page.get_by_label("Clear").locator("visible=true").first.click()
    page.set_input_files("#upload input[type=file]", tmp_path / "poem.png")
    page.wait_for_selector("text=poem.png")
    page.click("#draw-upload")
    refused = page.wait_for_selector("#posterior .refused")
    assert "not a readable picture" in refused.inner_text()
    assert pictures(page, "#posterior") == []


def test_the_run_lap_by_lap(page):
    page.get_by_role("tab", name="Run", exact=True).click()
    page.wait_for_selector("#curves img")
    assert page.locator("#measures tr").count() == 4
    page.wait_for_selector("text=after lap 2")
    last = pictures(page, "#kept")
    page.locator("input[type=number]:visible").fill("0")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=after lap 0")
    assert pictures(page, "#kept") != last


ATTACK = """
async ([address, data]) => {
    const form = new FormData();
    form.append("files", new Blob([data]), "x.png");
    const body = JSON.stringify({data: [0, 2, 2, 0], fn_index: 0, session_hash: "attack"});
    const attempts = {
        upload: fetch(address + "/gradio_api/upload", {method: "POST", body: form}),
        blind: fetch(address + "/gradio_api/upload", {method: "POST", body: form, mode: "no-cors"}),
        join: fetch(address + "/gradio_api/queue/join", {method: "POST", body}),
        config: fetch(address + "/config"),
    };
    const outcome = {};
    for (const [name, attempt] of Object.entries(attempts))
        outcome[name] = await attempt.then(answer => answer.type + " " + answer.status, error => "failed");
    return outcome;
}
"""


def test_a_page_of_another_origin_can_do_nothing(opened, temporary, tmp_path):
    """A page on another port of the same machine. The effect of a blind request is visible only on disk."""
    address, browser = opened
    (tmp_path / "index.html").write_text("<title>another page</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site, browser.new_context() as context:
        Thread(target=site.serve_forever, daemon=True).start()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        statuses = []
        page.on("response", lambda r: statuses.append(r.status) if r.url.startswith(address) else None)
        page.goto(f"http://127.0.0.1:{site.server_address[1]}/")
        outcome = page.evaluate(ATTACK, [address, "x"])
        assert outcome == {"upload": "failed", "blind": "opaque 0", "join": "failed", "config": "failed"}
        assert set(statuses) <= {403}
        assert [p for p in temporary.rglob("*") if p.is_file()] == []
        page.set_content(f'<a href="{address}">the run</a>')
        page.click("a")  # following a link is allowed
        page.wait_for_selector("#posterior img")
        site.shutdown()


def test_nothing_was_fetched_from_other_hosts(page):
    assert page.elsewhere == []
