"""A browser tab for the tests of the page, and the engine in it."""

import re
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from page.bundle import bundle
from page.html import content_hash, make_html
from tests.reports import Report

# The text of the script, with which a Trainer starts its workers, is a global, too.
ENGINE = bundle(Path(__file__).parent / "engine.js")
ENGINE += "globalThis.script = document.currentScript.textContent;"
Show = Callable[..., Any]  # returns a playwright page, whose type may be missing

# Kinds of attention, alone and in pairs, for a model of three layers and four heads.
ALONE: list[dict[str, Any]] = [
    {"mlp_ratio": 0},
    {"mlp_ratio": 3},
    {"n_kv_head": 1},
    {"n_kv_head": 2},
    {"window": 3},
    {"window": [1, 0, 4]},
]
ATTENTIONS = ALONE + [a | b for a, b in combinations(ALONE, 2) if a.keys() != b.keys()]


@pytest.fixture(scope="session")
def window(browser: Any) -> tuple[Any, list[str]]:
    """Return one offline tab for all tests, and the list of what its page logs and requests."""
    events = []

    def dismiss(dialog: Any) -> None:
        events.append(dialog.message)
        dialog.dismiss()

    tab = browser.new_context(offline=True).new_page()
    tab.on("console", lambda message: events.append(message.text))
    tab.on("pageerror", lambda error: events.append(str(error.stack)))
    tab.on("dialog", dismiss)
    tab.on("request", lambda request: events.append(request.url))
    return tab, events


@pytest.fixture(scope="session")
def engine(browser: Any) -> Any:
    """Return a tab of its own with the engine."""
    return open_engine(browser)


def open_engine(browser: Any, before: str = "0") -> Any:
    """Return a new tab with the engine, after some JavaScript."""
    tab = browser.new_page()
    tab.evaluate(before)
    tab.add_script_tag(content=ENGINE)
    return tab


@pytest.fixture
def show(report: Report, window: tuple[Any, list[str]], tmp_path: Path) -> Iterator[Show]:
    """Yield a function that opens a page; fail if the page logs or requests anything."""
    file, (tab, events) = tmp_path / "report.html", window

    def open_page(
        html: str = make_html(report.data, report.weights),
        address: str = "",
        timeout: int = 60_000,
        calm: bool = False,
    ) -> Any:
        file.write_text(html, encoding="utf-8")
        if tab.url != "about:blank":
            tab.goto("about:blank")
        tab.goto(file.as_uri() + (address if calm else with_more(address)))
        return settle(tab, timeout)

    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.mouse.move(0, 0)
    events.clear()
    yield open_page
    tab.goto("about:blank")  # stop this page before the next test
    assert {url.split("#")[0] for url in events} <= {file.as_uri()}


def with_more(address: str) -> str:
    """Return the address of the same page after a press on More."""
    return f"{address}{'&' if '#' in address else '#'}more=true"


SETTLED = """(timeout) => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error("Timeout: the page is busy")), timeout);
  const isDone = () => document.body.dataset.busy === "no" && resolve();
  new MutationObserver(isDone).observe(document.body, { attributeFilter: ["data-busy"] });
  isDone();
})"""


def settle(tab: Any, timeout: int = 60_000) -> Any:
    """Wait until the page is idle, and return it. Playwright's own waiting takes a frame or two."""
    tab.evaluate(SETTLED, timeout)
    return tab


def wait_for_address(tab: Any, word: str) -> str:
    """Return the address once it contains `word`: it changes a moment after the state."""
    tab.wait_for_function("(word) => location.hash.includes(word)", arg=word)
    return str(tab.evaluate("location.hash"))


def altered(html: str, right: str, wrong: str) -> str:
    """Return a page with a change of its style or script, which its policy allows."""
    for part in re.findall(r"<(?:style|script type=\"module\" async)>(.*?)</", html, re.S):
        if right in part:
            changed = part.replace(right, wrong)
            html = html.replace(part, changed)
            return html.replace(content_hash(part), content_hash(changed))
    raise AssertionError(f"{right} is not in the page")
