"""Find the heads that know where a line of the text ends, and move the end of a line.

python -m benchmarks.line_end                              14 minutes on two cores
python -m benchmarks.line_end --only 50 --seeds 1          the rows that have this in their name

The text is Python's manual, wrapped at 70 columns, and wrapped again at 50 and 90. Each run is
`python train.py` with the default config on one thread, and two run at a time, each measured in a
process of its own. The result that a run has to show is in KINDS; docs/line_end.md explains the
numbers.
"""

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from benchmarks import common as frame
from benchmarks.probe import auc, probe_r2
from benchmarks.wrapped import WIDTH, Ends, ends_of_words, joined, paragraphs, rewrap
from common.errors import command
from configs.config import STRICT, Count, Natural
from data.batches import Batches, text_batches
from data.corpus import load_text
from lens.capture import capture, head_replaced, key_hidden, key_moved
from lens.composition import Head
from lens.heads import names_of
from lens.measure import mean_outputs, micro_batches, spread
from lens.ngram_model import NgramModel, ngrams_of
from model.gpt import GPT
from training.checkpoint import open_run

Array = npt.NDArray[Any]
EVERY = 8  # of the validation sequences, one is read with each head ablated
FOUND = 1 / 3  # of the largest rise of the loss: heads below it are not found
LINES = 100  # whose end is moved
MOVES = (-20, 20)  # positions by which it is moved
QUICK = ["--train.snapshots=0", "--train.sample_tokens=0", "--train.eval_every=10000"]
# The longer runs are compared with those of 600 steps, in which neither rises.
QUICK += ["--train.tensorboard=false", "--model.dropout=0", "--train.weight_decay=0.1"]


@torch.no_grad()
def log_probabilities(model: GPT, tokens_BT: Tensor, chosen: list[int]) -> Tensor:
    """Return the log-probability of each chosen token as the next one, (B, T - 1, len(chosen)), of
    sequences of up to block_size + 1 tokens."""
    batches = micro_batches(model, tokens_BT)
    return torch.cat([model(batch[:, :-1]).log_softmax(-1)[..., chosen] for batch in batches])


class Validation:
    """The validation split in sequences that begin in the middle of the one before. Only the second
    half of each is measured, so that every prediction has read half a context."""

    def __init__(self, batches: Batches) -> None:
        tokenizer, self.half = batches.tokenizer, batches.block_size // 2
        self.tokens = torch.from_numpy(batches.tokens["validation"].astype(np.int64))
        self.text = tokenizer.decode(self.tokens.tolist())
        self.newline, self.space = (int(tokenizer.encode(char)[0]) for char in "\n ")
        self.sequences_BT = self.tokens.unfold(0, batches.block_size + 1, self.half)

    def known(self, position: Array) -> Array:
        """Return which tokens of the text are predicted."""
        return (position > self.half) & (position <= self.half * (len(self.sequences_BT) + 1))

    def find(self, position: Array) -> tuple[Array, Array]:
        """Return the sequences and the queries that predict these tokens of the text."""
        sequence = (position - 1) // self.half - 1
        return sequence, position - 1 - sequence * self.half


