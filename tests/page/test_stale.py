"""Nothing on show is stale: after a change, a page shows what a new page in that state shows."""

from random import Random
from typing import Any

import pytest

from page.html import make_html
from tests.page.conftest import Show, altered, settle, wait_for_address
from tests.page.test_page import point_at
from tests.reports import Report

PANELS = ("lens", "patch", "scores", "examples", "alone", "circuit")
START = "#text=so+be+it+to&head=L1H1&edit=L1H0%3Dmean&edit=hide%402&edit=patch%405%2FL1"
TOKEN = "#text .token >> nth=4"
# One after the other: a field or button, its new value, what that replaces in the address, and the
# panels that depend on it.
CHANGES: tuple[tuple[str, str | None, str, str, tuple[str, ...]], ...] = (
    ("#ablate", None, "%2FL1", "%2FL1&edit=L1H1%3Dmean", ("lens", "patch", "circuit")),
    ("#slider", "1", "&head", "&step=1&head", PANELS),
    ("#instead", "zero", "mean", "zero", ("lens", "patch")),
    ("#other", "so by it to", "&step", "&other=so+by+it+to&step", ("patch",)),
    (".pick >> nth=1", None, "head=L1H1", "head=L0H1", ("scores", "examples", "alone", "circuit")),
    ("#edit-list button >> nth=1", None, "&edit=hide%402", "", ("lens", "circuit")),
    (
        "#key-by",
        "4",
        "L1H1%3Dzero",
        "L1H1%3Dzero&edit=move%403%2FL0H1%3D4",
        ("lens", "circuit", "patch"),
    ),
    (TOKEN, None, "", "", ("lens", "circuit")),
    ("#typed", "many to one", "so+be+it+to", "many+to+one", ("lens", "patch", "alone", "circuit")),
    # Attends from and to the same tokens.
    ("#typed", "zany to one", "many", "zany", ("lens", "patch", "circuit")),
)
PERFORM = """(place, value) => {
  if (value == null) place.click();
  else {
    place.value = value;
    for (const type of ["input", "change"]) place.dispatchEvent(new Event(type));
  }
}"""
AT_ONCE = f"""(changes) => {{
  for (const [selector, value] of changes) ({PERFORM})(document.querySelector(selector), value);
}}"""
SHOWN = """() => [document.body.innerText, ...[...document.querySelectorAll(
  "input, select, textarea, canvas, svg, [style]:not([style=''])")]
  .filter((each) => each.checkVisibility())
  .map((each) => each.toDataURL?.() ?? [each.value, each.checked, each.getAttribute("style"),
    each.matches("svg") && each.outerHTML].join())]"""


def perform(tab: Any, selector: str, value: str | None = None) -> None:
    """Click, or set a field, without moving the pointer."""
    tab.eval_on_selector(selector, PERFORM, value)
    settle(tab)


def select_pair(tab: Any, selector: str) -> None:
    point_at(tab, 5, 3, selector, click=True)
    tab.mouse.move(0, 0)


def open_panel(tab: Any, panel: str) -> None:
    step = 4 if panel == "patch" else 2  # Ablate, which measures every head, or Softmax
    for selector in (f"#steps button >> nth={step}", f"#show-{panel}"):
        tab.eval_on_selector(selector, PERFORM)
    settle(tab)
    if panel == "alone":  # the page remembers the pair
        tab.check("#alone-all")
        select_pair(tab, "#alone-scores")
    if panel == "circuit":
        tab.select_option("#circuit-section select >> nth=0", "attention score")


def on_show(tab: Any) -> list[str]:
    if tab.is_visible("#patches"):
        tab.wait_for_selector("body[data-filled]")
    return [line for part in tab.evaluate(SHOWN) for line in part.split("\n")]


def test_page_after_a_change_shows_what_a_new_page_shows(show: Show, report: Report) -> None:
    # A short continuation, which every update ends with.
    html = altered(make_html(report.data, report.weights), "AHEAD = 80", "AHEAD = 5")
    found: dict[tuple[str, int], list[str]] = {}
    for panel in PANELS:
        tab = show(html, START)
        select_pair(tab, "#map")
        open_panel(tab, panel)
        for i, (selector, value, _, _, panels) in enumerate(CHANGES):
            perform(tab, selector, value)
            if panel in panels:
                found[panel, i] = on_show(tab)
    address = START
    for i, (selector, _, old, new, panels) in enumerate(CHANGES):
        address = address.replace(old, new)
        tab = show(html, address)
        if selector == TOKEN:
            perform(tab, TOKEN)
        elif selector != "#typed":  # typing clears the selection
            select_pair(tab, "#map")
        for panel in panels:
            open_panel(tab, panel)
            assert found[panel, i] == on_show(tab), (selector, panel)


