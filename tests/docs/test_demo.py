"""The demo pages open from disk, offline; what each shows is computed as in this version."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser import DONE
from docs.demo import __main__ as demo
from tests.conftest import ROOT

DEMO = ROOT / "docs/demo"
CELLS = "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
WORKFLOW = ROOT / ".github/workflows/pages.yml"


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """Yield a tab without a network."""
    with browser.new_context(offline=True) as context:
        yield context.new_page()


def test_index_links_to_pages_that_exist_and_names_what_is_published() -> None:
    index = (DEMO / "index.html").read_text(encoding="utf-8")
    links = re.findall('href="(.*?)[#"]', index)
    made = re.findall(r"--out docs/demo/(\S+)", WORKFLOW.read_text(encoding="utf-8"))
    assert made == ["induction.html"] and made[0] in index
    assert links == ["stories.html", "playground.html", "manual.html"]
    assert all((DEMO / link).exists() for link in links)


def open_and_train(tab: Any, folder: Path) -> tuple[list[str], float]:
    """Train a few steps; return the tasks that can be chosen, and the last loss."""
    tab.goto((folder / "playground.html").as_uri() + "?n_embd=16&workers=1")
    tab.wait_for_selector(DONE)
    tasks = tab.locator("#set-task option").all_inner_texts()
    found = tab.evaluate("glassgpt.train(30)")
    assert found["step"] == 30 and not tab.is_visible("#trouble")
    return tasks, found["loss"]


def test_playground_trains_as_the_one_that_the_command_makes(
    tab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If not, run python -m docs.demo."""
    monkeypatch.setattr(demo, "FOLDER", tmp_path)
    assert demo.main() == 0
    assert (DEMO / "playground.html").stat().st_size < 600_000
    old, new = (open_and_train(tab, folder) for folder in (DEMO, tmp_path))
    assert old[0] == new[0] and old[1] == pytest.approx(new[1], rel=1e-6)


def open_from_index(tab: Any, page: str) -> None:
    tab.goto((DEMO / "index.html").as_uri())
    tab.click(f"a[href^='{page}']")
    tab.wait_for_selector(DONE)


@pytest.mark.parametrize(("page", "largest"), [("stories.html", 1e6), ("manual.html", 1.5e6)])
def test_reports_reproduce_pytorch(tab: Any, page: str, largest: float) -> None:
    assert (DEMO / page).stat().st_size <= largest
    open_from_index(tab, page)
    last = int(tab.get_attribute("#slider", "max"))
    assert last >= 2
    for snapshot in (0, last // 2, last):
        tab.fill("#slider", str(snapshot))
        tab.wait_for_selector(DONE)
        assert tab.is_visible("#live")  # hidden if the logits differ from PyTorch's


def test_stories_open_on_a_verb_that_attends_to_its_name(tab: Any) -> None:
    """The index says so, and that another name, or no head, changes what comes next."""
    open_from_index(tab, "stories.html")
    assert tab.locator(".pick").count() == 1 and tab.input_value("#typed") == demo.STORY
    assert "'follows' attends most to k 25 'Eva'" in tab.inner_text("#head-section")
    assert demo.STORY.split()[25] == "Eva"
    for text in (demo.STORY, demo.STORY.replace("Eva", "Leo")):
        tab.fill("#typed", text)
        tab.wait_for_selector(DONE)
        name, p, *_ = tab.eval_on_selector_all("#next tr", CELLS)[0]
        assert name == text.split()[25] and float(p) > 0.9
    tab.click("#ablate")
    tab.wait_for_selector(DONE)
    rows = tab.eval_on_selector_all("#next tr", CELLS)
    assert all(float(now) < 0.3 for _, now, *_ in rows[1:])


def test_manual_opens_on_a_line_that_ends_later(tab: Any) -> None:
    """The index links to a moved key. Without it, the line ends as far from its beginning as in the
    manual."""
    open_from_index(tab, "manual.html")
    assert tab.input_value("#key-by") == "20"  # the key is selected
    text = tab.input_value("#typed")
    start = text.rindex("\n") + 1
    ended: dict[str, int] = {}  # column at which a newline is likely
    for end in re.finditer(" ", text[start:]):
        tab.locator("#text .token").nth(start + end.start() - 1).click()
        rows = tab.eval_on_selector_all("#next tr", CELLS)
        for _, now, before, *_ in (row for row in rows if row[0] == "↵"):
            for name, p in {"now": now, "before": before}.items():
                if float(p) > 0.3:
                    ended.setdefault(name, end.start())
    # By 20, as far as the ends of words show it.
    assert 60 <= ended["before"] <= 70 and 10 <= ended["now"] - ended["before"] <= 30
