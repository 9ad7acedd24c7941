"""What the n-grams of the training text predict.

This is interpolated modified Kneser-Ney smoothing, the best n-gram model of those that Chen &
Goodman (1998) compare. With c the count of the n-gram "context, token", and d the discount of that
count,

    P(token | context) = max(0, c - d) / sum of the context's c
                         + (sum of the context's d / sum of its c) P(token | shorter context)

The shortest context is empty, and its last term is uniform. Only the longest n-grams count their
occurrences; a shorter one counts the distinct tokens that precede it. A context without counts
leaves everything to the shorter one.
"""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from common.atomic import write_atomically
from common.errors import as_user_error
from common.progress import progress

Array = npt.NDArray[Any]
MAX_ORDER = 16
MAX_TOKENS = 10_000_000  # the last ones of a longer split are counted
MAX_VAL_TOKENS = 1_000_000  # of a longer split, in a hundred evenly spaced parts
# Nats per token by which an order must improve the loss. With 0.001, the order of Tiny Shakespeare
# would be 6 instead of 7, whose loss is lower by 0.006.
GAIN = 0.0005
# Longer n-grams are counted until this many orders in a row do not: in Python's reference manual,
# 13-grams are worse than 12-grams, and 16-grams are the best.
LOOK = 3
LONG = 2_000_000  # tokens, which take a few seconds to count


def discounts(counts: Array) -> Array:
    """Return the discounts of the counts 0, 1, 2, and 3 or more (Chen & Goodman 1998, equation 26),
    clipped for texts that are too small for it."""
    times = np.bincount(np.minimum(counts, 5), minlength=5).astype(float)  # that a count occurs
    Y = times[1] / max(1.0, times[1] + 2 * times[2])
    formula = [i - (i + 1) * Y * times[i + 1] / max(1.0, times[i]) for i in (1, 2, 3)]
    return np.array([0.0, *np.clip(formula, 0.1, (1, 2, 3))])


class Order(NamedTuple):
    """The n-grams of one order in a text, numbered in the order of their first token, then of their
    second token, ..."""

    n: int

    contexts: Array
    """Of each n-gram, the number of its first n - 1 tokens."""

    suffixes: Array
    """Of each n-gram, the number of its last n - 1 tokens."""

    numbers: Array
    """The n-gram that starts at each place of the text."""

    shorter: Array
    """The n-gram that is shorter by one token and starts at each place of the text."""

    def smooth(self, counts: Array, ngrams: Any, contexts: Array) -> tuple[Array, Array]:
        """Return both terms of the formula for some n-grams and their contexts."""
        size, discount = self.shorter.max() + 1, discounts(counts)
        total = np.bincount(self.contexts, counts, size)[contexts]
        left = np.bincount(self.contexts, discount[np.minimum(counts, 3)], size)[contexts]
        left = np.divide(left, total, out=np.ones(len(total)), where=total > 0)
        counts = counts[ngrams]
        share = (counts - discount[np.minimum(counts, 3)]) / np.maximum(total, 1)
        return share.astype(np.float32), left.astype(np.float32)

    def predict(self, counts: Array, first: int, end: int, probability: Array) -> Array:
        """Return the probabilities of the text's tokens from `first` to `end`, given those by the
        shorter contexts."""
        places = slice(first - self.n + 1, end - self.n + 1)
        share, left = self.smooth(counts, self.numbers[places], self.shorter[places])
        return share + left * probability


