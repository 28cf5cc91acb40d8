"""The site as `make docs` builds it: strict, and read by axe-core in a real browser, in both themes and on a phone."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wholegrain

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(os.environ.get("WHOLEGRAIN_AXE", ROOT / ".tools/node_modules/axe-core/axe.min.js"))
SHOTS = os.environ.get("WHOLEGRAIN_SCREENSHOTS")
PAGES = ("", "tutorials/table/", "api/", "coming-from/", "reports/", "gallery/", "guarantees/", "benchmark/")
pytest.importorskip("mkdocs", reason="no mkdocs: install wholegrain[docs]")
pytestmark = pytest.mark.slow


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` writes; a warning would fail it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    own = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}/"
    serving.shutdown()
    serving.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no browser: install Debian's chromium to run these tests")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    with api.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def test_every_page_is_built_with_search_and_output(site: Path) -> None:
    assert (site / "search" / "search_index.json").stat().st_size > 100_000
    table = (site / "tutorials" / "table" / "index.html").read_text("utf-8")
    assert "probability: yes" in table  # what the notebook printed
    assert (site / "tutorials" / "table.ipynb").exists()
    api = (site / "api" / "index.html").read_text("utf-8")
    assert "<blockquote>" not in api  # doctests are code
    changes = (site / "changelog" / "index.html").read_text("utf-8")
    assert 'href="../arithmetic/"' in changes
    assert f"wholegrain {wholegrain.__version__}</title>" in changes


def test_names_may_break_in_words_and_never_in_code_that_is_copied(site: Path) -> None:
    pages = {path: path.read_text("utf-8") for path in site.rglob("index.html")}
    assert "local_<wbr>item_<wbr>dp" in pages[site / "guarantees" / "index.html"]
    broken = [
        path for path, text in pages.items() for block in re.findall(r"<pre>.*?</pre>", text, re.S) if "<wbr>" in block
    ]
    assert broken == []


def test_a_figure_opens_alone(site: Path) -> None:
    page = site / "clipping" / "index.html"
    (found,) = re.findall(r'<a class="figure" href="([^"]+gradients\.svg)"><img ', page.read_text("utf-8"))
    assert (page.parent / found).resolve().exists()


@pytest.mark.parametrize("page", ["", "guarantees/", "choose-a-policy/", "start/", "reports/"])
def test_tables_fit_a_phone(browser: Any, address: str, page: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 900})
    opened = context.new_page()
    opened.goto(address + page)
    wide = "[...document.querySelectorAll('.md-typeset__table')].map(t => [t.scrollWidth, t.parentElement.clientWidth])"
    assert [each for each in opened.evaluate(wide) if each[0] > each[1]] == []
    context.close()


@pytest.mark.parametrize(("scheme", "shown"), [("light", "report.png"), ("dark", "release-dark.png")])
def test_the_landing_page_has_one_picture_in_the_readers_theme(
    browser: Any, address: str, scheme: str, shown: str
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.goto(address)
    seen = opened.evaluate(
        "[...document.querySelectorAll('img.shot')].filter(i => i.offsetParent).map(i => i.currentSrc)"
    )
    assert [each.split("#")[0].rsplit("/", 1)[1] for each in seen] == [shown]
    assert opened.locator(".doors li").count() == 3
    assert opened.locator("table").count() == 1
    context.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("dark", 390)])
@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_and_axe_finds_nothing_serious(
    browser: Any, address: str, page: str, scheme: str, width: int
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    opened = context.new_page()
    opened.goto(address + page)
    opened.wait_for_selector("html.js", state="attached")
    if SHOTS:
        name = page.strip("/").replace("/", "-") or "index"
        opened.screenshot(path=f"{SHOTS}/docs-{name}-{scheme}-{width}.png", full_page=True)
    wide, screen = opened.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= screen
    if AXE.exists():
        opened.evaluate(AXE.read_text(encoding="utf-8"))
        found = opened.evaluate("axe.run()")
        serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
        assert len(found["passes"]) > 10
    context.close()
    if not AXE.exists():
        pytest.skip("no axe-core: `make axe` installs it with npm; the layout was looked at")
