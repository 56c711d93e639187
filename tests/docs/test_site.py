"""The site: every public name is in the reference, and it builds without warnings or broken links."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import diffem

from ..browser import CHROMIUM

ROOT = Path(__file__).parents[2]
# Values and protocols that the pages explain with their use.
ELSEWHERE = {
    "operators": {"OPERATORS", "OperatorError", "Verdict", "check"},
    "posterior": {"METHODS", "Evaluation"},
    "samplers": {"SAMPLERS", "SIGMA_MIN", "SIGMA_MAX", "DEFAULT_SAMPLER", "DEFAULT_STEPS", "Sampler"},
    "linalg": {"COVARIANCES", "SOLVERS", "Solver", "Status", "as_covariance", "axpy", "dot"},
    "metrics": {"Extractor", "Reference"},
    "nn": {"NoiseEmbedding", "reference_embedding", "MLP", "UNet"},
}


@pytest.mark.parametrize("package", ["operators", "priors", "posterior", "samplers", "linalg", "metrics", "nn"])
def test_public_names_are_in_the_reference(package):
    text = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(rf"^::: diffem\.{package}\.(\w+)", text, re.MULTILINE))
    public = set(getattr(diffem, package).__all__)
    assert public - listed - ELSEWHERE.get(package, set()) == set()


def test_the_troubleshooting_page_shows_the_measured_values():
    page = (ROOT / "docs/trouble.md").read_text()
    for name, m in json.loads((ROOT / "docs/figures/trouble.json").read_text()).items():
        predictive = f"{m['predictive_log_likelihood']:.2f}".replace("-", "−")
        row = f"| {name} | {m['heldout_chi2']:.2f} | {predictive} | {m['observation_distance']:.3f} | {m['warnings']} |"
        assert row in page


def test_the_reference_shows_defaults_and_what_is_needed():
    hooks = runpy.run_path(str(ROOT / "docs/hooks.py"))
    commands, keys = hooks["commands"](), hooks["recipe_keys"]()
    assert "| `--seed` | seed of the random numbers | `0` |" in commands
    assert "| `--out, -o` | the folder to write | needed |" in commands
    assert "| `--lap K|best` | " in commands
    assert "| `train.betas` | `[0.9, 0.999]` | " in keys
    assert "| `train.ema` | `null` | " in keys
    assert "``" not in commands + keys


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.targets += [v for name in ("href", "src") if (v := values.get(name))]
        self.anchors |= {v for name in ("id", "name") if (v := values.get(name))}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not re.search(r"^WARNING", result.stderr, re.MULTILINE)
    return folder


built = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mkdocs", "mkdocstrings", "latex2mathml")),
    reason="the extra docs is not installed",
)


@pytest.mark.slow
@built
def test_no_link_is_broken(site):
    pages: dict[Path, Links] = {}
    for path in site.rglob("*.html"):
        pages[path.resolve()] = Links()
        pages[path.resolve()].feed(path.read_text())
    assert len(pages) > 20
    for path, links in pages.items():
        if path.name == "404.html":
            continue
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                # pictures, scripts and styles come from the site itself
                assert parts.scheme in ("https", "mailto", "data"), (path, target)
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            assert file.is_file(), (path.name, target)
            if parts.fragment and file in pages and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[file].anchors, (path.name, target)


@pytest.mark.slow
@built
def test_formulas_are_mathml(site):
    for page, least in (("index.html", 5), ("method.html", 30)):
        text = (site / page).read_text()
        assert text.count("<math ") >= least
        assert "arithmatex" not in text
        assert "$" not in re.sub(r"<script.*?</script>|<code.*?</code>", "", text, flags=re.DOTALL)


@pytest.mark.slow
@built
@pytest.mark.parametrize("name", ["own-images", "table"])
def test_notebooks_are_pages(site, name):
    text = (site / "notebooks" / f"{name}.html").read_text()
    assert f'href="{name}.ipynb"' in text  # to be downloaded
    assert "inside their 90 % intervals: " in text  # printed by a cell
    assert (site / "notebooks" / f"{name}.ipynb").is_file()


@pytest.mark.slow
@built
@pytest.mark.skipif(find_spec("playwright") is None or CHROMIUM is None, reason="no Playwright or no Chromium")
def test_a_site_opened_from_a_folder_works_offline(site):
    """Formulas are rendered and the search works, without a server and without the network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "method.html").as_uri())
        height = "document.querySelector('math mfrac').getBoundingClientRect().height"
        line = "parseFloat(getComputedStyle(document.querySelector('math mfrac')).fontSize)"
        assert page.evaluate(f"{height} > 1.5 * {line}")  # numerator above denominator
        page.goto((site / "howto" / "app.html").as_uri())  # a page in a subfolder
        page.click("[data-md-component=search-query]")
        page.keyboard.type("pivot")
        page.wait_for_selector(".md-search-result__item a")
        found = page.eval_on_selector_all(".md-search-result__item a", "links => links.map(link => link.href)")
        assert any(target.startswith((site / "method.html").as_uri()) for target in found)
        browser.close()
    assert all(url.startswith(("file:", "data:", "blob:", "about:")) for url in requests)
