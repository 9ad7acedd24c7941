"""Measure the loss of a config over several seeds, and the effect of each part of the recipe.

python -m benchmarks.recipe configs/shakespeare_1min.yaml --data.source tinyshakespeare.txt
python -m benchmarks.recipe --changes --train.max_steps 200 --data.source tinyshakespeare.txt

Each row runs `python train.py` in an empty folder, once for each seed. It has the wall-clock
seconds from start to exit, and the loss of the last weights on the first half of the validation
split (by which settings are chosen), on the second half and on the whole split. With --changes,
each further row reverts or adds one choice of the recipe.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from common.errors import command
from common.fields import STRICT, Count
from data.batches import open_batches
from data.config import DataConfig
from model.gpt import next_token_loss
from run.checkpoint import open_run
from training.runtime import pick_device

ADAMW = "--train.optimizer=adamw --train.learning_rate=3e-3 --train.warmup_steps=50"
CHANGES = {
    "learned positions": "--model.positions=learned",
    "no QK-norm": "--model.qk_norm=false",
    "GELU": "--model.activation=gelu",
    "output projections not from zero": "--model.zero_init=false",
    "tied head": "--model.tie_embeddings=true",
    "biases": "--model.bias=true",
    "AdamW": ADAMW,
    "cosine from the start": "--train.schedule=cosine --train.decay_fraction=1",
    "100 steps of warm-up": "--train.warmup_steps=100",
    "half the batch, twice the steps": "--train.batch_size=8 --train.max_steps=400",
    "bigrams embedded": "--model.ngrams=2",
    "bigrams and trigrams embedded": "--model.ngrams=3",
    "n-grams up to four embedded": "--model.ngrams=4",
}


@dataclass(frozen=True, config=STRICT)
class Options:
    """Measure a config over seeds"""

    seeds: Count = 3
    """Number of runs of each row, with seeds 1337, 1338 and so on."""

    changes: bool = False
    """Also measure each change of the recipe on its own."""


@torch.no_grad()
def halves(run: Path, data: DataConfig) -> frame.Row:
    """Evaluate a run's last weights on the first half of the validation split, the second half and
    the whole split, in float32, in nats per token."""
    saved, device = open_run(run, "last"), pick_device("auto")
    config, model = saved.config, saved.model(device)
    batches = open_batches(data, config.model.block_size, 0, saved.tokenizer)
    losses = torch.cat(
        [
            next_token_loss(model(batch[:, :-1].to(device)).cpu(), batch[:, 1:], "none")
            for batch in batches.validation_batches(config.train.batch_size)
        ]
    ).double()
    middle = len(losses) // 2
    parts = {"first_half": losses[:middle], "second_half": losses[middle:], "whole": losses}
    return {name: part.mean().item() for name, part in parts.items()}


def train_and_evaluate(
    file: str, flags: list[str], data: DataConfig, seeds: Iterator[int]
) -> frame.Row:
    """Train with the next seed in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = frame.train(file, flags, next(seeds), folder)
        return {"seconds": seconds} | frame.in_fresh_process(
            halves, Path(folder, "runs", "run"), data
        )


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return 'mean ± standard deviation', or the only number."""
    mean = frame.show(statistics.mean(values))
    return f"{mean} ± {frame.show(statistics.stdev(values))}" if len(values) > 1 else mean


@command
def main(argv: list[str]) -> int:
    """Train every row with every seed."""
    options, file, config, flags = frame.read_training(Options, argv)
    flags = ["--train.minutes=0"] * (not file) + flags  # the default: the same steps in each run
    changes = {Path(file).stem or "the default": ""} | (CHANGES if options.changes else {})
    rivals = {
        name: partial(train_and_evaluate, file, flags + change.split(), config.data, count(1337))
        for name, change in changes.items()
    }
    rows = frame.alternate(rivals, options.seeds)
    for row in rows[1:]:
        row["difference"] = statistics.mean(row["whole"]) - statistics.mean(rows[0]["whole"])
    frame.report("recipe", rows, mean_and_deviation)
    return 0


if __name__ == "__main__":
    sys.exit(main())
