"""The report and the live page in a real browser: drawn, silent, offline, in both themes, on a phone."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wholegrain.report.live_page import server
from wholegrain.report.page import page as report_page
from wholegrain.report.run_reader import read_runs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install Debian's chromium to run these tests"),
]

QUIET = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"
PATIENCE = 600_000
"""Milliseconds after which something must have gone wrong."""

SHOTS = os.environ.get("WHOLEGRAIN_SCREENSHOTS")
"""A folder for pictures of what the tests saw, for people to look at."""

# WCAG contrast of the text of every leaf element against the nearest ground behind it.
CONTRAST = """() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll("main *, header *, footer *")) {
    if (e.closest("svg, .vega-embed") || e.children.length || !e.textContent.trim() || !e.offsetParent) continue;
    const [a, b] = [lum(parse(getComputedStyle(e).color)), lum(ground(e))].sort((x, y) => y - x);
    found.push([(a + .05) / (b + .05), e.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        yield opened
        opened.close()


class Visit:
    """A page, and everything that it complained about or asked for."""

    def __init__(self, browser: Any, address: str, scheme: str = "light", width: int = 1200) -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda asked: self.requests.append(asked.url))
        self.page.goto(address)
        self.page.wait_for_selector("html[data-drawn=yes]", timeout=PATIENCE)

    def shot(self, name: str) -> None:
        if SHOTS:
            self.page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


@pytest.fixture(scope="module")
def report(proved: Path, printed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_page(read_runs([proved, printed])), encoding="utf-8")
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_report_is_drawn_silent_offline_and_fits(browser: Any, report: Path, scheme: str, width: int) -> None:
    visit = Visit(browser, report.as_uri(), scheme, width)
    visit.shot(f"report-{scheme}-{width}")
    assert visit.complaints == []
    assert visit.requests == [report.as_uri()]
    charts = visit.page.locator("[data-chart]")
    assert charts.count() == 9
    for number in range(charts.count()):
        assert charts.nth(number).locator("svg g.mark-group, svg path").count() > 0
        assert charts.nth(number).get_attribute("aria-label")
    wide, screen = visit.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= screen
    visit.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Any, report: Path, scheme: str) -> None:
    visit = Visit(browser, report.as_uri(), scheme)
    found = visit.page.evaluate(CONTRAST)
    assert len(found) > 20
    assert [each for each in found if each[0] < 4.5] == []
    visit.context.close()


def test_themes_differ_and_charts_follow(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri(), "light")
    light = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    label = "document.querySelector('.chart svg .role-axis-label text').getAttribute('fill')"
    before = visit.page.evaluate(label)
    visit.page.emulate_media(color_scheme="dark")
    # By selector, as below: the page's policy lets no text become code, and functions to wait for are text.
    changed = f".chart svg .role-axis-label text:not([fill='{before}'])"
    visit.page.wait_for_selector(changed, state="attached", timeout=PATIENCE)
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    visit.context.close()


def test_everything_that_opens_can_be_reached_and_opened_by_keyboard(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri())
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.className") == "skip"
    reached: set[str] = set()
    for _ in range(80):
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate("document.activeElement.tagName") == "SUMMARY":
            reached.add(visit.page.evaluate("document.activeElement.textContent"))
            if len(reached) == 1:
                visit.page.keyboard.press("Enter")
                assert visit.page.evaluate("document.activeElement.parentElement.open")
    assert {"Numbers", "What is promised by proved", "The exact spec"} <= reached
    visit.context.close()


def test_live_page_follows_the_run(browser: Any, proved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(proved, tmp_path / "going")
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text(lines[0])
    (folder / "summary.json").unlink()
    serving = server([folder], 0)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{serving.server_port}/"
        visit = Visit(browser, address)
        rows = "document.querySelectorAll('#figure-epsilon tbody tr').length"
        assert visit.page.evaluate(rows) == 1
        assert visit.page.get_by_text("not at its end", exact=True).count() == 1
        (folder / "rounds.jsonl").write_text("".join(lines))
        visit.page.wait_for_selector("#figure-epsilon tbody tr:nth-child(3)", state="attached", timeout=PATIENCE)
        visit.shot("live")
        assert visit.complaints == []
        assert all(request.startswith(address) for request in visit.requests)
        visit.context.close()
    finally:
        serving.shutdown()
        serving.server_close()
