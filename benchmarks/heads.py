"""Which heads recur: train with several seeds, and count the seeds in which some head has each job.

python -m benchmarks.heads                              eight seeds of the default
python -m benchmarks.heads --only window                a config of configs/attention or tasks
python -m benchmarks.heads --train.max_steps 1300       longer runs

Each run is `python train.py` on one thread, and two run at a time. A job is what `study.py heads`
says that a head attends to or matters for, without the numbers; docs/studying.md explains them.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from benchmarks.line_end import QUICK
from common.errors import UserError, command
from configs.config import STRICT, Count, Natural
from lens.jobs import find_jobs, job_sequences
from lens.subject import MeasureOptions, Subject

CONFIGS = {"default": ""} | {
    path.stem: str(path)
    for folder in ("attention", "tasks")
    for path in sorted((frame.ROOT / "configs" / folder).glob("*.yaml"))
}


@dataclass(frozen=True, config=STRICT)
class Options:
    """Seeds and configs"""

    seeds: Count = 8
    """Number of runs of each config."""

    first_seed: Natural = 3001
    """The seed of the first run; the others have the next ones."""

    only: str = "default"
    """Measure the configs whose name contains this."""


def describe(run: Path) -> frame.Row:
    """Return the heads of each job, such as "L1H2 L2H0"."""
    subject = Subject(str(run), MeasureOptions(checkpoint="last"))
    found: frame.Row = {}
    for job in find_jobs(subject, job_sequences(subject, None)):
        for what in job.summary():
            found[what] = f"{found[what]} {job.name}" if what in found else job.name
    return found


def count_jobs(config: str, runs: Sequence[frame.Row]) -> list[frame.Row]:
    """Return a row for each job that some head has in two seeds or more, the most frequent first:
    in how many seeds, how many heads share it there, and in which layers they are."""
    heads = {
        what: [run[what].split() for run in runs if what in run]
        for what in dict.fromkeys(what for run in runs for what in run if what != "seconds")
    }
    rows = list[frame.Row]()
    for what, of_seeds in sorted(heads.items(), key=lambda item: (-len(item[1]), item[0])):
        if len(of_seeds) > 1:
            layers = Counter(name.split("H")[0] for names in of_seeds for name in names)
            rows.append(
                {
                    "config": config,
                    "job": what,
                    "seeds": f"{len(of_seeds)} of {len(runs)}",
                    "layers": ", ".join(f"{layer}: {n}" for layer, n in sorted(layers.items())),
                    "heads": [float(len(names)) for names in of_seeds],
                }
            )
    return rows


@command
def main(argv: list[str]) -> int:
    """Train, measure, and report."""
    options, file, _, flags = frame.read_training(Options, argv)
    if file:
        raise UserError(f"this benchmark has its own configs, not {file}: choose some with --only")
    flags = ["--train.max_steps=600", "--train.threads=1", *QUICK, *flags]
    with ThreadPoolExecutor(2) as pool:
        jobs, rows = dict[str, list[Future[frame.Row]]](), list[frame.Row]()
        measured = partial(frame.in_fresh_process, describe)
        for config in frame.containing(options.only, CONFIGS):
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                job = partial(frame.train, CONFIGS[config], flags, iter([seed]), measured)
                jobs.setdefault(config, []).append(pool.submit(job))
        for config, runs in jobs.items():
            found = [run.result() for run in runs]
            print(f"{config}: {found}", file=sys.stderr)
            rows += count_jobs(config, found)
    frame.report("heads", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
