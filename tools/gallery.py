"""Make the pictures of docs/gallery.md: `python tools/gallery.py`, with Debian's chromium and playwright.

Trains the runs that the page names, writes their reports, and takes pictures of them as a desk and a phone show them.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
IMAGES, TABLE = ROOT / "docs" / "images", ROOT / "examples" / "own_table"
RUNS: dict[str, tuple[str, ...]] = {
    "release": ("release.toml",),
    "simulation": ("visits.toml",),
    "strict": ("visits.toml", "--set", "privacy.epsilon=1.0"),
    "fedavg": ("visits.toml", "--set", "policy.name=fedavg", "--set", "privacy.epsilon=null"),
}
SHADES = 128
PICTURES = (
    # file, page, theme, width, height
    ("report.png", "release.html", "light", 1200, 590),
    ("gallery/release-dark.png", "release.html", "dark", 1200, 590),
    ("gallery/simulation-dark.png", "simulation.html", "dark", 1200, 575),
    ("gallery/comparison.png", "compared.html", "light", 1200, 1030),
    ("gallery/annex.png", "annex.html", "light", 900, 1180),
    ("gallery/phone-light.png", "release.html", "light", 390, 1470),
    ("gallery/release-phone-dark.png", "release.html", "dark", 390, 1470),
    ("gallery/phone-dark.png", "compared.html", "dark", 390, 1315),
)


def write_reports(folder: Path) -> None:
    """Four runs, and the pages about them."""
    own = {**os.environ, "WHOLEGRAIN_STATE": str(folder / "state")}

    def wholegrain(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "wholegrain", *arguments], cwd=folder, env=own, check=True)

    for name, (spec, *changes) in RUNS.items():
        wholegrain("run", str(TABLE / spec), *changes, "--out", name, "--quiet")
    wholegrain("report", "release", "--out", "release.html", "--dpia", "annex.html")
    wholegrain("report", "simulation", "--out", "simulation.html")
    wholegrain("report", "simulation", "strict", "fedavg", "release", "--out", "compared.html")


def take(browser: Any, page: Path, theme: str, width: int, height: int, file: Path) -> None:
    """One picture of the top of a page."""
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height})
    opened = context.new_page()
    opened.goto(page.as_uri())
    if page.name != "annex.html":
        opened.wait_for_selector("html[data-drawn=yes]", timeout=120_000)
    opened.screenshot(path=file)
    context.close()
    # Pages have few colours: a palette halves the file, and nobody sees it.
    Image.open(file).convert("RGB").quantize(SHADES).save(file, optimize=True)


def main() -> None:
    """Runs, reports, pictures."""
    (IMAGES / "gallery").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp())
    write_reports(folder)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for file, page, theme, width, height in PICTURES:
            take(browser, folder / page, theme, width, height, IMAGES / file)
        browser.close()


if __name__ == "__main__":
    main()
