"""A browser, for what the report page shows and computes."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def window() -> Iterator[tuple[Any, list[str]]]:
    """One tab of a browser without a network, for all tests; what its page says or asks for."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip(f"needs a browser: none of {', '.join(names)} is installed")
    flags = ["no-sandbox", "disable-gpu", "no-first-run", "disable-sync",
             "disable-background-networking", "disable-component-update"]  # fmt: skip
    trouble: list[str] = []

    def refuse(dialog: Any) -> None:
        trouble.append(dialog.message)
        dialog.dismiss()

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=[f"--{flag}" for flag in flags]
        )
        tab = browser.new_context(offline=True).new_page()
        tab.on("console", lambda message: trouble.append(message.text))
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.on("dialog", refuse)
        tab.on("request", lambda request: trouble.append(request.url))
        yield tab, trouble
        browser.close()
