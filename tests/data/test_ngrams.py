"""N-grams equal their definition, and are kept in the cache."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import data.ngrams
from common.errors import UserError
from data.ngrams import longest_copy, measure_ngrams, open_baselines
from lens.ngram_model import count_ngrams

Text = tuple[int, ...]
V = 5
texts = st.lists(st.integers(0, V - 1), min_size=2, max_size=80)


class Dictionary:
    """Interpolated modified Kneser-Ney, from dictionaries."""

    def __init__(self, train: Text, order: int) -> None:
        grams = {
            n: [train[i : i + n] for i in range(len(train) - n + 1)] for n in range(1, order + 1)
        }
        self.contexts = {()} | {gram for n in range(1, order) for gram in grams[n]}
        self.counts = {order: Counter(grams[order])}
        for n in range(1, order):  # one for each token before
            self.counts[n] = Counter(gram[1:] for gram in {*grams[n + 1]})
        self.order = order

    def discount(self, n: int, count: int) -> float:
        times = Counter(min(count, 5) for count in self.counts[n].values())
        Y = times[1] / max(1, times[1] + 2 * times[2])
        i = min(count, 3)
        return min(i, max(0.1, i - (i + 1) * Y * times[i + 1] / max(1, times[i])))

    def probability(self, context: Text, token: int) -> float:
        n = len(context) + 1
        shorter = self.probability(context[1:], token) if context else 1 / V
        following = [(g, c) for g, c in self.counts[n].items() if g[:-1] == context]
        total = sum(c for _, c in following)
        if not total:
            return shorter
        left = sum(self.discount(n, c) for _, c in following) / total
        count = self.counts[n][*context, token]
        share = (count - self.discount(n, count)) / total if count else 0.0
        return share + left * shorter

    def read(self, tokens: Text) -> tuple[list[float], list[int]]:
        pasts = [tokens[max(0, i - self.order + 1) : i] for i in range(len(tokens))]
        nats = [-math.log(self.probability(c, t)) for c, t in zip(pasts, tokens, strict=True)]
        seen = [[k for k in range(len(c) + 1) if c[len(c) - k :] in self.contexts] for c in pasts]
        return nats, [max(each) for each in seen]


def numbers(tokens: Any) -> Any:
    """Return tokens as small integers, which must not overflow."""
    return np.array(tokens, dtype=np.uint8)


@given(texts, texts, st.integers(1, 6))
@example([0, 0], [1, 1], 2)
@example([0, 1, 2, 3, 0, 1, 2, 4] * 2, [1, 2, 3], 3)  # the first two follow a 0, there
def test_losses_are_those_of_ngrams_up_to_each_order(
    train: list[int], val: list[int], order: int
) -> None:
    """The tokens of the validation split are neither counted nor preceded by training tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.ngrams, "MAX_ORDER", order)
        patch.setattr(data.ngrams, "GAIN", -math.inf)
        found = measure_ngrams(numbers(train), numbers(val), V)
    cut = len(train) - max(1, len(train) // 10)
    assert {*map(len, found)} == {min(order, cut)}
    for n, losses in enumerate(zip(*found, strict=True), start=1):
        held_out = Dictionary((*train[:cut],), n).read((*train,))[0][cut:]
        nats = Dictionary((*train,), n).read((*val,))[0][1:]
        assert losses == pytest.approx((np.mean(held_out), np.mean(nats)), rel=1e-5)


@pytest.mark.parametrize("V", [256, 65_536])
def test_last_token_of_an_integer_type_is_not_the_end_of_the_split(V: int) -> None:
    train, val = (
        np.random.default_rng(0).integers(V - 2, V, (2, 300)).astype(f"u{V.bit_length() // 8}")
    )
    (unigram, *_), counted = measure_ngrams(train, val, V)[1], count_ngrams(train, V, 1)
    assert unigram == pytest.approx(counted.read(val)[0][1:].mean())


def test_the_order_is_the_best_on_tokens_that_are_not_counted(tmp_path: Path) -> None:
    """Of a repeated string, of random tokens, and of repeated lines with random tokens between
    them, where bigrams are no better than unigrams, and trigrams are."""
    random = np.random.default_rng(4)
    string, *lines = (random.integers(0, V, size).tolist() for size in (30, *[8] * 20))
    chosen = zip(random.integers(0, 20, 100), random.integers(0, V, 100), strict=True)
    mixed = [x for line, between in chosen for x in (*lines[line], between)]
    for i, tokens in enumerate((string * 40, random.integers(0, V, 1000), mixed)):
        train = numbers(tokens)
        cut = len(train) - len(train) // 10
        losses = [count_ngrams(train[:cut], V, n).read(train)[0][cut:].mean() for n in range(1, 17)]
        gains = [shorter - longer for shorter, longer in pairwise(losses)]
        end = next((n for n in range(3, 15) if max(gains[n - 3 : n]) < 0.0005), 15) + 1
        best = 1 + int(np.argmin(losses[:end]))
        assert len(open_baselines(tmp_path / f"{i}", train, train, V)) == best + 1


def test_ngrams_are_those_of_the_last_tokens_and_a_damaged_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = np.random.default_rng(0).integers(0, 3, 900).cumsum().astype(np.uint8) % V
    monkeypatch.setattr(data.ngrams, "MAX_TOKENS", 500)
    path, train, val = tmp_path / "baselines", tokens[:700], tokens[700:]
    made = open_baselines(path, train, val, V)
    again = open_baselines(path, train[:0], val[:0], V)  # from the file alone
    want = measure_ngrams(tokens[200:700], val, V)[1]
    names = ["uniform", "unigram", "bigram"]
    assert made == again == dict(zip(names, [math.log(V), *want], strict=False))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{path} is damaged; delete it"):
        open_baselines(path, train, val, V)


def test_long_validation_split_is_measured_on_evenly_spaced_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = np.arange(40_000, dtype=np.uint16) % V
    tokens[10_000:] = np.random.default_rng(0).integers(0, V, 30_000)
    monkeypatch.setattr(data.ngrams, "MAX_VAL_TOKENS", 4000)
    loss = open_baselines(tmp_path / "baselines", tokens[:5000], tokens, V)["bigram"]
    whole = measure_ngrams(tokens[:5000], tokens, V)[1][1]
    assert loss == pytest.approx(whole, rel=0.05)


@given(texts, texts, st.sampled_from([0, 250, 0xD7FE]))
def test_longest_copy_is_found(train: list[int], tokens: list[int], offset: int) -> None:
    """Also of tokens whose numbers are surrogates in Unicode, or bytes of longer numbers."""
    stretches = [(i, n) for i in range(len(tokens)) for n in range(1, len(tokens) - i + 1)]
    grams = {(*train[i : i + n],) for i in range(len(train)) for n in range(len(train) - i + 1)}
    copied = [(n, -i) for i, n in stretches if (*tokens[i : i + n],) in grams]
    length, start = max(copied, default=(0, 0))
    arrays = [np.array(each, dtype=np.uint16) + offset for each in (tokens, train)]
    assert longest_copy(*arrays) == (-start, length)
