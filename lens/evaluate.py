"""The command evaluate: the loss over whole splits, of the run, of n-grams, and of both mixed."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from pydantic.dataclasses import dataclass

from configs.config import STRICT, Fraction
from data.batches import HELD_OUT
from lens.ngram_model import mixed_losses, ngrams_of
from lens.subject import Checkpoint, Source, open_text, other_text
from lens.tables import Table
from training.checkpoint import open_run
from training.evaluate import evaluate
from training.machine import Processes, pick_device


@dataclass(frozen=True, config=STRICT)
class Evaluate:
    """Print the loss over the whole validation split, and the test split if there is one"""

    task_ignored: Fraction | None = None
    """For flipflop: evaluate with this fraction of the instructions ignored; if omitted, the
    run's."""

    source: Source = None
    checkpoint: Checkpoint = "best"


def losses_of_splits(word: str | None, options: Evaluate) -> Iterator[str | Table]:
    """Yield a row for each split and, of a text, for n-grams and both mixed; of a task, a row for
    training sequences, too, and the accuracy.

    Raises:
        FloatingPointError: if a loss is not finite.
    """
    saved, device = open_run(word, options.checkpoint), pick_device("auto")
    if options.task_ignored is not None:
        data = dataclasses.replace(saved.config.data, task_ignored=options.task_ignored)
        config = dataclasses.replace(saved.config, data=data)
        saved = dataclasses.replace(saved, header=dataclasses.replace(saved.header, config=config))
    config = saved.config
    batches = open_text(saved, options.source, config.model.block_size)
    model = saved.model(device)
    model.compute_dtype = getattr(torch, saved.header.machine.precision)  # as in training
    about = f"{saved}\non {batches.about}{other_text(saved, batches)}; each split "
    if batches.task:
        about += f"is {HELD_OUT} drawn sequences"
    else:
        about += "as a whole\nn-grams are counted on the training split of this text; "
        about += "a mixture has the weight that is best for the other half of the split"
    yield about
    splits = [*batches.evaluated, *["test"] * (config.data.test_fraction > 0)]
    unit = batches.tokenizer.unit
    accuracies: list[list[Any]] = []
    rows: list[list[Any]] = [["split", "by", f"nats/{unit}", "bits/char"]]
    if unit == "byte":
        rows[0].append("bits/byte")
    for name in splits:
        split = batches.split(name, config.train.micro_batch_size)
        result = evaluate(model, split, batches, Processes())
        assert result, "only a request to stop leaves no result"
        if not math.isfinite(result.loss):
            raise FloatingPointError(f"the {name} loss is {result.loss}")
        nats = {"model": result.nats}
        if batches.task is None:
            counted = ngrams_of(batches).read(batches.tokens[name])[0][1:]
            mixed = mixed_losses(result.surprisal.double().numpy(), counted)
            order = len(ngrams_of(batches).orders)
            nats |= {f"{order}-gram": float(counted.sum()), "both mixed": float(mixed.sum())}
        for by, total in nats.items():
            loss = dataclasses.replace(result, nats=total)
            row = [name, by, loss.loss, loss.bits_per_char]
            rows.append([*row, loss.loss / math.log(2)] if unit == "byte" else row)
        if result.accuracy is not None:
            accuracies.append([name, result.accuracy])
    yield Table(rows, words=2, form=".4f")
    if accuracies:
        yield Table([["split", "accuracy"], *accuracies])
