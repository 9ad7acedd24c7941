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

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from common.atomic import write_atomically
from common.errors import reading
from common.progress import progress

Array = npt.NDArray[Any]
MAX_ORDER = 16
MAX_TOKENS = 10_000_000  # the last ones of a longer split are counted
MAX_VAL_TOKENS = 1_000_000  # of a longer split, in a hundred evenly spaced parts
# Nats per token by which an order must improve the loss. With 0.001, the order of Tiny Shakespeare
# would be 6 instead of 7, whose loss is lower by 0.006.
GAIN = 0.0005
READ_AT_ONCE = 1_000_000  # tokens
LONG = 2_000_000  # tokens, which take a few seconds to count


class Grams(NamedTuple):
    """The n-grams of one order, sorted. Place -1 stands for one that was not seen."""

    keys: Array
    """V times the place of the first n - 1 tokens among the shorter n-grams, plus the last one."""

    share: Array
    """Of each n-gram, and 0 for one that was not seen: the first term of the formula."""

    left: Array
    """Of each context, and 1 for one that was not seen: what it leaves to the shorter context."""

    def find(self, before: Array, tokens: Array, V: int) -> Array:
        """Return the places of n-grams from the places of their contexts and their last tokens."""
        wanted = before * V + tokens
        places = np.searchsorted(self.keys, wanted)
        places[self.keys.take(places, mode="clip") != wanted] = -1
        return places

    def predict(self, places: Array, before: Array, shorter: Array) -> Array:
        """Return the probabilities of n-grams' last tokens, given those by the shorter contexts."""
        return self.share[places] + self.left[before] * shorter


class NgramModel(NamedTuple):
    """Interpolated n-grams of up to some order."""

    V: int
    orders: list[Grams]
    """Unigrams, bigrams, ..."""

    losses: list[float]
    """The validation loss with n-grams of up to each order, in nats per token."""

    @property
    def baselines(self) -> dict[str, float]:
        """The validation losses by name, from the uniform distribution to the longest n-grams."""
        names = ["unigram", "bigram", *(f"{n}-gram" for n in range(3, len(self.orders) + 1))]
        return {"uniform": math.log(self.V)} | dict(zip(names, self.losses, strict=False))

    def read(self, tokens: Array) -> tuple[Array, Array]:
        """Return for each token its surprisal in nats, and how many tokens before it make the
        longest context in the counts."""
        known = len(self.orders) - 1  # tokens that can matter
        surprisal, lengths = [], []
        for start in range(0, len(tokens), READ_AT_ONCE):
            first = max(0, start - known)
            part = tokens[first : start + READ_AT_ONCE]
            probability, length = np.full(len(part), 1 / self.V), np.full(len(part), -1)
            before = np.zeros(len(part), dtype=np.int64)
            for grams in self.orders:
                length += before >= 0
                places = grams.find(before, part, self.V)
                probability = grams.predict(places, before, probability)
                before = shift(places)
            surprisal.append(-np.log(probability[start - first :]))
            lengths.append(length[start - first :])
        return np.concatenate(surprisal), np.concatenate(lengths)


def shift(places: Array) -> Array:
    """Return for each token the place of the n-gram that ends before it."""
    return np.concatenate(([-1], places[:-1]))


def discounts(counts: Array) -> Array:
    """Return the discounts of the counts 0, 1, 2, and 3 or more (Chen & Goodman 1998, equation 26),
    clipped for texts that are too small for it."""
    times = np.bincount(np.minimum(counts, 5), minlength=5).astype(float)  # that a count occurs
    Y = times[1] / max(1.0, times[1] + 2 * times[2])
    formula = [i - (i + 1) * Y * times[i + 1] / max(1.0, times[i]) for i in (1, 2, 3)]
    return np.array([0.0, *np.clip(formula, 0.1, (1, 2, 3))])


def smooth(keys: Array, counts: Array, contexts: int, V: int) -> Grams:
    """Return the n-grams with both terms of the formula.

    Args:
        contexts: number of n-grams that are shorter by one token.
    """
    context, discount = keys // V, discounts(counts)[np.minimum(counts, 3)]
    total = np.bincount(context, counts, contexts + 1)
    left = np.bincount(context, discount, contexts + 1)
    left = np.divide(left, total, out=np.ones(contexts + 1), where=total > 0)
    share = np.append((counts - discount) / np.maximum(total[context], 1), 0)
    return Grams(keys, share.astype(np.float32), left.astype(np.float32))


