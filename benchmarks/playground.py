"""Time the playground: a step against PyTorch, and training until each task is learned.

python -m benchmarks.playground                   all tasks, 7 minutes on two cores
python -m benchmarks.playground repeat            the tasks that have this in their name
python -m benchmarks.playground --workers 2

The page trains in headless Chromium, offline, at its fastest pace, while it draws. `frames_ms` is
the 95th percentile of the time between two frames. The step is that of two layers, 64 wide, on 32
sequences of 64 tokens, in float32; PyTorch has as many threads as the page has workers.
"""

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
from common.errors import command
from configs.config import STRICT, Count, Natural
from configs.load import read_config
from data.tasks import TASKS
from model.gpt import GPT
from page.html import fill_page, to_json
from page.playground import SETTINGS, playground_data
from tests.browser import DONE, start_browser
from training.optim import make_optimizer
from training.step import train_step

CASES = ["repeat", "repeat, 64 tokens, 64 wide", *[task for task in TASKS if task != "repeat"]]
LONGER = {
    "data": {"task_kinds": 64, "task_length": 32},
    "model": {"n_embd": 64, "block_size": 64},
}
LEVELS = {"sink": 0.97, "modular": 0.95, "brackets": 0.99}  # answers right; of other tasks, 0.98
MOST = 2000  # steps, after which a task counts as not learned
TIMED = 50  # steps

# Learned, as in benchmarks/zoo.py: the loss of a second copy is below 0.3 of the first's; or it is
# within 0.01 of in-context bigrams; or `level` of the answers are right, and, for `sink`, the only
# head has 0.8 of its weight on the match and half of it on the first token.
TRAIN = """async ([task, level, most]) => {
  const { snapshots, baselines } = document.getElementById("data").made, frames = [];
  const step = () => snapshots.at(-1).step;
  const isLearned = () => {
    const { copying, lens_loss, accuracy, scores } = snapshots.at(-1);
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
    """The speed of training in the page"""

    workers: Count = 1
    """Number of workers of the page."""

    repetitions: Count = 3
    """Number of measurements, each with another seed."""

    first_seed: Natural = 1
    """The seed of the first measurement; the others have the next ones."""


def write_page(path: Path, changes: dict[str, Any]) -> Path:
    """Write the playground with changes of the task `repeat`, and return its path."""
    data = playground_data()
    for part, values in changes.items():
        data["tasks"]["repeat"][part] |= values
    path.write_text(fill_page("play.js", to_json(data), []), encoding="utf-8")
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
    """Measure the step, and each task."""
    options, name, _ = frame.read_options(Options, argv, "[TASK]")
    tasks = frame.containing(name, CASES)
    with start_browser() as browser, tempfile.TemporaryDirectory() as folder:
        usual = write_page(Path(folder, "playground.html"), {})
        longer = write_page(Path(folder, "longer.html"), LONGER)
        run = partial(run_page, browser)
        fixed = {"workers": options.workers, "pace": "fastest"}

        def learn(task: str, seeds: Iterator[int]) -> frame.Row:
            page = longer if "," in task else usual
            setting = fixed | {"task": task.split(",")[0], "seed": next(seeds), "max_steps": MOST}
            return dict(run(page, setting, TRAIN, [setting["task"], LEVELS.get(task, 0.98), MOST]))

        rivals = {
            "a step of the page": lambda: {"ms": run(longer, fixed, STEP, TIMED)},
            "in PyTorch": lambda: {"ms": frame.in_fresh_process(pytorch_step, options.workers)},
        }
        rows = frame.alternate(rivals, options.repetitions)
        for task in tasks:
            seeds = count(options.first_seed)
            rows += frame.alternate({task: partial(learn, task, seeds)}, options.repetitions)
        machine = {"processor": frame.processor(), "Chromium": browser.version} | fixed
    frame.report("playground", rows, machine=machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
