"""Runs side by side: what differs in their configs, and their losses at equal steps and times.

python -m benchmarks.compare runs/before runs/after [RUN ...]
python -m benchmarks.compare runs/before runs/after --picture curves.svg
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.common import print_json
from common.errors import UserError, command
from common.pictures import new_picture, save_picture
from common.tables import print_table
from configs.load import Config, Parser, to_plain
from data.batches import open_batches
from run.checkpoint import SavedRun, open_run
from run.folder import find_run
from run.metrics import read_metrics

MOMENTS = 8  # rows at equal seconds


def evaluations(run: Path, what: str) -> list[tuple[int, float, float]]:
    """(step, seconds, loss) of each evaluation of a run, in order.

    Args:
        what: val_loss, in nats per token, or bits_per_char.
    """
    lines = [line for line in read_metrics(run) if {"seconds", what} <= line.keys()]
    return [(line["step"], line["seconds"], line[what]) for line in lines]


def differences(configs: list[Config]) -> dict[str, list[Any]]:
    """The fields in which configs differ, with the value of each."""
    plain = [to_plain(config) for config in configs]
    found = {}
    for section, fields in plain[0].items():
        for key, first in fields.items():
            values = [config[section][key] for config in plain]
            if values != [first] * len(values):
                found[f"{section}.{key}"] = values
    return found


def at_steps(curves: list[list[tuple[int, float, float]]]) -> list[tuple[int, list[float]]]:
    """The losses at each step at which all runs were evaluated."""
    by_step = [{step: loss for step, _, loss in curve} for curve in curves]
    common = sorted(set.intersection(*(set(losses) for losses in by_step)))
    return [(step, [losses[step] for losses in by_step]) for step in common]


def at_seconds(curves: list[list[tuple[int, float, float]]]) -> list[tuple[float, list[float]]]:
    """The losses of the last evaluation of each run by equal times, until the first run ends."""
    first = max(curve[0][1] for curve in curves)
    end = min(curve[-1][1] for curve in curves)
    times = [first + (end - first) * i / (MOMENTS - 1) for i in range(MOMENTS)]
    rows = []
    for moment in times if end > first else []:
        rows.append((moment, [[ls for _, s, ls in c if s <= moment + 1e-9][-1] for c in curves]))
    return rows


def baselines_of(saved: SavedRun) -> dict[str, float]:
    """What simple models reach on the text of a run; nothing where it is not there any more."""
    config = saved.config
    try:
        batches = open_batches(
            config.data, config.model.block_size, config.train.seed, saved.tokenizer, named=False
        )
    except (UserError, ValueError) as error:
        print(f"note: the picture has no baselines: {error}", file=sys.stderr)
        return {}
    return batches.baselines()


def draw(
    path: str,
    names: list[str],
    curves: list[list[tuple[int, float, float]]],
    baselines: dict[str, float],
    unit: str,
) -> None:
    """Losses against steps, the baselines as lines."""
    figure, (axes,) = new_picture(path)
    for name, nats in baselines.items():
        axes.axhline(nats, linestyle="--", linewidth=1, color="gray")
        axes.annotate(name, (1, nats), (-3, 2), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=7, ha="right", color="gray")  # fmt: skip
    for name, curve in zip(names, curves, strict=True):
        axes.plot([step for step, _, _ in curve], [loss for *_, loss in curve], "o-",
                  markersize=3, label=name)  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel(f"validation loss, {unit}")
    axes.legend(fontsize=8)
    save_picture(figure, path)


@command
def main(argv: list[str]) -> int:
    """Read the runs and print them side by side."""
    usage = "python -m benchmarks.compare RUN_A RUN_B [RUN ...]"
    parser = Parser(usage=usage, description="Put runs side by side.")
    parser.add_argument("runs", metavar="RUN", nargs="*")
    parser.add_argument("--picture", help="draw the losses in this file; needs matplotlib")
    arguments = parser.parse_args(argv)
    words, picture = arguments.runs, arguments.picture
    if len(words) < 2:
        raise UserError(f"there is nothing to compare; {usage}")
    if picture:
        new_picture(picture)  # rather refused now than at the end
    runs = [find_run(word) for word in words]
    names = [run.name for run in runs]
    opened = [open_run(run) for run in runs]
    same_tokens = all(saved.tokenizer == opened[0].tokenizer for saved in opened)
    if not same_tokens:
        print("losses in bits/char: the runs have different tokens\n")
    curves = [evaluations(run, "val_loss" if same_tokens else "bits_per_char") for run in runs]
    for run, curve in zip(runs, curves, strict=True):
        if not curve:
            raise UserError(f"{run} was never evaluated")
    differing = differences([saved.config for saved in opened])

    print_table([["config", *names], *([k, *map(str, vs)] for k, vs in differing.items())])
    steps, seconds = at_steps(curves), at_seconds(curves)
    print()
    print_table([["at step", *names], *([str(s), *(f"{x:.4f}" for x in ls)] for s, ls in steps)])
    print()
    print_table(
        [["after", *names], *([f"{s:.0f} s", *(f"{x:.4f}" for x in ls)] for s, ls in seconds)]
    )
    print()
    best = [min(loss for _, _, loss in curve) for curve in curves]
    print_table(
        [
            ["", *names],
            ["best loss", *(f"{loss:.4f}" for loss in best)],
            ["seconds", *(f"{curve[-1][1]:.0f}" for curve in curves)],
        ]
    )
    if picture:
        baselines = baselines_of(opened[0]) if same_tokens else {}
        draw(picture, names, curves, baselines, "nats/token" if same_tokens else "bits/char")
    result = {"benchmark": "compare", "runs": [str(run) for run in runs], "config": differing}
    print_json(result | {"at_steps": steps, "at_seconds": seconds, "best": best})
    return 0


if __name__ == "__main__":
    sys.exit(main())
