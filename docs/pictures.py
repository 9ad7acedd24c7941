"""Take the pictures of README.md and docs/induction.md, from the page of a run of induction.yaml.

python -m docs.pictures runs/two-layers/report.html

`live.gif` is the slider dragged through training under a text of ours; the others are stills, of
steps chosen by the induction score of the best head.
"""

import importlib
import io
import sys
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from benchmarks.page import ACT, DONE, find_report, open_report, start_browser
from common.errors import UserError, command
from common.fields import STRICT
from configs.load import build, read_command_line

WORD = "UNCOPYRIGHTABLE"  # no letter twice
SCORES = """JSON.parse(document.getElementById("data").textContent)
  .snapshots.map(({ scores }) => Math.max(...scores.induction))"""
HIDE = "(ids) => ids.forEach((id) => { document.querySelector(id).hidden = true; })"
NONE_YET, FORMED = 0.15, 0.5  # induction scores: at most, at least


@dataclass(frozen=True, config=STRICT)
class Options:
    """Where pictures go"""

    out: str = str(Path(__file__).parent)
    """A folder."""


def show(tab: Any, snapshot: int) -> None:
    """Drag the slider to a snapshot, and wait until all is computed."""
    tab.evaluate(ACT, ["snapshot", "slider", str(snapshot)])
    tab.wait_for_selector(DONE)


def take_stills(browser: Any, page: Path, scores: list[float], folder: Path) -> None:
    """The page with its shipped text; then its heads alone, before and after they form."""
    before = max(i for i, score in enumerate(scores) if score <= NONE_YET)
    formed = min(i for i, score in enumerate(scores) if score >= FORMED)
    tab = open_report(browser, page, viewport={"width": 1440, "height": 900})
    tab.evaluate("scrollTo(0, document.getElementById('live').offsetTop - bar.offsetHeight - 16)")
    tab.screenshot(path=folder / "report.png")
    tab.evaluate(HIDE, ["header", "#try", "#text-section"])
    tab.evaluate("live.style.rowGap = 0")
    tab.set_viewport_size({"width": 1200, "height": 812})
    for name, snapshot in (("before", before), ("after", formed)):
        show(tab, snapshot)
        tab.screenshot(path=folder / f"induction_{name}.png")
        print(f"induction_{name}.png: {tab.inner_text('#moment')}")


def film(browser: Any, page: Path, scores: list[float], path: Path, image: Any) -> None:
    """The whole of training under a word that is typed twice."""
    look = {"viewport": {"width": 1100, "height": 800}, "device_scale_factor": 900 / 1100}
    tab = open_report(browser, page, **look)
    tab.evaluate(HIDE, ["header", "#try", "#heads-section"])
    tab.evaluate(ACT, ["snapshot", "typed", 2 * WORD])
    frames = []
    for snapshot in range(len(scores)):
        show(tab, snapshot)
        frames.append(image.open(io.BytesIO(tab.screenshot())).convert("RGB"))
    durations = [150 if score <= NONE_YET else 450 for score in scores]
    durations[0], durations[-1] = 800, 3000
    some = frames[::5]  # whose colours those of all are
    width, height = some[0].size
    strip = image.new("RGB", (width, len(some) * height))
    for i, frame in enumerate(some):
        strip.paste(frame, (0, i * height))
    palette = strip.quantize(256, image.Quantize.MAXCOVERAGE, kmeans=3)
    first, *others = (frame.quantize(palette=palette, dither=0) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


@command
def main(argv: list[str]) -> int:
    """Take all of them."""
    usage = "python -m docs.pictures PAGE.html [--out FOLDER]"
    about = "Take the pictures of README.md and docs/induction.md from a run's page."
    word, values = read_command_line({"": Options}, argv, usage, about)
    page, folder = find_report(word), Path(build(Options, values[""]).out)
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError:
        raise UserError("this assembles pictures, for which: pip install pillow") from None
    with start_browser() as browser:
        tab = open_report(browser, page)
        scores, vocab = tab.evaluate(SCORES), tab.evaluate("glassgpt.vocab")
        if not (set(WORD) <= set(vocab) and min(scores) <= NONE_YET and max(scores) >= FORMED):
            raise UserError(f"{page} shows no induction; train configs/induction.yaml")
        take_stills(browser, page, scores, folder)
        film(browser, page, scores, folder / "live.gif", image)
    print(f"live.gif: {(folder / 'live.gif').stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
