"""The report and the live page in a real browser: drawn, silent, offline, in both themes, on a phone."""

import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from run_records import secure
from wholegrain.report.dpia import dpia_annex
from wholegrain.report.live_page import server
from wholegrain.report.page import page as report_page
from wholegrain.report.run_reader import read_runs
from wholegrain.runs.run_folder import RunFolder
from wholegrain.runs.spec_sections import AboutSpec

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install Debian's chromium to run these tests"),
]

QUIET = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"
PATIENCE = 600_000
"""Milliseconds after which something must have gone wrong."""

SERIOUS = ("serious", "critical")
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
    assert charts.count() > 9
    for number in range(charts.count()):
        assert charts.nth(number).locator("svg g.mark-group, svg path").count() > 0
        assert charts.nth(number).get_attribute("aria-label")
    wide, screen = visit.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= screen
    visit.context.close()


def test_guarantees_fit_a_phone_without_scrolling(browser: Any, proved: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(report_page(read_runs([proved])), encoding="utf-8")
    visit = Visit(browser, file.as_uri(), width=390)
    table = visit.page.locator("[aria-label='Guarantees of proved']")
    assert table.evaluate("each => each.scrollWidth <= each.clientWidth")
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


STROKES = """() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  return [...document.querySelectorAll("#charts-of-rounds .mark-line > path")].map(path => {
    const ground = getComputedStyle(path.closest("figure")).backgroundColor;
    const [a, b] = [lum(parse(getComputedStyle(path).stroke)), lum(parse(ground))].sort((x, y) => y - x);
    return (a + .05) / (b + .05);
  });
}"""


@pytest.mark.parametrize(("scheme", "least"), [("light", 3.0), ("dark", 4.5)])
def test_lines_stand_out_from_their_ground(browser: Any, report: Path, scheme: str, least: float) -> None:
    visit = Visit(browser, report.as_uri(), scheme)
    found = visit.page.evaluate(STROKES)
    assert len(found) > 5
    assert min(found) >= least
    visit.context.close()


def test_who_reads_in_the_dark_prints_on_white(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri(), "dark")
    label = "getComputedStyle(document.querySelector('.chart svg .role-axis-label text')).fill"
    assert visit.page.evaluate(label) != "rgb(34, 34, 34)"
    visit.page.emulate_media(media="print", color_scheme="dark")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert visit.page.evaluate(label) == "rgb(34, 34, 34)"
    visit.context.close()


def test_three_figures_stand_side_by_side_and_none_is_left_alone(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri(), width=1280)
    boxes = "[...document.querySelectorAll('.figures > figure')].map(f => [f.offsetTop, f.offsetWidth])"
    keep = "document.querySelectorAll('.figures > figure:nth-child(n + {})').forEach(f => f.remove())"
    visit.page.evaluate(keep.format(6))
    five = visit.page.evaluate(boxes)
    assert five[4][1] > 1.9 * five[3][1]
    visit.page.evaluate(keep.format(4))
    assert len({top for top, _ in visit.page.evaluate(boxes)}) == 1
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
    assert {"Numbers", "What is promised by proved", "The exact spec of proved"} <= reached
    visit.context.close()


def test_a_column_is_sorted_by_its_numbers(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri())
    table = visit.page.locator("table[data-sortable]")
    first = table.locator("tbody tr:first-child th")
    head = table.get_by_role("button", name="ε spent")
    head.press("Enter")
    assert (first.text_content(), table.locator("th[aria-sort=descending]").count()) == ("printed", 1)
    head.press("Enter")
    assert (first.text_content(), table.locator("th[aria-sort=ascending]").count()) == ("proved", 1)
    visit.context.close()


AXE = Path(os.environ.get("WHOLEGRAIN_AXE", ".tools/node_modules/axe-core/axe.min.js"))
"""Deque's accessibility checks, as `make axe` installs them."""


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: `make axe` installs it with npm")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("what", ["one run", "two runs", "annex"])
def test_axe_finds_nothing_serious(
    browser: Any, proved: Path, printed: Path, tmp_path: Path, what: str, scheme: str
) -> None:
    runs = read_runs([proved] if what != "two runs" else [proved, printed])
    file = tmp_path / "page.html"
    file.write_text(dpia_annex(runs[0]) if what == "annex" else report_page(runs), encoding="utf-8")
    # The policy of the page would keep axe out, as it keeps out everything.
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.goto(file.as_uri())
    if what != "annex":
        page.wait_for_selector("html[data-drawn=yes]", timeout=PATIENCE)
    page.evaluate("document.querySelectorAll('main details').forEach(each => { each.open = true; })")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")
    context.close()
    assert len(found["passes"]) > 10
    assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"] if each["impact"] in SERIOUS] == []


def printed_pages(browser: Any, file: Path) -> int:
    context = browser.new_context()
    page = context.new_page()
    page.goto(file.as_uri())
    content = page.pdf(format="A4", prefer_css_page_size=True)
    context.close()
    return len(re.findall(rb"/Type\s*/Page\b", content))


def test_the_annex_is_two_pages_of_a4(browser: Any, proved: Path, tmp_path: Path) -> None:
    """With every line filled in as far as a spec may fill it on average, and with signatures."""
    (run,) = read_runs([proved])
    words = "Words of somebody who answers for this processing, and who has a little more to say than most. " * 2
    about = AboutSpec(**dict.fromkeys(("purpose", "controller", "recipients", "retention", "legal_basis"), words))
    privacy = run.spec.privacy.model_copy(update={"noise": "secure"})
    run = replace(run, spec=run.spec.model_copy(update={"about": about, "privacy": privacy}))
    file = tmp_path / "annex.html"
    file.write_text(dpia_annex(run), encoding="utf-8")
    assert "Signatures" in file.read_text(encoding="utf-8")
    assert 1 <= printed_pages(browser, file) <= 2
    context = browser.new_context(viewport={"width": 680, "height": 900})
    page = context.new_page()
    page.goto(file.as_uri())
    page.emulate_media(media="print")
    # Signatures stand on one page with what they are for.
    kept = "getComputedStyle(document.querySelector('.signatures').closest('.together')).breakInside"
    assert page.evaluate(kept) == "avoid"
    assert page.evaluate("document.querySelector('.together').offsetHeight") < 273 * 96 / 25.4
    context.close()


@pytest.mark.parametrize("what", ["one run", "two runs"])
def test_print_fits_the_paper(browser: Any, proved: Path, printed: Path, tmp_path: Path, what: str) -> None:
    """On the 180 mm of A4 between its margins nothing is cut off, and charts leave no holes."""
    file = tmp_path / "page.html"
    file.write_text(report_page(read_runs([proved] if what == "one run" else [proved, printed])), encoding="utf-8")
    visit = Visit(browser, file.as_uri(), width=680)
    visit.page.emulate_media(media="print")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 680
    boxes = visit.page.evaluate(
        "[...document.querySelectorAll('figure')].map(f => [f.offsetHeight, f.querySelector('svg').clientHeight])"
    )
    assert len(boxes) > 5
    assert [box for box in boxes if box[0] > box[1] + 120] == []
    hidden = "[...document.querySelectorAll('.skip, .vega-actions')].every(each => !each.offsetParent)"
    assert visit.page.evaluate(hidden)
    visit.context.close()
    assert printed_pages(browser, file) <= 3


LETTERS = """() => [...document.querySelectorAll(".chart svg")].flatMap(svg => {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return [...svg.querySelectorAll(".role-axis-label text")].map(
    text => .75 * scale * parseFloat(getComputedStyle(text).fontSize));
})"""
"""Points, of letters at the axes of charts."""

TITLES = """() => [...document.querySelectorAll(".chart svg")].flatMap(svg => {
  const boxes = (part) => [...svg.querySelectorAll(`.${part} text`)].map(text => text.getBoundingClientRect());
  return boxes("role-axis-title").flatMap(title => boxes("role-axis-label").filter(label =>
    title.left < label.right && label.left < title.right && title.top < label.bottom && label.top < title.bottom));
}).length"""


@pytest.mark.parametrize("runs", [1, 2])
def test_letters_of_charts_are_legible_on_paper(
    browser: Any, proved: Path, printed: Path, tmp_path: Path, runs: int
) -> None:
    file = tmp_path / "page.html"
    file.write_text(report_page(read_runs([proved, printed][:runs])), encoding="utf-8")
    visit = Visit(browser, file.as_uri(), width=695)  # A4 less its margins
    visit.page.emulate_media(media="print")
    letters = visit.page.evaluate(LETTERS)
    assert len(letters) > 20
    assert min(letters) > 5
    assert visit.page.evaluate(TITLES) == 0
    visit.context.close()


def test_a_release_prints_on_two_pages(browser: Any, proved: Path, tmp_path: Path) -> None:
    """A release keeps no counts of its data and no times, and here no scores: three figures, side by side."""
    (run,) = read_runs([proved])
    assert run.summary is not None
    rounds = tuple(replace(done, scores={}, seconds=None) for done in run.rounds)
    summary = replace(run.summary, scores={}, constant={})
    file = tmp_path / "release.html"
    release = replace(secure(run), rounds=rounds, counts=None, summary=summary)
    file.write_text(report_page([release]), encoding="utf-8")
    assert file.read_text(encoding="utf-8").count("<figure ") == 3
    assert printed_pages(browser, file) == 2


class Going:
    """A run that goes on, in a folder that a test writes, and its live page."""

    def __init__(self, browser: Any, finished: Path, folder: Path) -> None:
        self.folder, self.finished, self.browser = folder, finished, browser
        self.serving = server([folder], 0)
        threading.Thread(target=self.serving.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.serving.server_port}/"

    def begin(self, rounds: int) -> None:
        draft = shutil.copytree(self.finished, self.folder.with_name("draft"))
        (draft / "summary.json").unlink()
        self.write_rounds(rounds, draft)
        draft.rename(self.folder)

    def write_rounds(self, rounds: int, folder: Path | None = None) -> None:
        lines = (self.finished / "rounds.jsonl").read_text().splitlines(keepends=True)
        ((folder or self.folder) / "rounds.jsonl").write_text("".join(lines[:rounds]))

    def end(self) -> None:
        shutil.copy(self.finished / "summary.json", self.folder / "summary.json")

    def close(self) -> None:
        self.serving.shutdown()
        self.serving.server_close()


@pytest.fixture
def going(browser: Any, proved: Path, tmp_path: Path) -> Iterator[Going]:
    found = Going(browser, proved, tmp_path / "going")
    yield found
    found.close()


def test_live_page_is_empty_then_runs_then_stops_then_ends_without_a_reload(browser: Any, going: Going) -> None:
    visit = Visit(browser, going.address)
    wait = lambda selector: visit.page.wait_for_selector(selector, state="attached", timeout=PATIENCE)  # noqa: E731
    wait("[data-state=waiting]")
    visit.page.evaluate("document.documentElement.dataset.mine = 'yes'")
    going.begin(2)
    wait("[data-state=stopped]")
    with RunFolder.open(going.folder).lock():
        wait("[data-state=running]")
        visit.page.evaluate("document.querySelector('#figure-epsilon [data-keep]').open = true")
        going.write_rounds(3)
        wait("#figure-epsilon [data-keep][open] tbody tr:nth-child(3)")
        visit.shot("live")
        going.end()
    wait("#figure-tradeoff svg")
    assert visit.page.locator("[data-state]").count() == 0
    assert visit.page.evaluate("document.documentElement.dataset.mine") == "yes"
    assert visit.complaints == []
    assert all(request.startswith(going.address) for request in visit.requests)
    visit.context.close()


def test_a_record_that_cannot_be_read_is_told_on_the_page(browser: Any, going: Going) -> None:
    going.begin(2)
    visit = Visit(browser, going.address)
    (going.folder / "rounds.jsonl").write_text("nonsense\n")
    visit.page.wait_for_selector("#news:has-text('cannot be read')", timeout=PATIENCE)
    going.write_rounds(3)
    visit.page.wait_for_selector("#news:has-text('Updated')", timeout=PATIENCE)
    assert visit.page.locator("#figure-epsilon tbody tr").count() == 3
    visit.context.close()


def test_a_page_whose_server_is_gone_says_so(browser: Any, going: Going) -> None:
    going.begin(2)
    visit = Visit(browser, going.address)
    going.close()
    visit.page.wait_for_selector("#news:has-text('has ended')", timeout=PATIENCE)
    assert visit.page.locator("h1").text_content() == "going"
    visit.context.close()