def count_ngrams(
    train: Array,
    val: Array,
    V: int,
    max_order: int,
    gain: float = -math.inf,
    what: str = "counting n-grams",
) -> NgramModel:
    """Count the n-grams of `train`, and measure the loss on `val` except its first token.

    Args:
        max_order: largest n.
        gain: stop after an order that improves the loss by less than this.
        what: the name of the work, for its progress.
    """
    found = NgramModel(V, [], [])
    orders, losses, sizes = found.orders, found.losses, [1]
    before, val_before = np.zeros(len(train), np.int64), np.zeros(len(val), np.int64)
    shorter, places, val_places = np.full(len(val), 1 / V), before, val_before
    for n in progress(range(1, min(max_order, len(train)) + 1), what, len(train) > LONG):
        start = n - 1  # the first tokens do not end an n-gram
        keys, first, inverse, counts = np.unique(
            before[start:] * V + train[start:],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        if orders:  # not the longest any more: count the distinct tokens before
            preceded = np.bincount(places[start:][first], minlength=sizes[-1])
            orders[-1] = smooth(orders[-1].keys, preceded, sizes[-2], V)
            shorter = orders[-1].predict(val_places, val_before, shorter)
            val_before = shift(val_places)
        orders.append(smooth(keys, counts, sizes[-1], V))
        sizes.append(len(keys))
        val_places = orders[-1].find(val_before, val, V)
        probability = orders[-1].predict(val_places, val_before, shorter)
        losses.append(float(-np.log(probability[1:]).mean()))
        if n > 1 and losses[-2] - losses[-1] < gain:
            break
        places = np.concatenate((np.full(start, -1), inverse))
        before = shift(places)
    return found


def choose_order(train: Array, V: int) -> int:
    """Return the order up to which every order improves the loss on the last tenth by GAIN."""
    cut = len(train) - max(1, len(train) // 10)
    losses = count_ngrams(
        train[:cut], train[cut - 1 :], V, MAX_ORDER, GAIN, "choosing their length"
    ).losses
    return 1 + int((-np.diff(losses) >= GAIN).sum())  # it stopped at the first that did not


def open_ngrams(path: Path, train: Array, val: Array, V: int) -> NgramModel:
    """Return the n-grams from the file, or count them and write it.

    Raises:
        UserError: for a damaged file.
    """
    train = train[-MAX_TOKENS:]
    if len(val) > MAX_VAL_TOKENS:
        parts = np.array_split(val, 100)
        val = np.concatenate([part[: MAX_VAL_TOKENS // 100] for part in parts])
    if not path.exists():
        with FileLock(f"{path}.lock"):
            if not path.exists():  # another process may have just made it
                write_ngrams(path, count_ngrams(train, val, V, choose_order(train, V)))
    with reading(path, "is damaged; delete it"), open(path, "rb") as file, np.load(file) as arrays:
        losses = arrays["losses"].tolist()
        orders = [
            Grams(*(arrays[f"{name}.{n}"] for name in Grams._fields)) for n in range(len(losses))
        ]
        return NgramModel(V, orders, losses)


def write_ngrams(path: Path, ngrams: NgramModel) -> None:
    """Write what `open_ngrams` reads, atomically."""
    arrays = {
        f"{name}.{n}": array
        for n, grams in enumerate(ngrams.orders)
        for name, array in grams._asdict().items()
    }
    write_atomically(path, lambda file: np.savez(file, losses=np.array(ngrams.losses), **arrays))


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


def mixed_losses(one: Array, other: Array) -> Array:
    """Return the surprisal of each token under the mixture w P_one + (1 - w) P_other.

    The weight w that is best for one half of the tokens is used for the other half.

    Args:
        one, other: the surprisals under either, in nats.
    """
    halves = [slice(len(one) // 2), slice(len(one) // 2, None)]
    mixed, ratio = np.empty(len(one)), np.exp(np.clip(other - one, -600, 600))  # P_one / P_other
    for fitted, used in (halves, halves[::-1]):
        w, part = 0.5, ratio[fitted]
        for i in range(2, 22 if part.size else 2):  # bisection: the mean log P is concave in w
            slope = ((part - 1) / (w * part + 1 - w)).mean()
            w += math.copysign(0.5**i, slope)
        mixed[used] = -np.logaddexp(math.log(w) - one[used], math.log(1 - w) - other[used])
    return mixed
