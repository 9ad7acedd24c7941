"""Training batches are a pure function of (seed, step); an evaluation is one fixed pass."""

import dataclasses
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from common.errors import UserError
from configs.config import DataConfig
from data.batches import one_pass, open_batches, text_batches
from data.corpus import Corpus, Text
from data.ngrams import measure_ngrams
from data.tokenizer import ByteTokenizer, CharTokenizer

CORPUS = Corpus("numbers", 0)


def make(length: int, block_size: int, seed: int = 0, val: float = 0.2, test: float = 0.0) -> Any:
    """Return batches of tokens that equal their positions, so that a sequence shows its start."""
    text = Text(np.arange(length, dtype=np.uint16), ByteTokenizer(), CORPUS, Path())
    return text_batches(text, DataConfig(val_fraction=val, test_fraction=test), block_size, seed)


sizes = st.integers(1, 12).flatmap(
    lambda T: st.tuples(st.integers(6 * (T + 1), 400), st.just(T), st.integers(1, 9))
)


@given(sizes, st.integers(0, 5), st.integers(0, 3))
def test_epoch_has_each_adjacent_sequence_once(
    size: tuple[int, int, int], epoch: int, seed: int
) -> None:
    length, T, B = size
    batches = make(length, T, seed)
    split = len(batches.tokens["training"])
    count = (split - T) // T  # sequences that fit at any offset
    first, end = epoch * count // B, -(-(epoch + 1) * count // B)
    sequences = torch.cat([batches.train_batch(step, B) for step in range(first, end)])
    sequences = sequences[epoch * count - first * B :][:count]
    assert sequences.dtype == torch.int64 and sequences.shape == (count, T + 1)
    assert (sequences.diff(dim=1) == 1).all()
    assert sequences.max() < split  # no sequence reaches into validation
    first, *_ = starts = sorted(sequences[:, 0].tolist())
    assert starts == [first + T * i for i in range(count)] and first < T


def test_batches_are_the_same_in_every_order_and_version() -> None:
    """Never change this sum, so that runs of earlier versions resume with the same sequences."""
    batches = make(300, 4, seed=7)
    drawn = [batches.train_batch(step, 5).flatten() for step in reversed(range(100))]
    sampled = torch.cat(drawn[::-1])
    assert (sampled * torch.arange(len(sampled))).sum() == 376408885


@given(sizes, st.integers(1, 60), st.integers(0, 30))
def test_splits_are_consecutive(size: tuple[int, int, int], val: int, test: int) -> None:
    """A pass over a held-out split predicts all tokens except the first, in order."""
    length, T, B = size
    length *= 4
    n_test, n_train = round(length * test / 100), length * (100 - val - test) // 100
    assume(min(n_train, length - n_train - n_test) > T and (n_test > T or test == 0))
    batches = make(length, T, val=val / 100, test=test / 100)
    assert batches.tokens["training"].tolist() == list(range(n_train))
    assert batches.validation_tokens == length - n_test - n_train - 1
    ends = n_train, length - n_test, length
    for name, (first, end) in zip(("validation", "test"), pairwise(ends), strict=True):
        predicted = [token for x in batches.split(name, B) for token in x[:, 1:].flatten().tolist()]
        assert predicted == [*range(first + 1, end)]


@given(st.integers(2, 99), st.integers(1, 12), st.integers(1, 99), st.integers(1, 3))
@example(99, 12, 11, 1)  # a limit of less than one sequence
@example(98, 12, 97, 3)  # exactly the split, whose last sequence is short
@example(98, 12, 96, 3)
def test_pass_is_complete_or_evenly_spaced_within_the_limit(
    count: int, T: int, limit: int, B: int
) -> None:
    assume(count > T)  # true of every split
    full, complete = (count - 1) // T, limit >= count - 1
    chosen = full if complete else max(1, limit // T)
    starts = [T * math.floor(i * full / chosen) for i in range(chosen)]
    expected = [list(range(start, start + T + 1)) for start in starts]
    if complete and (count - 1) % T:
        expected.append(list(range(T * full, count)))
    passed = list(one_pass(np.arange(count, dtype=np.uint8), T, B, limit=limit))
    assert [row.tolist() for batch in passed for row in batch] == expected
    sizes = [len(batch) for batch in passed if batch.size(1) == T + 1]
    assert sizes == [min(B, chosen - i) for i in range(0, chosen, B)]
    assert all(batch.dtype == torch.int64 for batch in passed)


def test_split_of_exactly_one_sequence_is_enough() -> None:
    for val, test, sizes in ((0.1, 0, "90, 10, 0"), (0.9, 0, "10, 90, 0"), (0.4, 0.1, ".*, 10")):
        assert make(100, 9, val=val, test=test).train_batch(3, 2).shape == (2, 10)
        with pytest.raises(UserError, match=rf"splits have \[{sizes}\] tokens, .* has 11"):
            make(100, 10, val=val, test=test)


# --- repeated random strings -------------------------------------------------------------------


def test_repeat_source_has_its_own_vocabulary() -> None:
    config = DataConfig(source="repeat", task_kinds=30, task_length=30)
    own = open_batches(config, 60, 0).tokenizer  # the longest period, exactly
    assert open_batches(config, 60, 0, own).tokenizer == own and own.vocab_size == 30
    assert own.labels == [*"abcdefghijklmnopqrstuvwxyzABCD"]
    saved = CharTokenizer("".join(map(chr, range(33, 63))))  # of an earlier version
    assert open_batches(config, 60, 0, saved).tokenizer == saved
    for wrong, block_size in ((dataclasses.replace(config, task_kinds=29), 60), (config, 59)):
        with pytest.raises(UserError, match="must be at most"):
            open_batches(wrong, block_size, 0)


# --- baselines ---------------------------------------------------------------------------------


def test_ngrams_of_each_division_of_a_text_are_its_own(tmp_path: Path) -> None:
    """All divisions share a cache entry; each but the first shares one end of a split with it."""
    tokens = np.random.default_rng(0).integers(0, 3, 1000).cumsum().astype(np.uint8) % 5
    text = Text(tokens, CharTokenizer("abcde"), CORPUS, tmp_path)
    ends = {(0.2, 0.1): (700, 900), (0.1, 0.2): (700, 800), (0.1, 0.1): (800, 900)}
    for (val, test), (train_end, val_end) in [*ends.items()] * 2:
        config = DataConfig(val_fraction=val, test_fraction=test)
        found = text_batches(text, config, 8, 0).baselines
        splits = tokens[:train_end], tokens[train_end:val_end]
        assert [*found.values()][1:] == measure_ngrams(*splits, 5)[1][:2]
