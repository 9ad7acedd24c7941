"""Nothing on show is stale: after a change, a page shows what a new page in that state shows."""

from pathlib import Path
from typing import Any

import pytest

import study
from page.html import make_html
from run.checkpoint import open_run
from tests.conftest import make_run
from tests.page.conftest import Show, settle
from tests.page.test_page import point_at
from tests.reports import CHARS, parse_report, save_snapshot

PANELS = ("lens", "patch", "scores", "ablation", "alone", "circuit")
START = (
    "#text=so+be+it+to&other=so+me+it+to&head=L1H1"
    "&edit=L1H0%3Dmean&edit=hide%402&edit=patch%405%2FL1"
)
# A field or button, its new value, and the address of the state after it.
CHANGES = {
    "text": ("#typed", "many to one", START.replace("so+be+it+to", "many+to+one")),
    "second text": ("#other", "so by it to", START.replace("so+me", "so+by")),
    "step": ("#slider", "0", f"{START}&step=2"),
    "edit": ("#ablate", None, f"{START}&edit=L1H1%3Dmean"),
    "edit undone": (".chip >> nth=1", None, START.replace("&edit=hide%402", "")),
    "kind of ablation": ("#instead", "zero", START.replace("mean", "zero")),
}
PERFORM = """(place, value) => {
  if (value === null) place.click();
  else {
    place.value = value;
    for (const type of ["input", "change"]) place.dispatchEvent(new Event(type));
  }
}"""
SHOWN = """() => [document.body.innerText, ...[...document.querySelectorAll(
  "input, select, textarea, canvas, svg, [style]")].filter((each) => each.checkVisibility())
  .map((each) => each.toDataURL?.() ?? [each.value, each.checked, each.getAttribute("style"),
    each.matches("svg") && each.outerHTML].join())]"""


def perform(tab: Any, selector: str, value: str | None = None) -> None:
    """Click, or set a field, without moving the pointer."""
    tab.eval_on_selector(selector, PERFORM, value)
    settle(tab)


def open_panel(tab: Any, panel: str, guided_step: int) -> None:
    perform(tab, f"#steps button >> nth={guided_step}")
    if not tab.is_visible(f"#{panel}-section"):
        perform(tab, f"#show-{panel}")
    if panel == "alone":  # else it chooses a pair of tokens by their score
        tab.check("#alone-section label:last-child input")
        point_at(tab, 5, 3, "#alone-scores", click=True)
        tab.mouse.move(0, 0)


def on_show(tab: Any) -> list[str]:
    if tab.is_visible("#patches"):
        tab.wait_for_selector("body[data-filled]")
    return [line for part in tab.evaluate(SHOWN) for line in part.split("\n")]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a page of two snapshots, at steps 2 and 3, whose layer 0 can be read alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("stale"))
        Path("text.txt").write_text("to be or not " * 200)
        run = make_run(Path("runs/a"), CHARS, "text.txt")
        first = open_run(run, "best")
        save_snapshot(run, first.model(), first.header)
        flags = ["--source=text.txt", "--sequences=2", "--prompt=to be", "--checkpoint=last"]
        assert study.main(["report", *flags]) == 0
        return make_html(*parse_report(run))


@pytest.mark.parametrize("change", CHANGES)
def test_page_after_a_change_shows_what_a_new_page_shows(
    change: str, html: str, show: Show
) -> None:
    selector, value, address = CHANGES[change]
    found = []
    for i, panel in enumerate(PANELS):
        tab = show(html, START)
        open_panel(tab, panel, i % 5)
        on_show(tab)
        perform(tab, selector, value)
        found.append(on_show(tab))
    tab = show(html, address)
    for i, panel in enumerate(PANELS):
        open_panel(tab, panel, i % 5)
        assert on_show(tab) == found[i], panel
