"""Make pictures of the server's page: wide and narrow, light and dark, after a question about a text.

    python scripts/picture_page.py FOLDER [--model MODEL]

Needs the extra `server`, playwright, and a Chromium on PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = {1280: 800, 390: 844}  # points, and the height of each
PATIENCE_MS = 300_000
TEXT, QUESTION = ROOT / "examples" / "oz.txt", "What is the road to the City of Emeralds paved with?"
SERVE = "import sys; from edgekv.cli.main import main; sys.exit(main())"


@contextlib.contextmanager
def served(*options: str) -> Iterator[str]:
    """Yield the address of a server with these options of `edgekv serve`."""
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            yield next(found[1] for line in lines if (found := re.search(r"(http://\S+?)/v1$", line.strip())))
        finally:
            process.terminate()


def picture(browser: Browser, address: str, folder: Path, width: int, scheme: str) -> None:
    """Ask the question on a page of this width and scheme, and save what it shows."""
    size = {"width": width, "height": WIDTHS[width]}
    page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.locator("#files").set_input_files(TEXT)
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Try again").wait_for()
    page.locator("#show-kept:enabled").wait_for()
    page.screenshot(path=folder / f"page-{width}-{scheme}.png")
    if not page.locator("#ledger[open]").count():
        page.locator("#ledger summary").click()
        page.screenshot(path=folder / f"page-{width}-{scheme}-ledger.png")
    page.close()


def main() -> None:
    """Make all pictures with one server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", help="default: the default model")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    options = ["--memory", "256MiB", *(["--model", given.model] if given.model else [])]
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with served(*options) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                picture(browser, address, given.folder, width, scheme)
        browser.close()


if __name__ == "__main__":
    main()