# What the address holds: fields with values to set, and what is clicked.
FIELDS = {
    "#slider": ("0", "1", "2"),
    "#typed": ("so be it", "to be or not", "or be by it so be", "b\u00e9 so"),
    "#other": ("not to be or", "to be so it"),
    "#measure": ("induction", "previous_token", "ablation mean"),
    "#color": ("surprisal", "probability"),
    "#chosen": ("e", "t"),
}
LOOKED_AT = ".pick, [data-stage], .bar-button, .mlp .opens, .end, #text [data-t]"  # not computed
CLICKED = f"{LOOKED_AT}, .cutter, #ablate, #hide-key, #steps button, #edit-list button, #undo"
CHOOSE = """([selector, chance]) => {
  const all = [...document.querySelectorAll(selector)];
  const there = all.filter((each) => each.checkVisibility() && !each.disabled);
  there[Math.floor(chance * there.length)].click();
}"""


def act_at_random(tab: Any, random: Random, times: int, fields: list[str], clicked: str) -> None:
    """Half of the actions do not wait for the results of those before."""
    for _ in range(times):
        if random.random() < 0.3:
            field = random.choice(fields)
            tab.evaluate(AT_ONCE, [(field, random.choice(FIELDS[field]))])
        else:
            tab.evaluate(CHOOSE, [clicked, random.random()])
        if random.random() < 0.5:
            settle(tab)
    settle(tab)


@pytest.mark.parametrize("panel", ["lens", "scores", "examples", "circuit"])
def test_page_after_random_actions_shows_what_its_address_shows(
    show: Show, report: Report, panel: str
) -> None:
    """A panel is open during the last ones, after which nothing is computed again: each draws all
    that depends on it. The panels `alone` and `patch` keep what was chosen or filled."""
    random = Random(panel)
    html = altered(make_html(report.data, report.weights), "AHEAD = 80", "AHEAD = 5")
    tab = show(html)
    act_at_random(tab, random, 20, [*FIELDS], f"{CLICKED}, .stream, #more button, #reset, #big")
    if tab.get_attribute("body", "data-big"):
        perform(tab, "#small")
    if tab.get_attribute(f"#show-{panel}", "aria-pressed") == "false":
        perform(tab, f"#show-{panel}")
    act_at_random(tab, random, 10, ["#measure", "#color", "#chosen"], LOOKED_AT)
    tab.evaluate("document.activeElement.blur()")
    tab.evaluate("new Promise((resolve) => setTimeout(resolve, 400))")
    address = wait_for_address(tab, f"panel={panel}")
    found, new = on_show(tab), on_show(show(html, address))
    apart = [(a, b) for a, b in zip(found, new, strict=False) if a != b]
    assert not apart and len(found) == len(new), (address, apart[:3])


def test_interrupted_computations_leave_nothing_stale(show: Show, report: Report) -> None:
    """Events interrupt every computation, however short. The changes do not wait for results."""
    html = make_html(report.data, report.weights)
    tab = show(altered(html, "performance.now() - breath > 8", "true"))
    for i, text in enumerate(("so be it to", "so be", "or be it so", "or not\u00e9") * 3):
        changes = [("#typed", text), ("#slider", str(i % 3)), ("#other", text[::-1])]
        clicks = "#show-lens", ".pick", "#ablate", "#show-patch", "#write-one", ".mlp .opens"
        tab.evaluate(AT_ONCE, changes + [(selector, None) for selector in clicks])
    last = [
        ("#steps button + button", None),
        ("#ablate", None),
        ("#other", "not po be or"),
        ("#typed", "not to be or"),
    ]
    tab.evaluate(AT_ONCE, last)
    settle(tab)
    address = wait_for_address(tab, "not+to+be+or")
    found = on_show(tab)
    assert not tab.is_visible("#trouble") and found == on_show(show(address=address))
