"""Compare runs: the config fields that differ, and the losses at equal steps and times.

python -m benchmarks.compare runs/before runs/after [RUN ...]
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import show
from common.errors import UserError, command
from configs.load import Config, Parser
from lens.tables import print_table
from run.checkpoint import open_run
from run.folder import find_run
from run.log import read_metrics

MOMENTS = 8  # rows at equal seconds

Curve = list[tuple[int, float, float]]  # (step, seconds, loss) of each evaluation, in order


def read_curve(run: Path, loss: str) -> Curve:
    """Return the evaluations of a run.

    Args:
        loss: val_loss, in nats per token, or bits_per_char.
    """
    lines = [line for line in read_metrics(run) if {"seconds", loss} <= line.keys()]
    if not lines:
        raise UserError(f"{run} was never evaluated; train it further with --resume {run}")
    return [(line["step"], line["seconds"], line[loss]) for line in lines]


def differing_fields(configs: list[Config]) -> dict[str, list[Any]]:
    """Return the fields that differ between configs, with the value in each config."""
    plain = [dataclasses.asdict(config) for config in configs]
    fields = {
        f"{section}.{name}": [other[section][name] for other in plain]
        for section, values in plain[0].items()
        for name in values
    }
    return {name: values for name, values in fields.items() if values != values[:1] * len(values)}


def at_steps(curves: list[Curve]) -> dict[str, list[float]]:
    """Return the losses at each step at which all runs were evaluated."""
    by_step = [{step: loss for step, _, loss in curve} for curve in curves]
    shared = sorted(set.intersection(*map(set, by_step)))
    return {str(step): [losses[step] for losses in by_step] for step in shared}


def at_seconds(curves: list[Curve]) -> dict[str, list[float]]:
    """Return the last loss of each run after equal times, until the first run ends."""
    first = max(curve[0][1] for curve in curves)
    end = min(curve[-1][1] for curve in curves)
    return {
        f"{show(time)} s": [[ls for _, s, ls in curve if s <= time][-1] for curve in curves]
        for time in np.linspace(first, end, MOMENTS).tolist()
        if time >= first
    }


@command
def main(argv: list[str]) -> int:
    """Read the runs and print the comparison."""
    usage = "python -m benchmarks.compare RUN [RUN ...]"
    parser = Parser(usage=usage, description="Compare runs.")
    parser.add_argument("runs", metavar="RUN", nargs="+")
    runs = [find_run(word) for word in parser.parse_args(argv).runs]
    opened = [open_run(run) for run in runs]
    loss = "val_loss"  # nats per token
    if any(saved.tokenizer != opened[0].tokenizer for saved in opened):
        loss = "bits_per_char"
        print("losses in bits/char: the runs have different tokens\n")
    curves = [read_curve(run, loss) for run in runs]
    names = [run.name for run in runs]
    tables = {
        "config": differing_fields([saved.config for saved in opened]),
        "at step": at_steps(curves),
        "after": at_seconds(curves),
        "lowest": {"loss": [min(loss for *_, loss in curve) for curve in curves]},
    }
    for heading, rows in tables.items():
        cell = str if heading == "config" else "{:.4f}".format
        print_table([[heading, *names], *([key, *map(cell, rows[key])] for key in rows)])
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
