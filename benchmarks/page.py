"""Time the report page: opening it, typing, moving the slider, and filling the patching grid.

python -m benchmarks.page runs/my-run/report.html

The page is opened from disk in headless Chromium, offline. `computed` is the time in which the
engine alone generates one token; `drawn` is the time from the input event until the maps are drawn.
"""

import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from common.errors import UserError, command
from configs.config import STRICT, Count
from tests.browser import ACT, DONE, open_report, start_browser

PATCHED = 64  # tokens of the text whose patching grid is filled

COMPUTE = """([text, step]) => {
  const began = performance.now();
  glassgpt.generate(text, 1, { step });
  return performance.now() - began;
}"""


@dataclass(frozen=True, config=STRICT)
class Options:
    """Measure the speed of a report page"""

    repetitions: Count = 20
    """Number of measurements of each row, after one warmup measurement."""


def find_report(word: str | None) -> Path:
    """Return the path of the report."""
    if word is None or not Path(word).is_file():
        raise UserError("no report given; name the file that python study.py report wrote")
    return Path(word)


def measure(browser: Any, path: Path, tab: Any, repetitions: Iterator[int]) -> frame.Row:
    """Time, in milliseconds, a new text, edits of it, another snapshot, and a patching grid."""
    fresh = open_report(browser, path)
    found = {"page opened, drawn": fresh.evaluate("opened")}
    fresh.context.close()
    vocab, steps, T = tab.evaluate("[glassgpt.vocab, glassgpt.steps, glassgpt.config.block_size]")
    letters = [c for c in vocab if len(c) == 1 and c.isascii() and c.isprintable()]
    last = len(steps) - 1

    def answer(what: str, text: str, snapshot: int = last, slide: bool = False) -> None:
        found[f"{what}, computed"] = tab.evaluate(COMPUTE, [text, steps[snapshot]])
        way = ["slider", str(snapshot)] if slide else ["typed", text]
        found[f"{what}, drawn"] = tab.evaluate(ACT, ["snapshot", *way])
        tab.wait_for_selector(DONE)

    text = "".join(random.choices(letters, k=T))
    middle = len(text) // 2
    other = random.choice([c for c in letters if c != text[middle]])
    answer("new text", text)
    answer("edit in the middle", text[:middle] + other + text[middle + 1 :])
    answer("text restored, but for its end", text[:-1])
    answer("character appended", text)
    if last:
        answer("snapshot switched", text, next(repetitions) % last, slide=True)
        answer("last snapshot again", text, slide=True)
    answer("text cut", text[:PATCHED])
    found["patching grid, filled"] = tab.evaluate(ACT, ["filled", "show-patch", None])
    tab.click("#show-patch")  # close the panel while other rows are measured
    return found


def median_and_p95(values: Sequence[float]) -> str:
    """Return 'median (95th percentile)' of all values but the first."""
    _, *times = values
    p95 = sorted(times)[math.ceil(0.95 * len(times)) - 1]
    return f"{frame.show(statistics.median(times))} ({frame.show(p95)})"


@command
def main(argv: list[str]) -> int:
    """Measure each row."""
    options, word, _ = frame.read_options(Options, argv, "PAGE.html")
    path = find_report(word)
    random.seed(1337)
    with start_browser() as browser:
        tab = open_report(browser, path)
        rival = partial(measure, browser, path, tab, count())
        (found,) = frame.alternate({"page": rival}, options.repetitions + 1)
        machine = {
            "processor": frame.processor(),
            "Chromium": browser.version,
            "page_MB": round(path.stat().st_size / 1e6, 1),
        } | tab.evaluate("glassgpt.config")
    del found["by"]
    rows = [{"what": what, "milliseconds": times} for what, times in found.items()]
    frame.report("page", rows, median_and_p95, machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
