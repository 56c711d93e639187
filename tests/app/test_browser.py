"""The page as people use it, in headless Chromium. Skipped where Playwright or a Chromium is not installed."""

import shutil
from importlib.util import find_spec

import pytest

from .conftest import png
from .serving import served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed"),
    pytest.mark.skipif(find_spec("playwright") is None or CHROMIUM is None, reason="no Playwright or no Chromium"),
]
PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def page(run):
    from playwright.sync_api import sync_playwright

    with served(run) as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 950})
        page.set_default_timeout(PATIENCE)
        page.elsewhere = []  # hosts other than the page's own that were asked for anything
        page.on(
            "request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else page.elsewhere.append(r.url)
        )
        page.goto(address)
        yield page
        browser.close()


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
    page.wait_for_selector("text=seven.png")
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


def test_a_bad_upload_is_answered(page, tmp_path):
    (tmp_path / "poem.png").write_text("no picture at all")
    page.get_by_role("tab", name="Posterior").click()
    page.get_by_role("tab", name="Upload").click()
    if page.get_by_label("Clear").count():
        page.get_by_label("Clear").locator("visible=true").first.click()
    page.set_input_files("#upload input[type=file]", tmp_path / "poem.png")
    page.wait_for_selector("text=poem.png")
    page.click("#draw-upload")
    refused = page.wait_for_selector("#posterior .refused")
    assert "no picture that can be read" in refused.inner_text()
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


def test_nothing_was_fetched_from_elsewhere(page):
    assert page.elsewhere == []
