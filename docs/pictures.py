"""Take the pictures of README.md and docs/ from the page of a run.

python -m docs.pictures runs/two-layers/report.html     of induction.yaml
python -m docs.pictures runs/modular/report.html        of another task: one still
python -m docs.pictures runs/default/report.html L1H1   of the default: the head of line_end.md
python -m docs.pictures heads.txt                       of what benchmarks.heads printed: heads.svg

`live.gif` shows the slider dragged through training under a typed text, and `line_end.gif` a key
that is moved. The others are stills; of induction, at steps chosen by the induction score of the
best head.
"""

import importlib
import io
import json
import sys
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.browser import ACT, DONE, open_report, start_browser
from benchmarks.page import find_report
from common.errors import UserError, command

FOLDER = Path(__file__).parent
WORD = "UNCOPYRIGHTABLE"  # no letter twice
SCORES = """JSON.parse(document.getElementById("data").textContent)
  .snapshots.map((each) => Math.max(...each.scores.induction))"""
TASK = "JSON.parse(document.getElementById('data').textContent).run.config.data.source"
HIDE = "(ids) => ids.forEach((id) => { document.querySelector(id).hidden = true; })"
LINES = """A list of words is read from left to right, and each of them is added
to the line as long as there is room for it. If the next word is much
too long for what is left of the line, a newline is written instead, and then the word begins the \
next line"""
MOVED = 20  # positions
NONE_YET, FORMED = 0.15, 0.5  # maximum and minimum induction score, before and after it forms


def show(tab: Any, snapshot: int) -> None:
    """Move the slider to a snapshot, and wait until everything is computed."""
    tab.evaluate(ACT, ["snapshot", "slider", str(snapshot)])
    tab.wait_for_selector(DONE)


def take_stills(browser: Any, page: Path, scores: list[float]) -> None:
    """Show the page with its default text, then its heads alone, before and after they form, and
    the selected head from the weights."""
    tab = open_report(browser, page, viewport={"width": 1440, "height": 900})
    tab.screenshot(path=FOLDER / "report.png")
    tab.evaluate(HIDE, ["header", ".column", "#steps-section", "#more"])
    tab.evaluate("live.style.gridTemplateColumns = '1fr 1fr'")
    tab.set_viewport_size({"width": 1200, "height": 812})
    show(tab, max(i for i, score in enumerate(scores) if score <= NONE_YET))
    bottom = tab.evaluate("live.getBoundingClientRect().bottom + 8")
    part = {"x": 0, "y": 0, "width": 1200, "height": bottom}
    tab.screenshot(path=FOLDER / "induction_before.png", clip=part)
    show(tab, min(i for i, score in enumerate(scores) if score >= FORMED))
    tab.screenshot(path=FOLDER / "induction_after.png", clip=part)
    tab = open_report(browser, page, "#panel=alone", viewport={"width": 1440, "height": 900})
    tab.locator("#alone-section figure").first.screenshot(path=FOLDER / "induction_weights.png")


def film(browser: Any, page: Path, scores: list[float], image: Any) -> None:
    """Record a GIF of the training, with a text that repeats a word."""
    size, scale = {"width": 1100, "height": 800}, 900 / 1100
    tab = open_report(browser, page, viewport=size, device_scale_factor=scale)
    tab.evaluate(HIDE, ["header", "#steps-section", "#more"])
    tab.evaluate(ACT, ["snapshot", "typed", 2 * WORD])
    tab.keyboard.press("2")  # the step that shows attention
    show(tab, 0)
    bottom, frames = tab.evaluate("live.getBoundingClientRect().bottom + 8"), []
    for snapshot in range(len(scores)):
        show(tab, snapshot)
        picture = tab.screenshot(clip={"x": 0, "y": 0, "width": 1100, "height": bottom})
        frames.append(image.open(io.BytesIO(picture)).convert("RGB"))
    durations = [150 if score <= NONE_YET else 450 for score in scores]
    durations[0], durations[-1] = 800, 3000
    save_film(frames, durations, "live.gif", image)


def save_film(frames: list[Any], durations: list[int], name: str, image: Any) -> None:
    """Write frames as a GIF, with colors chosen from a few of them."""
    some = frames[::5]
    width, height = some[0].size
    strip = image.new("RGB", (width, len(some) * height))
    for i, frame in enumerate(some):
        strip.paste(frame, (0, i * height))
    palette = strip.quantize(256, image.Quantize.MAXCOVERAGE, kmeans=3)
    first, *others = (frame.quantize(palette=palette, dither=0) for frame in frames)
    path = FOLDER / name
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


