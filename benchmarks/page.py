"""How soon the report page answers: opened, typed into, dragged through training, patched.

python -m benchmarks.page runs/my-run/report.html

In headless Chromium, from the disk, without a network. Each row says until when: `computed` is the
engine alone, asked through the page's `glassgpt` (for one token, so that no list of logits is
made); `drawn` is from the input event until the maps are drawn; `on screen` is until the browser
makes the frame that shows them. A budget stands beside what it was set for, on a quiet machine.
"""

import importlib
import math
import random
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from benchmarks.common import print_json, processor
from common.errors import UserError, command
from common.fields import STRICT, Count
from common.tables import print_table
from configs.load import build, read_command_line
from lens.report.page import MARK

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("no-sandbox", "disable-gpu", "no-first-run", "disable-sync",
         "disable-background-networking", "disable-component-update")  # fmt: skip
DONE = "body[data-busy=no]"
PATCHED = 64  # tokens of the text whose patching grid is filled; fewer where the context has fewer

# In milliseconds, for layers, width and context.
BUDGETS: dict[tuple[int, int, int], dict[tuple[str, str], float]] = {
    (4, 128, 128): {
        ("page opened", "drawn"): 500,
        ("new text", "computed"): 37,
        ("edit in the middle", "computed"): 19,
        ("character appended", "computed"): 0.6,
        ("snapshot switched", "computed"): 40,
        ("patching grid", "filled"): 1000,
    },
    (6, 384, 256): {("new text", "computed"): 1400, ("character appended", "computed"): 8},
}

# `when` promises the times at which the body's data-<name> is next set, and the frame after that.
CLOCK = """
globalThis.when = (name) => new Promise((done) => {
  new MutationObserver((_, observer) => {
    const set = performance.now();
    if (!(name in document.body.dataset)) return;
    observer.disconnect();
    requestAnimationFrame(() => done([set, performance.now()]));
  }).observe(document, { subtree: true, attributeFilter: [`data-${name}`] });
});
globalThis.opened = when("snapshot");
"""
COMPUTE = """([text, options]) => {
  const began = performance.now();
  glassgpt.generate(text, 1, options);
  return performance.now() - began;
}"""
ACT = """async ([name, id, value]) => {
  const shown = when(name);
  const place = document.getElementById(id);
  const began = performance.now();
  if (value === null) place.click();
  else {
    place.value = value;
    place.dispatchEvent(new Event("input"));
  }
  return (await shown).map((time) => time - began);
}"""

Found = dict[tuple[str, str], list[float]]


@dataclass(frozen=True, config=STRICT)
class Options:
    """What to measure"""

    repetitions: Count = 20
    """Of each row, after one that is not counted."""


def find_report(word: str | None) -> Path:
    """The file that is named.

    Raises:
        UserError: when it is not a report.
    """
    if word is None:
        raise UserError("which page? Name a file that python study.py report has written")
    path = Path(word)
    with path.open("rb") as file:
        if file.read(len(MARK)) != MARK.encode():
            raise UserError(f"{path} is not a report; python study.py report writes one")
    return path


@contextmanager
def start_browser() -> Iterator[Any]:
    """Chromium without a window, as playwright drives it.

    Raises:
        UserError: when one of the two is not installed.
    """
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        raise UserError("this drives a browser, for which: pip install playwright") from None
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise UserError(f"this needs a browser; install one of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=program, args=[f"--{f}" for f in FLAGS])


def open_report(browser: Any, path: Path, **look: Any) -> Any:
    """A report in a tab of its own, when it has computed all that it does unasked.

    Raises:
        UserError: when it has no model, as those of older versions.
    """
    tab = browser.new_context(offline=True, **look).new_page()
    tab.set_default_timeout(120_000)
    tab.add_init_script(CLOCK)
    tab.goto(path.resolve().as_uri())
    if tab.evaluate("typeof glassgpt") == "undefined":
        raise UserError(f"{path} has no model; write it anew with python study.py report")
    tab.wait_for_selector(DONE)
    return tab


def measure(tab: Any, repetition: int, found: Found) -> None:
    """A new text, changes of it, another snapshot, a patching grid."""
    vocab, steps, size = tab.evaluate("[glassgpt.vocab, glassgpt.steps, glassgpt.config]")
    letters = [c for c in vocab if len(c) == 1 and c.isascii() and c.isprintable()]
    if len(letters) < 2:
        raise UserError("the model knows fewer than two characters of ASCII to write a text of")
    last = len(steps) - 1

    def answer(what: str, text: str, snapshot: int = last, slide: bool = False) -> None:
        """By the engine, and by the page from what is typed or slid; counted under a name."""
        times = [tab.evaluate(COMPUTE, [text, {"step": steps[snapshot]}])]
        way = ["slider", str(snapshot)] if slide else ["typed", text]
        times += tab.evaluate(ACT, ["snapshot", *way])
        tab.wait_for_selector(DONE)
        for until, time in zip(("computed", "drawn", "on screen"), times, strict=True):
            found[what, until].append(time)

    text = "".join(random.choices(letters, k=size["block_size"]))
    middle = len(text) // 2
    other = random.choice([c for c in letters if c != text[middle]])
    answer("new text", text)
    answer("edit in the middle", text[:middle] + other + text[middle + 1 :])
    answer("", text[:-1])
    answer("character appended", text)
    if last:
        answer("snapshot switched", text, repetition % last, slide=True)
        answer("", text, last, slide=True)
    answer("", text[:PATCHED])
    found["patching grid", "filled"].append(tab.evaluate(ACT, ["filled", "fill", None])[0])


@command
def main(argv: list[str]) -> int:
    """Measure each row and print it beside its budget."""
    usage = "python -m benchmarks.page PAGE.html [--flag VALUE ...]"
    about = "Measure how soon a report page answers."
    word, values = read_command_line({"": Options}, argv, usage, about)
    options = build(Options, values[""])
    path = find_report(word)
    random.seed(1337)
    found: Found = defaultdict(list)
    with start_browser() as browser:
        tab = open_report(browser, path)
        for repetition in range(options.repetitions + 1):
            fresh = open_report(browser, path)
            for until, time in zip(("drawn", "on screen"), fresh.evaluate("opened"), strict=True):
                found["page opened", until].append(time)
            fresh.context.close()
            measure(tab, repetition, found)
            print(f"repetition {repetition} of {options.repetitions}", file=sys.stderr)
        size, snapshots = tab.evaluate("[glassgpt.config, glassgpt.steps.length]")
        facts = {"processor": processor(), "browser": f"Chromium {browser.version}"}
    layers, width, context = size["n_layer"], size["n_embd"], size["block_size"]
    print(
        f"{facts['processor']}, {facts['browser']}; {path}: {path.stat().st_size / 1e6:.1f} MB, "
        f"{layers} layers x {width} wide, context {context}, snapshots: {snapshots}"
    )
    rows, results = [["what", "until", "median ms", "p95 ms", "budget"]], []
    for (what, until), (_, *times) in found.items():
        if not what:
            continue
        median, p95 = statistics.median(times), sorted(times)[math.ceil(0.95 * len(times)) - 1]
        budget = BUDGETS.get((layers, width, context), {}).get((what, until))
        beside = "" if budget is None else f"{budget:,g}"
        rows.append([what, until, f"{median:,.1f}", f"{p95:,.1f}", beside])
        result = {"what": what, "until": until, "budget_ms": budget}
        results.append(result | {"ms": [round(time, 1) for time in times]})
    print_table(rows, words=2)
    print_json({"benchmark": "page", "machine": facts, "model": size, "rows": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
