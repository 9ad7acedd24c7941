"""Time the page: what it computes and draws of a run, and how fast it trains.

python -m benchmarks.page runs/my-run/report.html    opening it, typing, the slider, patching
python -m benchmarks.page                            a step of the playground against PyTorch, and
                                                     training until each task is learned
python -m benchmarks.page repeat --workers 2         the tasks that have this in their name

The page is opened from disk in headless Chromium, offline. In a report, `computed` is the time in
which the engine alone generates one token, and `drawn` the time from the input event until the maps
are drawn. The playground trains at its fastest pace, while it draws; `frames_ms` is the 95th
percentile of the time between two frames. The step is that of two layers, 64 wide, on 32 sequences
of 64 tokens, in float32; PyTorch has as many threads as the page has workers.
"""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from benchmarks.browser import ACT, DONE, open_report, start_browser
from common.errors import UserError, command
from configs.config import STRICT, Count, Natural
from configs.load import read_config
from model.gpt import GPT
from page.html import fill_page, to_json
from page.playground import SETTINGS, playground_data
from training.optim import make_optimizer
from training.step import train_step

PATCHED = 64  # tokens of the text whose patching grid is filled
LONGER = {
    "data": {"task_kinds": 64, "task_length": 32},
    "model": {"n_embd": 64, "block_size": 64},
}
LEVELS = {"sink": 0.97, "modular": 0.95, "brackets": 0.99}  # answers right; of other tasks, 0.98
MOST = 2000  # steps, after which a task counts as not learned
TIMED = 50  # steps

COMPUTE = """([text, step]) => {
  const began = performance.now();
  glassgpt.generate(text, 1, { step });
  return performance.now() - began;
}"""
# Learned, as in benchmarks/zoo.py: the loss of a second copy is below 0.3 of the first's; or it is
# within 0.01 of in-context bigrams; or `level` of the answers are right, and, for `sink`, the only
# head has 0.8 of its weight on the match and half of it on the first token.
TRAIN = """async ([task, level, most]) => {
  const { baselines } = glassgpt, frames = [], step = () => glassgpt.newest().step;
  const isLearned = () => {
    const { copying, lens_loss, accuracy, scores } = glassgpt.newest();
    if (task === "repeat") return copying.second < 0.3 * copying.first;
    if (task === "markov") return lens_loss.at(-1) < baselines["in-context bigram"] + 0.01;
    return accuracy[0] >= level && (task !== "sink" ||
      (scores.weight_on_match[0] >= 0.8 && scores.first_token[0] >= 0.5));
  };
  document.getElementById("train").click();
  const began = performance.now();
  await new Promise((resolve) => requestAnimationFrame(function draw(now) {
    frames.push(now);
    if (isLearned() || step() >= most) resolve();
    else requestAnimationFrame(draw);
  }));
  const times = frames.slice(1).map((at, i) => at - frames[i]).sort((a, b) => a - b);
  return { steps: step(), seconds: (performance.now() - began) / 1000,
    frames_ms: times[Math.floor(0.95 * times.length)] };
}"""
STEP = """async (count) => {
  await glassgpt.train(5);
  const began = performance.now();
  await glassgpt.train(count);
  return (performance.now() - began) / count;
}"""


@dataclass(frozen=True, config=STRICT)
class Options:
    """The speed of the page"""

    repetitions: Count = 3
    """Number of measurements of each row; in the playground, each with another seed."""

    workers: Count = 1
    """Number of workers of the playground."""

    first_seed: Natural = 1
    """The seed of the first measurement in the playground; the others have the next ones."""


# --- a report ------------------------------------------------------------------------------------


def find_report(word: str | None) -> Path:
    """Return the path of the report."""
    if word is None or not Path(word).is_file():
        raise UserError("no report given; name the file that python study.py report wrote")
    return Path(word)


