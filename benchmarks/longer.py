"""Does more time make the default worse? Train it for longer and longer on several texts.

python -m benchmarks.longer --shakespeare tinyshakespeare.txt         a night on two cores
python -m benchmarks.longer --only manual --seeds 1 --most_steps 1300 10 minutes

A run becomes longer by `--resume`, which gives bitwise the run that was planned longer. Each trains
on one thread, and two run at a time. Two of the texts are made from Python's standard library; no
setting was chosen on them. Larger models read the manual. docs/training.md explains the numbers.
"""

import ast
import itertools
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from benchmarks.recipe import halves, mean_and_deviation
from common.errors import UserError, command
from configs.config import STRICT, Count
from training.folder import read_metrics

STEPS = [325, 650, 1300, 2600, 5200, 10400]
MANY = 1300  # steps, up to which there are more than two seeds
CHANGES = {"as shipped": "", "nothing rises": "--model.dropout=0 --train.weight_decay=0.1"}
SIZES = {
    "4 x 192": "--model.n_embd=192 --model.n_head=6",
    "6 x 256": "--model.n_layer=6 --model.n_embd=256 --model.n_head=8",
}  # of the model that reads the manual
ONCE = ["--train.threads=1", "--train.snapshots=0", "--train.sample_tokens=0"]


@dataclass(frozen=True, config=STRICT)
class Options:
    """Lengths, texts and seeds"""

    shakespeare: str = ""
    """Path of Tiny Shakespeare; if given, the whole of it, its first 250,000 characters and its
    first 60,000 are measured as well."""

    only: str = ""
    """Measure only the rows with this in their text and change, as in "manual, nothing rises"."""

    seeds: Count = 3
    """Number of runs of up to 1,300 steps; longer ones have at most two."""

    most_steps: Count = 5200
    """The length of the longest run."""


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library."""
    for path in library():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield f"{ast.get_docstring(node) or ''}\n"


def library() -> list[Path]:
    """Return the modules of the standard library."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def make_texts(folder: Path, shakespeare: str) -> dict[str, str]:
    """Write the texts, and return the --data.source of each by its name."""
    texts = {
        "docstrings": "".join(docstrings())[:300_000],
        "source": "".join(path.read_text("utf-8") for path in library())[:3_000_000],
    }
    if shakespeare:
        whole = Path(shakespeare).read_text("utf-8")
        texts |= {f"Shakespeare {n}": whole[:n] for n in (60_000, 250_000, len(whole))}
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, "utf-8")
    return {"manual": "pydocs"} | {name: str(folder / f"{name}.txt") for name in texts}


def lengthen(source: str, change: str, seed: int, most_steps: int) -> dict[int, frame.Row]:
    """Train for each number of steps, and return what was measured after each."""
    rows = {}
    words = [f"--data.source={source}", f"--train.seed={seed}", *ONCE, *change.split(), "--run=run"]
    with tempfile.TemporaryDirectory() as folder:
        for steps in (steps for steps in STEPS if steps <= most_steps):
            train = [str(frame.ROOT / "train.py"), *words, f"--train.max_steps={steps}"]
            frame.run_command([*train, f"--train.eval_every={steps // 13}"], Path(folder))
            run, words = Path(folder, "runs", "run"), ["--resume=run"]
            losses = [line["val_loss"] for line in read_metrics(run) if "val_loss" in line]
            found = frame.in_fresh_process(halves, run)
            rows[steps] = {
                "last": losses[-1],
                "best": min(losses),
                **{name: found[name] for name in ("n-grams", "mixed")},
            }
            print(f"{source} {change} seed {seed}, {steps} steps: {rows[steps]}", file=sys.stderr)
    return rows


@command
def main(argv: list[str]) -> int:
    """Train, measure, and report."""
    options, *_ = frame.read_options(Options, argv)
    if options.most_steps < STEPS[0]:
        raise UserError(f"--most_steps must be at least {STEPS[0]}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        texts = make_texts(Path(folder), options.shakespeare)
        named = [*itertools.product(texts, CHANGES), *itertools.product(["manual"], SIZES)]
        names = {f"{text}, {change}": (text, change) for text, change in named}
        flags = CHANGES | SIZES
        jobs = dict[str, list[Future[dict[int, frame.Row]]]]()
        for seed in range(options.seeds):
            most = options.most_steps if seed < 2 else min(MANY, options.most_steps)
            for name in frame.containing(options.only, names):
                text, change = names[name]
                job = partial(lengthen, texts[text], flags[change], 1337 + seed, most)
                jobs.setdefault(name, []).append(pool.submit(job))
        rows = []
        for name, runs in jobs.items():
            found = [run.result() for run in runs]
            for steps in STEPS:
                measured = [run[steps] for run in found if steps in run]
                if measured:
                    rows.append(frame.collect({"text": name, "steps": f"{steps:,}"}, measured))
    frame.report("longer", rows, mean_and_deviation)
    return 0


if __name__ == "__main__":
    sys.exit(main())