def open_lines(browser: Any, page: Path, head: str, edits: dict[str, Any]) -> Any:
    """Open the page with the probability of a newline after each token of a text that the manual
    does not contain. A row of the picture is a line of the text."""
    newline = open_report(browser, page).evaluate("glassgpt.vocab.indexOf('\\n')")
    shown = {"text": LINES, "head": head, "color": "probability", "token": newline} | edits
    size, address = {"width": 1100, "height": 900}, f"#{urlencode(shown)}"
    tab = open_report(browser, page, address, viewport=size)
    tab.evaluate(HIDE, ["header", "#network-section", "#next-section", "#steps-section", "#more"])
    return tab


def take_line_ends(browser: Any, page: Path, head: str) -> None:
    """Show the probability of a newline, and the map of a head; then the probability with the last
    newline's key moved in this head."""
    last = LINES.rindex("\n")
    for edits, pictures in (
        ({}, {"line_end": "#text-section", "line_end_head": "#head-section"}),
        ({"edit": f"move@{last}/{head}={MOVED}", "at": last}, {"line_end_moved": "#text-section"}),
    ):
        tab = open_lines(browser, page, head, edits)
        tab.evaluate("live.style.gridTemplateColumns = '30rem 1fr'")
        for name, section in pictures.items():
            tab.locator(section).screenshot(path=FOLDER / f"{name}.png")


def film_line_end(browser: Any, page: Path, head: str, image: Any) -> None:
    """Record a GIF of the last newline's key moved later, and earlier."""
    tab = open_lines(browser, page, head, {"at": LINES.rindex("\n")})
    tab.evaluate(HIDE, ["#typed", "#text-note"])
    tab.evaluate("chances.style.gridColumn = '1 / -1'")
    moves = [*range(0, MOVED, 2), *range(MOVED, -MOVED, -2), *range(-MOVED, 0, 2)]
    frames = []
    for move in moves:
        tab.evaluate(ACT, ["snapshot", "key-by", str(move)])
        tab.wait_for_selector(DONE)
        frames.append(
            image.open(io.BytesIO(tab.locator("#text-section").screenshot())).convert("RGB")
        )
    durations = [1500 if move in (0, -MOVED, MOVED) else 120 for move in moves]
    save_film(frames, durations, "line_end.gif", image)


def draw_heads(rows: list[Any]) -> str:
    """Return a picture, in SVG, of the jobs that some head has in three of four seeds or more: in
    each layer a circle whose area is the mean number of heads, and the steps of the first
    snapshots that have them."""
    seeds = int(rows[0]["seeds"].split()[-1])
    rows = [row for row in rows if len(row["heads"]) >= 0.75 * seeds]
    rows.sort(key=lambda row: (row["job"].split()[0], -sum(row["heads"])))
    layers = sorted({each.split(":")[0] for row in rows for each in row["layers"].split(", ")})
    left, apart, high = 330, 70, 26
    right = left + apart * len(layers)
    lines = [
        f'<text x="{left + apart * i}" y="18" text-anchor="middle">{layer}</text>'
        for i, layer in enumerate(layers)
    ]
    lines += [
        f'<text x="{right}" y="18">seeds</text><text x="{right + 80}" y="18">from step</text>'
    ]
    for number, row in enumerate(rows, start=1):
        y, steps = 18 + high * number, sorted({int(step) for step in row["from_step"]})
        lines.append(f'<text x="8" y="{y}">{escape(row["job"])}</text>')
        for each in row["layers"].split(", "):
            layer, count = each.split(": ")
            radius = 6 * (int(count) / seeds) ** 0.5
            x = left + apart * layers.index(layer)
            lines.append(f'<circle cx="{x}" cy="{y - 5}" r="{radius:.1f}" fill="#2a6fb0"/>')
        span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        lines.append(f'<text x="{right}" y="{y}">{row["seeds"]}</text>')
        lines.append(f'<text x="{right + 80}" y="{y}">{span}</text>')
    size = f'width="{right + 180}" height="{high * (len(rows) + 1) + 8}"'
    font = 'font-family="sans-serif" font-size="14"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
            '<rect width="100%" height="100%" fill="white"/>',
            *lines,
            "</svg>\n",
        ]
    )


@command
def main(argv: list[str]) -> int:
    """Take all pictures."""
    if argv and argv[0].endswith(".txt"):
        *_, printed = Path(argv[0]).read_text("utf-8").splitlines()
        picture = draw_heads(json.loads(printed)["rows"])
        (FOLDER / "heads.svg").write_text(picture, "utf-8", newline="\n")
        return 0
    page = find_report(argv[0] if argv else None)
    image = importlib.import_module("PIL.Image")  # pip install pillow
    with start_browser() as browser:
        tab = open_report(browser, page, viewport={"width": 1280, "height": 680})
        if (task := tab.evaluate(TASK)) == "pydocs":
            take_line_ends(browser, page, argv[1])
            film_line_end(browser, page, argv[1], image)
            return 0
        if task != "repeat":
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
