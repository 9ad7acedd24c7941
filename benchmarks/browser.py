"""Chromium without a window, and report pages in it."""

import importlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import UserError

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DONE = "body[data-busy=no]"

# `when` promises the time at which the body's data-<name> is next set.
CLOCK = """
globalThis.when = (name) => new Promise((done) => {
  new MutationObserver((_, observer) => {
    if (!(name in document.body.dataset)) return;
    observer.disconnect();
    done(performance.now());
  }).observe(document, { subtree: true, attributeFilter: [`data-${name}`] });
});
globalThis.opened = when("snapshot");
"""
ACT = """async ([name, id, value]) => {
  const drawn = when(name);
  const place = document.getElementById(id);
  const began = performance.now();
  if (value === null) place.click();
  else {
    place.value = value;
    place.dispatchEvent(new Event("input"));
  }
  return (await drawn) - began;
}"""


@contextmanager
def start_browser() -> Iterator[Any]:
    """Start Chromium without a window, driven by playwright."""
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        raise UserError("playwright is missing; install it with: pip install playwright") from None
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise UserError(f"no browser found; install one of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )


def open_report(browser: Any, path: Path, address: str = "", **look: Any) -> Any:
    """Open a report in a new tab, and wait until it has computed everything that it shows.

    Args:
        address: the part of the address after the file, which describes what is shown.
    """
    tab = browser.new_context(offline=True, **look).new_page()
    tab.set_default_timeout(120_000)
    tab.add_init_script(CLOCK)
    tab.goto(path.resolve().as_uri() + address)
    if tab.evaluate("typeof glassgpt") == "undefined":
        raise UserError(f"{path} is not a report; write one with: python study.py report")
    tab.wait_for_selector(DONE)
    return tab
