"""The n-grams of a training split as a model that reads any text, and its mixture with another."""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from data.batches import Batches
from data.ngrams import MAX_TOKENS, Array, Order, sort_ngrams
from lens.subject import spread_places

READ_AT_ONCE = 1_000_000  # tokens


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


@functools.lru_cache(maxsize=1)  # which commands read several times
def ngrams_of(batches: Batches) -> NgramModel:
    """Return the n-grams of the training split, of up to the order of the baselines."""
    train, order = batches.tokens["training"][-MAX_TOKENS:], len(batches.baselines) - 1
    return count_ngrams(train, batches.tokenizer.vocab_size, order)


def count_ngrams(train: Array, V: int, max_order: int) -> NgramModel:
    """Count the n-grams of up to `max_order` tokens."""
    model, orders = NgramModel(V, []), itertools.islice(sort_ngrams(train), max_order)
    order: Order | None = next(orders)
    while order:
        longer = next(orders, None)
        contexts, size = order.contexts, len(order.contexts)
        # Only the longest count their occurrences.
        counts = np.bincount(longer.suffixes if longer else order.numbers, minlength=size)
        share, terms = order.smooth(counts, slice(None), contexts)
        left = np.ones(order.shorter.max() + 2, np.float32)
        left[contexts] = terms
        keys = np.empty(size, np.int64)
        keys[order.numbers] = V * order.shorter[:-1].astype(np.int64) + train[order.n - 1 :]
        model.orders.append(Grams(keys, np.append(share, np.float32(0)), left))
        order = longer
    return model


def read_ngrams(batches: Batches, count: int) -> tuple[Array, Array]:
    """Return the surprisal of each token that `count` sequences predict, and the length of its
    longest counted context, (count, T) each. The n-grams also read the tokens before a sequence."""
    T, known, parts = batches.block_size, len(ngrams_of(batches).orders) - 1, []
    for place in spread_places(batches, count):
        start = place * T + 1  # the first token that is predicted
        read = ngrams_of(batches).read(
            batches.tokens["validation"][max(0, start - known) : start + T]
        )
        parts.append([array[-T:] for array in read])
    nats, lengths = zip(*parts, strict=True)
    return np.stack(nats), np.stack(lengths)


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