class LongLines:
    """Paragraphs of the validation split, each as one line, with the text before it: the line
    begins in the middle of the sequence."""

    def __init__(self, split: Validation, batches: Batches, width: int) -> None:
        self.half, self.choice = split.half, [split.newline, split.space]
        found = []
        for lines in paragraphs(split.text, width):
            for i, (start, _) in enumerate(lines):
                line = joined(lines[i:])
                if start >= self.half and len(line) > self.half:
                    found.append((start, line[: self.half + 1]))
        rows = []
        for start, line in [found[i] for i in spread(LINES, len(found))]:
            tokens = torch.from_numpy(batches.tokenizer.encode(line).astype(np.int64))
            rows.append(torch.cat((split.tokens[start - self.half : start], tokens)))
        self.sequences_BT = torch.stack(rows)
        spaces_BT = self.sequences_BT[:, self.half :] == split.space
        self.ends_BT = (spaces_BT[:, 1:] & ~spaces_BT[:, :-1]).double()  # from column 1

    def read(
        self, model: GPT, heads: Iterable[Head] = (), move: int | None = 0, keys: int = 2
    ) -> tuple[Array, Array]:
        """Return the mean probability of a newline at the ends of words, and the mean difference of
        the logits of a newline and a space, by column from 1.

        Args:
            heads: where the keys at the end of the line before are changed: that of the newline,
                and that of the character before it, at which a newline is expected.
            move: positions by which they are moved; None hides them.
            keys: if 1, only that of the newline.
        """
        with ExitStack() as stack:
            for (layer, head), i in itertools.product(heads if move != 0 else [], range(keys)):
                place = (model, layer, [head], self.half - 1 - i)
                stack.enter_context(key_hidden(*place) if move is None else key_moved(*place, move))
            log_p_BT2 = log_probabilities(model, self.sequences_BT, self.choice)
        log_p_BT2 = log_p_BT2[:, self.half :].double()  # after each character of the line
        difference_BT = log_p_BT2[..., 0] - log_p_BT2[..., 1]
        ends = self.ends_BT.sum(0).numpy()
        sums = [
            (each * self.ends_BT).sum(0).numpy()
            for each in (log_p_BT2[..., 0].exp(), difference_BT)
        ]
        return mean_of_five(sums[0], ends), mean_of_five(sums[1], ends)


def mean_of_five(total: Array, count: Array) -> Array:
    """Return the means over five columns around each one, from sums and counts."""
    total, count = (np.convolve(each, np.ones(5), "same") for each in (total, count))
    return np.asarray(total / np.maximum(count, 1))


def crossing(curve: Array, level: float, first: int) -> float:
    """Return the column, from `first`, at which a curve first reaches a level; NaN if it does
    not."""
    above = np.flatnonzero(curve[first - 1 :] >= level) + first - 1
    if not len(above):
        return float("nan")
    i = above[0]
    back = (curve[i] - level) / (curve[i] - curve[i - 1]) if i >= first else 0.0
    return float(i + 1 - back)


def nats(choice: Iterable[Array], breaks: Array) -> float:
    """Return the loss of the choice between a newline and a space, from their log-probabilities."""
    newline, space = choice
    chosen, other = np.where(breaks, (newline, space), (space, newline))
    return float(np.logaddexp(0, other - chosen).mean())


def by_ngrams(ngrams: NgramModel, split: Validation, position: Array) -> list[Array]:
    """Return the log-probabilities of a newline and of a space by n-grams."""
    n, log_p = len(ngrams.orders), []
    windows = split.tokens.numpy()[position[:, None] + np.arange(1 - n, 1)]
    for windows[:, -1] in (split.newline, split.space):
        log_p.append(-ngrams.read(windows.flatten())[0].reshape(-1, n)[:, -1])
    return log_p


def by_column(counted: Ends, column: Array) -> list[Array]:
    """Return the logarithms of how often a newline and a space follow at a column."""
    column = np.minimum(column, counted.column.max())
    both = (counted.breaks, ~counted.breaks)
    return [np.log(np.bincount(counted.column, each) + 0.1)[column] for each in both]


