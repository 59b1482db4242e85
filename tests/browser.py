"""A headless Chromium that is installed on this machine, and pages in it that must neither complain nor look around."""

from __future__ import annotations

import contextlib
import shutil

import pytest

PATIENCE_MS = 300_000  # a machine may be busy; the browser must not be what fails


@contextlib.contextmanager
def chromium():
    """The browser. Tests skip where playwright or a Chromium is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=PATIENCE_MS)
        try:
            yield found
        finally:
            found.close()


@contextlib.contextmanager
def opened(browser, url, *, expected=(), **settings):
    """The page at a URL. Whatever it asks of another origin, or complains about, fails the test.

    expected: parts of complaints that are meant to come
    """
    with browser.new_context(**settings) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        requests, complaints = [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        yield page
        assert [asked for asked in requests if not asked.startswith(("data:", url))] == []
        assert [text for text in complaints if not any(part in text for part in expected)] == []
