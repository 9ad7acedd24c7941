"""The demo pages open from disk, and their snapshots reproduce PyTorch's logits."""

from typing import Any

import pytest

from page.html import make_playground
from tests.browser import DONE
from tests.conftest import ROOT

DEMO = ROOT / "docs/demo"


def test_playground_is_the_one_of_this_version() -> None:
    page = (DEMO / "playground.html").read_text(encoding="utf-8")
    assert page == make_playground(), "run python -m docs.demo"
    assert len(page.encode()) < 600_000


@pytest.mark.parametrize("name", ["induction.html", "manual.html"])
def test_demo_page_reproduces_pytorch(name: str, browser: Any) -> None:
    assert (DEMO / name).stat().st_size <= 3e6
    tab = browser.new_context(offline=True).new_page()
    tab.goto((DEMO / "index.html").as_uri())
    tab.click(f"a[href='{name}']")
    last = tab.wait_for_selector(DONE) and int(tab.get_attribute("#slider", "max"))
    assert last >= 15
    for snapshot in (0, last // 2, last):
        tab.fill("#slider", str(snapshot))
        tab.wait_for_selector(DONE)
        assert tab.is_visible("#live")  # hidden if the logits differ from PyTorch's
    if name == "induction.html":  # the previous-token head writes its keys
        tab.click("#show-circuit")
        tab.select_option("#circuit-section select >> nth=0", "attention score")
        node = tab.get_attribute(".node[aria-label^=L0H]", "aria-label")
        scores = tab.evaluate("JSON.parse(data.textContent).snapshots.at(-1).scores.previous_token")
        assert node.startswith(f"L0H{scores.index(max(scores))} ")
    tab.context.close()