def find_heads(model: GPT, split: Validation, ends: Ends) -> list[Head]:
    """Return the heads whose mean ablation raises the loss of the choice between a newline and a
    space by at least FOUND times the largest rise."""
    sequences_BT = split.sequences_BT[::EVERY]
    sequence, query = split.find(ends.position)
    some = sequence % EVERY == 0
    place, breaks = (sequence[some] // EVERY, query[some]), ends.breaks[some]

    def loss() -> float:
        log_p_BT2 = log_probabilities(model, sequences_BT, [split.newline, split.space])
        return nats(log_p_BT2[place].double().numpy().T, breaks)

    means_LHD, whole, rises = mean_outputs(model, sequences_BT), loss(), dict[Head, float]()
    for layer, head in names_of(model).values():
        with head_replaced(model, layer, head, means_LHD[layer, head]):
            rises[layer, head] = loss() - whole
    return [head for head, rise in rises.items() if rise >= FOUND * max(rises.values())]


def read_column(model: GPT, split: Validation, width: int) -> list[float]:
    """Return R^2 of the column inside paragraphs, read from the residual stream by a linear probe,
    after the embedding and after each layer."""
    places = [
        (start + column, column)
        for lines in paragraphs(split.text, width)
        for start, line in (lines if len(lines) > 1 else [])
        for column in range(1, len(line))
    ]
    position, column = np.array(places).T
    known = split.known(position)
    column_n = torch.from_numpy(column[known])
    sequence, query = map(torch.from_numpy, split.find(position[known]))
    read, start = list[list[Tensor]](), 0
    for batch in micro_batches(model, split.sequences_BT):
        some = (sequence >= start) & (sequence < start + len(batch))
        places_of = (sequence[some] - start, query[some])
        read.append([x_BTC[places_of] for x_BTC in capture(model, batch[:, :-1]).residual])
        start += len(batch)
    fitted_n = sequence < len(split.sequences_BT) // 2
    return [probe_r2(torch.cat(layer), column_n, fitted_n) for layer in zip(*read, strict=True)]


def measure(run: Path, width: int | None) -> frame.Row:
    """Measure a run's last weights on the validation split.

    Args:
        width: of the lines; None for a text that is not wrapped.
    """
    torch.set_num_threads(1)
    os.environ["GLASSGPT_CACHE"] = str(run.parent.parent / "cache")  # its tokens and n-grams
    saved = open_run(run, "last")
    model, data = saved.model(), saved.config.data
    text = load_text(data, saved.tokenizer)
    batches = text_batches(text, data, saved.config.model.block_size, seed=0)
    split = Validation(batches)
    lines = LongLines(split, batches, width or WIDTH)
    if width is None:
        return measure_moves(model, lines, [*names_of(model).values()], WIDTH)
    ends = ends_of_words(split.text, width)
    ends = Ends(*(each[split.known(ends.position)] for each in ends))
    heads = find_heads(model, split, ends)
    r2 = enumerate(read_column(model, split, width))
    return {
        **measure_choice(model, batches, split, ends, width),
        "heads": ", ".join(name for name, head in names_of(model).items() if head in heads),
        **measure_moves(model, lines, heads, width),
        **{f"R2_layer_{i - 1}" if i else "R2_embedding": value for i, value in r2},
    }


def measure_choice(
    model: GPT, batches: Batches, split: Validation, ends: Ends, width: int
) -> frame.Row:
    """Measure how well the model, the n-grams and a table by column tell a newline from a space."""
    log_p_BT2 = log_probabilities(model, split.sequences_BT, [split.newline, split.space])
    newline, space = log_p_BT2[split.find(ends.position)].double().numpy().T
    training = batches.tokenizer.decode(batches.tokens["training"].tolist())
    forced = ends.breaks & ~ends.fits
    early = ends.fits & (ends.column < width * 11 / 14)
    found: frame.Row = {"ends": len(forced), "forced": int(forced.sum())}
    for name, choice in {
        "": (newline, space),
        "_ngrams": by_ngrams(ngrams_of(batches), split, ends.position),
        "_column": by_column(ends_of_words(training, width), ends.column),
    }.items():
        found[f"AUC{name}"] = auc(choice[0] - choice[1], ends.breaks)
    return found | {
        "P_fits": float(np.exp(newline[early]).mean()),
        "P_forced": float(np.exp(newline[forced]).mean()),
    }


def measure_moves(model: GPT, lines: LongLines, heads: list[Head], width: int) -> frame.Row:
    """Measure where long lines break, and what it does to move or hide the end of the line before
    them."""
    every = [*names_of(model).values()]
    others = [head for head in every if head not in heads]
    first, middle = width * 2 // 7, slice(width * 2 // 7, width * 5 // 7)
    p, difference = lines.read(model)
    p_hidden, hidden = lines.read(model, heads, move=None)
    _, all_hidden = lines.read(model, every, move=None)
    found = {
        "share": (hidden - difference)[middle].mean() / (all_hidden - difference)[middle].mean(),
        "P_middle": p[middle].mean(),
        "P_middle_hidden": p_hidden[middle].mean(),
        "P_end": p[width - 5 : width + 5].mean(),
    }
    if model.rotary and others:
        level = p[first : width + 10].max() / 3
        found["break"] = crossing(p, level, first)
        moves = {"slope": (heads, 2), "slope_one_key": (heads, 1), "slope_others": (others, 2)}
        for key, (moved, keys) in moves.items():
            columns = [crossing(lines.read(model, moved, k, keys)[0], level, first) for k in MOVES]
            found[key] = np.dot(MOVES, columns) / np.dot(MOVES, MOVES)  # whose mean is 0
    return {key: float(value) for key, value in found.items()}


class Kind(NamedTuple):
    """Runs that differ only in their seeds."""

    runs: int
    width: int | None
    flags: list[str]
    result: str
    shows: Callable[[frame.Row], bool]


def measures(found: frame.Row, width: int) -> bool:
    """Return whether the found heads, and no others, measure lines of this width."""
    return (
        found["share"] >= 0.8
        and 0.85 <= found["slope"] <= 1.1
        and abs(found["slope_others"]) <= 0.1
        and 0.8 * width <= found["break"] <= width
    )


# The results were written before the run that docs/line_end.md reports; its seeds chose nothing.
KINDS: dict[str, Kind] = {
    "70 columns": Kind(
        5,
        70,
        [],
        "AUC 0.95, n-grams 0.2 less; the heads measure 70 columns; R2 below 0.6",
        lambda r: (
            r["AUC"] >= 0.95
            and r["AUC"] - r["AUC_ngrams"] >= 0.2
            and measures(r, 70)
            and r["R2_layer_2"] < 0.6
        ),
    ),
    "70 columns, positions none": Kind(
        3,
        70,
        ["--model.positions=none", "--train.max_steps=1000"],  # it learns more slowly
        "R2 after layer 2 above 0.7",
        lambda r: r["R2_layer_2"] > 0.7,
    ),
    "50 columns": Kind(3, 50, [], "the heads measure 50 columns", lambda r: measures(r, 50)),
    "90 columns": Kind(1, 90, [], "the heads measure 90 columns", lambda r: measures(r, 90)),
    "not wrapped": Kind(
        1,
        None,
        [],
        "P(newline) at the end below 0.1; hidden from all heads, it moves P by less than 0.03",
        lambda r: r["P_end"] < 0.1 and abs(r["P_middle_hidden"] - r["P_middle"]) < 0.03,
    ),
}


@dataclass(frozen=True, config=STRICT)
class Options:
    """Seeds and rows"""

    seeds: Count = 5
    """Maximum number of runs of a row."""

    first_seed: Natural = 3001
    """The seed of the first run of each row; the others have the next ones."""

    only: str = ""
    """Measure only the rows whose name contains this."""


@command
def main(argv: list[str]) -> int:
    """Train, measure, and report."""
    options, file, config, flags = frame.read_training(Options, argv)
    names = frame.containing(options.only, KINDS)
    plain = load_text(config.data)
    text = plain.tokenizer.decode(plain.tokens.tolist())
    flags = ["--train.max_steps=600"] * (not file) + [*QUICK, *flags]
    elsewhere = [flag for flag in flags if not flag.startswith("--data.source=")]
    rows = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        jobs: dict[str, list[Future[frame.Row]]] = {}
        for name in names:
            kind = KINDS[name]
            of_kind = [*kind.flags, *(flags if kind.width == WIDTH else elsewhere)]
            if kind.width != WIDTH:
                path = Path(folder, f"{name}.txt")
                path.write_text(rewrap(text, kind.width), encoding="utf-8", newline="\n")
                of_kind.append(f"--data.source={path}")
            describe = partial(frame.in_fresh_process, partial(measure, width=kind.width))
            for seed in range(
                options.first_seed, options.first_seed + min(options.seeds, kind.runs)
            ):
                job = partial(
                    frame.train, file, ["--train.threads=1", *of_kind], iter([seed]), describe
                )
                jobs.setdefault(name, []).append(pool.submit(job))
        for name, ended in jobs.items():
            found = [run.result() for run in ended]
            print(f"{name}: {found}", file=sys.stderr)
            labels = {"text": name, "result": KINDS[name].result}
            rows.append(frame.collect(labels, found, KINDS[name].shows))
    frame.report("line_end", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
