"""Which heads recur: train with several seeds, and count the seeds in which some head has each job,
in which layers, and from which snapshot on.

python -m benchmarks.heads                              eight seeds of the default
python -m benchmarks.heads --only window                a config of configs/attention or tasks
python -m benchmarks.heads --train.max_steps 1900       longer runs

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
from common.errors import UserError, command
from configs.config import STRICT, Count, Natural
from lens.jobs import find_jobs, job_sequences
from lens.report_data import through_training
from lens.subject import MeasureOptions, Subject

FIRST = 100  # step of the first snapshot that is measured
ONCE = ["--train.threads=1", "--train.snapshots=9", "--train.sample_tokens=0"]
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
    """Return, for each job of the trained model, its heads and the step of the first snapshot in
    which some head has it."""
    subject = Subject(str(run), MeasureOptions(checkpoint="last"))
    tokens_BT, first, heads = job_sequences(subject, None), dict[str, int](), dict[str, list[str]]()
    for step, model in through_training(subject):
        if step < FIRST:
            continue
        heads.clear()
        for job in find_jobs(subject, model, tokens_BT):
            for what in job.summary():
                heads.setdefault(what, []).append(job.name)
                first.setdefault(what, step)
    return {what: {"heads": names, "step": first[what]} for what, names in heads.items()}


def count_jobs(config: str, runs: Sequence[frame.Row]) -> list[frame.Row]:
    """Return a row for each job that some head has in two seeds or more, the most frequent first:
    in how many seeds, in which layers, how many heads share it, and from which step on."""
    rows = list[frame.Row]()
    for what in dict.fromkeys(what for run in runs for what in run if what != "seconds"):
        found = [run[what] for run in runs if what in run]
        layers = Counter(name.split("H")[0] for each in found for name in each["heads"])
        rows.append(
            {
                "config": config,
                "job": what,
                "seeds": f"{len(found)} of {len(runs)}",
                "layers": ", ".join(f"{layer}: {n}" for layer, n in sorted(layers.items())),
                "heads": [float(len(each["heads"])) for each in found],
                "from_step": [float(each["step"]) for each in found],
            }
        )
    recurring = [row for row in rows if len(row["heads"]) > 1]
    return sorted(recurring, key=lambda row: (-len(row["heads"]), row["job"]))


@command
def main(argv: list[str]) -> int:
    """Train, measure, and report."""
    options, file, _, flags = frame.read_training(Options, argv)
    if file:
        raise UserError(f"this benchmark has its own configs, not {file}: choose some with --only")
    flags = ["--train.max_steps=600", *ONCE, *flags]
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