def sort_ngrams(tokens: Array) -> Iterator[Order]:
    """Yield the unigrams of a text, its bigrams, ..."""
    places = np.arange(len(tokens) + 1, dtype=np.int32)  # sorted by the n-grams that start there
    found = numbers = np.zeros_like(places)  # the n-grams, by sorted place and by place
    for n in range(1, len(tokens) + 1):
        # The n-grams that follow a token are sorted already, so sort by this token, and keep their
        # order. NumPy does this in linear time for integers of up to 16 bits.
        follows = places > 0
        places, found = places[follows] - 1, found[follows]
        first = tokens[places]
        by_first = first.argsort(kind="stable")
        first = first[by_first]
        places = places[by_first]
        found = found[by_first]
        del follows, by_first  # of a large text, a tenth of the memory
        is_new = np.ones(len(places), dtype=bool)
        is_new[1:] = (np.diff(first) != 0) | (np.diff(found) != 0)
        suffixes, shorter, contexts = found[is_new], numbers, numbers[places[is_new]]
        found, numbers = np.cumsum(is_new, dtype=np.int32) - 1, np.empty_like(places)
        numbers[places] = found
        del first, is_new
        yield Order(n, contexts, suffixes, numbers, shorter)


def measure_ngrams(train: Array, val: Array, V: int) -> list[list[float]]:
    """Return losses with n-grams of up to 1, 2, ... tokens, in nats per token: on the last tenth of
    `train` when its other tokens are counted, and on `val` except its first token when all are."""
    cut, size = len(train) - max(1, len(train) // 10), len(train)
    # V separates the splits. An n-gram that contains it was not counted.
    smallest = np.min_scalar_type(V)
    tokens = np.concatenate((train, [V], val), dtype=smallest, casting="unsafe")
    # Of both measurements: the number of tokens to count, and which ones to predict.
    parts = [(cut, cut, size), (size, size + 2, len(tokens))]
    losses: list[list[float]] = [[], []]
    shorter = [np.full(end - first, 1 / V) for _, first, end in parts]
    orders = itertools.islice(sort_ngrams(tokens), min(MAX_ORDER, cut))
    last: Order | None = None
    for order in progress(orders, "counting n-grams", size > LONG):
        for i, (counted, first, end) in enumerate(parts):
            numbers = order.numbers[: counted - order.n + 1]
            counts = np.bincount(numbers, minlength=len(order.contexts))
            if last:  # not the longest any more: count the tokens before
                preceded = np.bincount(order.suffixes[counts > 0], minlength=len(last.contexts))
                shorter[i] = last.predict(preceded, first, end, shorter[i])
                del preceded
            probability = order.predict(counts, first, end, shorter[i])
            losses[i].append(float(-np.log(probability).mean()))
            del counts
        last = order
        gains = -np.diff(losses[0])[-LOOK:]
        if gains.size == LOOK and gains.max() < GAIN:
            break
    return losses


def open_baselines(path: Path, train: Array, val: Array, V: int) -> dict[str, float]:
    """Return the losses on `val` by name, from the uniform distribution to the n-grams of the order
    that is best on the end of `train`, from the file, or measure them and write it.

    Raises:
        UserError: for a damaged file.
    """
    if len(val) > MAX_VAL_TOKENS:
        parts = np.array_split(val, 100)
        val = np.concatenate([part[: MAX_VAL_TOKENS // 100] for part in parts])
    if not path.exists():
        with FileLock(f"{path}.lock"):
            if not path.exists():  # another process may have just made it
                held_out, losses = measure_ngrams(train[-MAX_TOKENS:], val, V)
                order = 1 + int(np.argmin(held_out))
                names = ["unigram", "bigram", *(f"{n}-gram" for n in range(3, order + 1))][:order]
                baselines = {"uniform": math.log(V)} | dict(zip(names, losses, strict=False))
                write_atomically(path, json.dumps(baselines).encode())
    with as_user_error(path, "is damaged; delete it"):
        return dict(json.loads(path.read_text()))


def longest_copy(tokens: Array, train: Array) -> tuple[int, int]:
    """Return where the longest stretch of the tokens that stands in `train` begins, and its length.
    Of a longer `train`, the last MAX_TOKENS are searched."""
    found, start, length = as_text(train[-MAX_TOKENS:]), 0, 0
    text = as_text(tokens)
    for i in range(len(text)):
        while i + length < len(text) and text[i : i + length + 1] in found:
            start, length = i, length + 1
    return start, length


def as_text(tokens: Array) -> str:
    """Return one character per token, because Python searches fast in a string."""
    return tokens.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
