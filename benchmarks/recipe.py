"""Measure the loss of a config over several seeds, and the effect of each part of the recipe.

python -m benchmarks.recipe configs/shakespeare_1min.yaml --data.source tinyshakespeare.txt
python -m benchmarks.recipe --changes --train.max_steps 200 --data.source tinyshakespeare.txt

Each row runs `python train.py` in an empty folder, once for each seed. It has the wall-clock
seconds from start to exit, and the loss of the last weights on the first half of the validation
split (by which settings are chosen), on the second half and on the whole split; for a text, also
the loss of n-grams, and of both mixed. With --changes, each further row reverts or adds one choice
of the recipe.
"""

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from common.errors import command
from configs.config import STRICT, Count
from data.batches import open_batches
from lens.measure import token_losses
from lens.ngram_model import mixed_losses, ngrams_of
from training.checkpoint import open_run
from training.machine import pick_device

ADAMW = "--train.optimizer=adamw --train.learning_rate=3e-3 --train.warmup_steps=50"
CHANGES = {  # of 200 steps of 16 sequences, as in docs/recipe.md
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
    """Number of runs of each row, with --train.seed, the next one and so on."""

    changes: bool = False
    """Also measure each change of the recipe on its own."""


def halves(run: Path) -> frame.Row:
    """Evaluate a run's last weights in float32, in nats per token: on each half of the validation
    split, on the whole split, and mixed with n-grams."""
    saved, device = open_run(run, "last"), pick_device("auto")
    config, model = saved.config, saved.model(device)
    batches = open_batches(config.data, config.model.block_size, 0, saved.tokenizer)
    split = batches.split("validation", config.train.batch_size)
    losses = torch.cat([token_losses(model, batch.to(device)).flatten().cpu() for batch in split])
    whole = losses.double().numpy()
    first, second = np.array_split(whole, 2)
    parts = {"first_half": first, "second_half": second, "whole": whole}
    if batches.task is None:
        counted = ngrams_of(batches).read(batches.tokens["validation"])[0][1:]
        parts |= {"n-grams": counted, "mixed": mixed_losses(whole, counted)}
    return {name: float(part.mean()) for name, part in parts.items()}


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return 'mean ± standard deviation', or the only number."""
    mean = frame.formatted(statistics.mean(values))
    return f"{mean} ± {frame.formatted(statistics.stdev(values))}" if len(values) > 1 else mean


@command
def main(argv: list[str]) -> int:
    """Train every row with every seed."""
    options, file, config, flags = frame.read_training(Options, argv)
    flags = ["--train.max_steps=600"] * (not file) + flags  # the same steps in each run
    changes = {Path(file).stem or "the default": ""} | (CHANGES if options.changes else {})
    describe = partial(frame.in_fresh_process, halves)
    rivals = {
        name: partial(frame.train, file, flags + change.split(), count(config.train.seed), describe)
        for name, change in changes.items()
    }
    rows = frame.alternate(rivals, options.seeds)
    for row in rows[1:]:
        row["difference"] = statistics.mean(row["whole"]) - statistics.mean(rows[0]["whole"])
    frame.report("recipe", rows, mean_and_deviation)
    return 0


if __name__ == "__main__":
    sys.exit(main())
