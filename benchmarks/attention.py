"""Compare the configs of configs/attention with the default, at the same number of steps.

python -m benchmarks.attention                  15 minutes on two cores
python -m benchmarks.attention --only window    the configs that have this in their name

Each run is `python train.py` on one thread, and two run at a time: compare their speeds only with
each other. docs/studying.md explains the numbers.
"""

import statistics
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from benchmarks.line_end import QUICK, measure
from benchmarks.wrapped import WIDTH
from common.errors import UserError, command
from configs.config import STRICT, Count, Natural
from lens.heads import names_of
from lens.measure import score_heads
from lens.subject import MeasureOptions, Subject
from training.folder import read_metrics

CONFIGS = {"default": ""} | {
    path.stem: str(path) for path in sorted((frame.ROOT / "configs/attention").glob("*.yaml"))
}
OF_LINE_ENDS = ("AUC", "AUC_ngrams", "heads", "share", "slope")  # of benchmarks.line_end


@dataclass(frozen=True, config=STRICT)
class Options:
    """Seeds"""

    seeds: Count = 3
    """Number of runs of each config."""

    first_seed: Natural = 4001
    """The seed of the first run; the others have the next ones."""

    only: str = ""
    """Measure only the configs whose name contains this."""


def describe(run: Path) -> frame.Row:
    """Measure a run and its last weights: loss, speed, cache, and two kinds of heads."""
    ends = measure(run, WIDTH)  # first, because it says where the cache is
    subject = Subject(str(run), MeasureOptions(checkpoint="last"))
    config, metrics = subject.config.model, read_metrics(run)
    losses = [line["val_loss"] for line in metrics if "val_loss" in line]
    speeds = [line["tokens_per_second"] for line in metrics if "tokens_per_second" in line]
    scores = score_heads(subject.model, subject.sequences(None)[:, :-1], repeats=False)
    previous_LH = scores["previous_token"]
    best, at = max(names_of(subject.model).items(), key=lambda head: previous_LH[head[1]].item())
    return {
        "loss": losses[-1],
        "tokens_per_second": statistics.median(speeds),
        "parameters": float(subject.model.num_parameters()),
        "cache_per_token": float(2 * config.n_layer * config.kv_heads * config.head_width),
        "previous": previous_LH[at].item(),
        "previous_head": best,
        **{name: ends[name] for name in OF_LINE_ENDS if name in ends},
    }


@command
def main(argv: list[str]) -> int:
    """Train, measure, and report."""
    options, file, _, flags = frame.read_training(Options, argv)
    if file:
        raise UserError(f"this benchmark has its own configs, not {file}: choose some with --only")
    flags = ["--train.max_steps=600", "--train.threads=1", *QUICK, *flags]
    with ThreadPoolExecutor(2) as pool:
        jobs, rows = dict[str, list[Future[frame.Row]]](), []
        measured = partial(frame.in_fresh_process, describe)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for config in frame.containing(options.only, CONFIGS):  # alternating
                job = partial(frame.train, CONFIGS[config], flags, iter([seed]), measured)
                jobs.setdefault(config, []).append(pool.submit(job))
        for config, runs in jobs.items():
            found = [run.result() for run in runs]
            print(f"{config}: {found}", file=sys.stderr)
            rows.append(frame.collect({"config": config}, found))
    frame.report("attention", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