def time_report(browser: Any, path: Path, repetitions: int) -> list[frame.Row]:
    """Time each action in a report, after one warmup measurement."""
    tab = open_report(browser, path)
    rival = partial(use_report, browser, path, tab, count())
    (found,) = frame.alternate({"page": rival}, repetitions + 1)
    del found["by"]
    return [{"what": what, "milliseconds": times[1:]} for what, times in found.items()]


def use_report(browser: Any, path: Path, tab: Any, repetitions: Iterator[int]) -> frame.Row:
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


# --- the playground ------------------------------------------------------------------------------


def time_training(browser: Any, word: str | None, options: Options) -> list[frame.Row]:
    """Time a step, and each task until it is learned."""
    longer_repeat = "repeat, 64 tokens, 64 wide"
    cases = [longer_repeat, *(task for task in SETTINGS if task != "text")]
    tasks = frame.containing(word, cases)
    with tempfile.TemporaryDirectory() as folder:
        usual = write_page(Path(folder, "playground.html"), {})
        longer = write_page(Path(folder, "longer.html"), LONGER)
        run = partial(run_page, browser)
        fixed = {"workers": options.workers, "pace": "fastest"}

        def learn(case: str, seeds: Iterator[int]) -> frame.Row:
            page, task = longer if case == longer_repeat else usual, case.split(",")[0]
            setting = fixed | {"task": task, "seed": next(seeds), "max_steps": MOST}
            return dict(run(page, setting, TRAIN, [task, LEVELS.get(task, 0.98), MOST]))

        rivals = {
            "a step of the page": lambda: {"ms": run(longer, fixed, STEP, TIMED)},
            "in PyTorch": lambda: {"ms": frame.in_fresh_process(pytorch_step, options.workers)},
        }
        rows = frame.alternate(rivals, options.repetitions)
        for case in tasks:
            seeds = count(options.first_seed)
            rows += frame.alternate({case: partial(learn, case, seeds)}, options.repetitions)
    return rows


def write_page(path: Path, changes: dict[str, Any]) -> Path:
    """Write the playground with changes of the task `repeat`, and return its path."""
    data = playground_data()
    for part, values in changes.items():
        data["tasks"]["repeat"][part] |= values
    path.write_text(fill_page("playground/main.js", to_json(data), []), encoding="utf-8")
    return path


def run_page(browser: Any, page: Path, setting: dict[str, Any], script: str, value: Any) -> Any:
    """Return what a script finds in a new tab with the playground."""
    with browser.new_context(offline=True) as context:
        tab = context.new_page()
        tab.set_default_timeout(600_000)
        tab.goto(f"{page.as_uri()}?{urlencode(setting)}")
        tab.wait_for_selector(DONE)
        return tab.evaluate(script, value)


def pytorch_step(threads: int) -> float:
    """Return the milliseconds of a step of the same model in PyTorch."""
    torch.set_num_threads(threads)
    config = read_config(LONGER, None, read_config(SETTINGS["repeat"], None))
    batch = torch.randint(64, (config.train.batch_size, config.model.block_size + 1))
    model = GPT(config.model, vocab_size=64)
    optimizer = make_optimizer(model, config.train)
    times = []
    for _ in range(TIMED):
        began = time.perf_counter()
        loss, _ = train_step(model, optimizer, batch, config.train, config.train.warmup_steps)
        loss.item()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


@command
def main(argv: list[str]) -> int:
    """Measure a report, if one is named, or else the playground."""
    options, word, _ = frame.read_options(Options, argv, "[PAGE.html | TASK]")
    random.seed(1337)
    machine: frame.Row = {"processor": frame.processor()}
    with start_browser() as browser:
        machine["Chromium"] = browser.version
        if word and word.endswith(".html"):
            path = find_report(word)
            machine["page_MB"] = round(path.stat().st_size / 1e6, 1)
            rows = time_report(browser, path, options.repetitions)
        else:
            rows = time_training(browser, word, options)
    frame.report("page", rows, machine=machine | {"workers": options.workers})
    return 0


if __name__ == "__main__":
    sys.exit(main())
