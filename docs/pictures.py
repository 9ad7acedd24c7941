"""Take the pictures of README.md and docs/ from the page of a run.

python -m docs.pictures runs/two-layers/report.html   of induction.yaml
python -m docs.pictures runs/modular/report.html      of another task: one still

`live.gif` shows the slider dragged through training under a typed text. The others are stills, at
steps chosen by the induction score of the best head.
"""

import importlib
import io
import sys
from pathlib import Path
from typing import Any

from benchmarks.page import find_report
from common.errors import UserError, command
from tests.browser import ACT, DONE, open_report, start_browser

FOLDER = Path(__file__).parent
WORD = "UNCOPYRIGHTABLE"  # no letter twice
SCORES = """JSON.parse(document.getElementById("data").textContent)
  .snapshots.map((each) => Math.max(...each.scores.induction))"""
TASK = "JSON.parse(document.getElementById('data').textContent).run.config.data.source"
HIDE = "(ids) => ids.forEach((id) => { document.querySelector(id).hidden = true; })"
NONE_YET, FORMED = 0.15, 0.5  # maximum and minimum induction score, before and after it forms


def show(tab: Any, snapshot: int) -> None:
    """Move the slider to a snapshot, and wait until everything is computed."""
    tab.evaluate(ACT, ["snapshot", "slider", str(snapshot)])
    tab.wait_for_selector(DONE)


def take_stills(browser: Any, page: Path, scores: list[float]) -> None:
    """Show the page with its default text, then its heads alone, before and after they form."""
    tab = open_report(browser, page, viewport={"width": 1440, "height": 900})
    tab.screenshot(path=FOLDER / "report.png")
    tab.evaluate(HIDE, ["header", ".column", "#steps-section", "#more"])
    tab.evaluate("live.style.gridTemplateColumns = '1fr 1fr'")
    tab.set_viewport_size({"width": 1200, "height": 812})
    show(tab, max(i for i, score in enumerate(scores) if score <= NONE_YET))
    tab.screenshot(path=FOLDER / "induction_before.png")
    show(tab, min(i for i, score in enumerate(scores) if score >= FORMED))
    tab.screenshot(path=FOLDER / "induction_after.png")


def film(browser: Any, page: Path, scores: list[float], image: Any) -> None:
    """Record a GIF of the training, with a text that repeats a word."""
    look = {"viewport": {"width": 1100, "height": 640}, "device_scale_factor": 900 / 1100}
    tab = open_report(browser, page, **look)
    tab.evaluate(HIDE, ["header", "#steps-section", "#more"])
    tab.evaluate(ACT, ["snapshot", "typed", 2 * WORD])
    tab.keyboard.press("2")  # the step that shows attention
    frames = []
    for snapshot in range(len(scores)):
        show(tab, snapshot)
        frames.append(image.open(io.BytesIO(tab.screenshot())).convert("RGB"))
    durations = [150 if score <= NONE_YET else 450 for score in scores]
    durations[0], durations[-1] = 800, 3000
    some = frames[::5]  # frames from which the colors are chosen
    width, height = some[0].size
    strip = image.new("RGB", (width, len(some) * height))
    for i, frame in enumerate(some):
        strip.paste(frame, (0, i * height))
    palette = strip.quantize(256, image.Quantize.MAXCOVERAGE, kmeans=3)
    first, *others = (frame.quantize(palette=palette, dither=0) for frame in frames)
    path = FOLDER / "live.gif"
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


@command
def main(argv: list[str]) -> int:
    """Take all pictures."""
    page = find_report(argv[0] if argv else None)
    image = importlib.import_module("PIL.Image")  # pip install pillow
    with start_browser() as browser:
        tab = open_report(browser, page, viewport={"width": 1280, "height": 680})
        if (task := tab.evaluate(TASK)) != "repeat":
            tab.screenshot(path=FOLDER / f"task_{task}.png")
            return 0
        scores = open_report(browser, page).evaluate(SCORES)
        if min(scores) > NONE_YET or max(scores) < FORMED:
            raise UserError(f"{page} shows no induction; train configs/tasks/induction.yaml")
        take_stills(browser, page, scores)
        film(browser, page, scores, image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
