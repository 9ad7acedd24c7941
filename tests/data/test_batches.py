"""Sequences: a pure function of (seed, step) to train on, one fixed pass to evaluate."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from common.errors import UserError
from configs.load import read_config
from data.batches import RepeatBatches, TextBatches, baseline_losses, one_pass, open_batches
from data.config import DataConfig
from data.corpus import Corpus
from data.tokenizer import ByteTokenizer, CharTokenizer

CONFIGS = Path(__file__).parent.parent.parent / "configs"

# Tokens that are their own positions, so that a sequence says where it was cut.
CHARS = "".join(chr(0x100 + i) for i in range(2000))


def make(length: int, block_size: int, seed: int = 0, val: float = 0.2, test: float = 0.0) -> Any:
    corpus = Corpus(np.arange(length, dtype=np.uint16), CharTokenizer(CHARS), {})
    return TextBatches(corpus, DataConfig(val_fraction=val, test_fraction=test), block_size, seed)


sizes = st.integers(1, 12).flatmap(
    lambda T: st.tuples(st.integers(6 * (T + 1), 400), st.just(T), st.integers(1, 9))
)


@given(sizes, st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_is_each_sequence_of_a_cut_once(
    size: tuple[int, int, int], epoch: int, seed: int
) -> None:
    length, T, B = size
    batches = make(length, T, seed)
    split = len(batches.train_tokens)
    count = (split - T) // T  # so many predict T tokens each, from any offset
    first, end = epoch * count // B, -(-(epoch + 1) * count // B)
    sequences = torch.cat([batches.train(step, B) for step in range(first, end)])
    sequences = sequences[epoch * count - first * B :][:count]
    assert sequences.dtype == torch.int64 and sequences.shape == (count, T + 1)
    assert (sequences.diff(dim=1) == 1).all(), "a sequence is a stretch of the text"
    assert sequences.max() < split, "it reaches into validation"
    starts = sequences[:, 0].sort().values
    assert starts.tolist() == [int(starts[0]) + T * i for i in range(count)], "adjacent, each once"
    assert starts[0] < T, "tokens are left out at the beginning"


@given(st.integers(0, 50), st.integers(0, 3))
def test_sequences_depend_on_seed_and_step_alone(step: int, seed: int) -> None:
    first, second = make(300, 4, seed), make(300, 4, seed)
    second.train(7, 5)
    list(second.validation(3))
    assert torch.equal(first.train(step, 6), second.train(step, 6))
    halves = torch.cat([first.train(2 * step, 3), first.train(2 * step + 1, 3)])
    assert torch.equal(first.train(step, 6), halves), "the order depends on the size of the batch"


def test_training_draws_what_it_always_drew() -> None:
    """A run that was begun with an earlier version resumes on the same sequences."""
    assert make(300, 4, seed=7).train(3, 4)[:, 0].tolist() == [19, 131, 191, 27]
    assert repeats(seed=7).train(3, 2)[:, :3].tolist() == [[0, 5, 10], [14, 8, 13]]


def test_each_epoch_and_seed_has_its_own_offset_and_order() -> None:
    T, count = 8, 99
    offsets, orders = set(), set()
    for seed in range(5):
        for epoch in range(40):
            starts = make(1000, T, seed).train(epoch, count)[:, 0]
            offsets.add(int(starts.min()))
            orders.add(tuple((starts // T).tolist()))
    assert offsets == set(range(T)), "every offset is drawn, and no other"
    assert len(orders | {tuple(range(count))}) == 201, "an order is drawn twice, or none"


@given(sizes, st.floats(0.01, 0.6), st.floats(0.0, 0.3))
def test_the_splits_are_one_after_the_other(
    size: tuple[int, int, int], val: float, test: float
) -> None:
    """And a pass over each that is held out predicts all but its first token, in order."""
    length, T, B = size
    length *= 4
    n_test, n_train = round(length * test), math.floor(round(length * (1 - val - test), 3))
    n_val = length - n_train - n_test
    assume(min(n_train, n_val) > T and (n_test > T or test == 0))
    batches = make(length, T, val=val, test=test)
    bounds = [0, n_train, n_train + n_val, length]
    splits = [list(range(*bounds[i : i + 2])) for i in range(3)]
    found = [batches.train_tokens, batches.val_tokens, batches.test_tokens]
    assert [tokens.tolist() for tokens in found] == splits
    for tokens, split in ((splits[1], batches.validation), (splits[2], batches.test)):
        passed = list(split(B))
        assert all((x.diff(dim=1) == 1).all() and x.dtype == torch.int64 for x in passed)
        assert [t for x in passed for t in x[:, 1:].flatten().tolist()] == tokens[1:]
        rows = max(0, len(tokens) - 1) // T
        full = [(min(B, rows - i), T + 1) for i in range(0, rows, B)]
        rest = [(1, (len(tokens) - 1) % T + 1)] if tokens and (len(tokens) - 1) % T else []
        assert [tuple(x.shape) for x in passed] == full + rest


@given(st.integers(1, 99), st.integers(1, 12), st.integers(1, 3), st.data())
def test_a_sliding_window_predicts_each_token_once(
    count: int, T: int, B: int, data: st.DataObject
) -> None:
    """By its last `stride` places, so from T + 1 - stride tokens or more; but for the first few."""
    stride = data.draw(st.integers(1, T))
    passed = list(one_pass(np.arange(count, dtype=np.uint8), T, B, stride))
    assert all(x.size(0) <= B and x.size(1) <= T + 1 for x in passed)
    assert all((x.diff(dim=1) == 1).all() for x in passed)
    predicted = [t for x in passed for t in x[:, 1 + T - stride :].flatten().tolist()]
    assert predicted == list(range(1 + T - stride, count))


def test_a_split_too_short_is_named() -> None:
    for val, test in ((0.1, 0), (0.895, 0), (0.4, 0.1)):
        assert make(100, 9, val=val, test=test).train(3, 2).shape == (2, 10)
        with pytest.raises(UserError, match=r"splits have \[.*\b10\b.*\] tokens, .* = 11"):
            make(100, 10, val=val, test=test)


@pytest.mark.parametrize("name", ["enwik8", "text8"])
def test_a_hundred_million_bytes_are_split_as_others_do(name: str) -> None:
    config = read_config({}, str(CONFIGS / f"{name}.yaml"))
    assert (config.data.source, config.data.tokenizer) == (name, "byte")
    corpus = Corpus(np.zeros(10**8, dtype=np.uint8), ByteTokenizer(), {})
    batches = TextBatches(corpus, config.data, config.model.block_size, seed=0)
    splits = (batches.train_tokens, batches.val_tokens, batches.test_tokens)
    assert [len(tokens) for tokens in splits] == [90_000_000, 5_000_000, 5_000_000]


def test_a_text_is_described_in_one_line() -> None:
    info = {"source": "a\x1b\nb", "tokens": 1234}
    corpus = Corpus(np.arange(1234, dtype=np.uint16), CharTokenizer(CHARS), info)
    for test, shown in ((0.0, ""), (0.25, ", 308 for testing")):
        config = DataConfig(val_fraction=0.1, test_fraction=test)
        assert str(TextBatches(corpus, config, 8, 0)) == (
            rf"a\x1b\nb, 1,234 tokens (2000 distinct), 124 held out for validation{shown}"
        )


# --- random strings repeated -------------------------------------------------------------------


def repeats(seed: int = 0) -> RepeatBatches:
    config = DataConfig(source="repeat", repeat_vocab=20, repeat_min_period=3, repeat_max_period=8)
    return RepeatBatches(config, 24, seed)


def period(sequence: list[int]) -> int:
    return next(p for p in range(1, len(sequence)) if sequence[p:] == sequence[:-p])


def test_repeated_strings_are_of_distinct_characters_and_any_period() -> None:
    batches = repeats()
    for sequences in (batches.train(3, 256), *batches.validation(256), *batches.test(256)):
        rows = sequences.tolist()
        assert sequences.dtype == torch.int64 and {len(row) for row in rows} == {25}
        assert {period(row) for row in rows} == set(range(3, 9))
        assert all(len(set(row)) == period(row) for row in rows)
        assert {row[0] for row in rows} == set(range(20))
    assert str(batches) == "random strings of 3 to 8 distinct characters out of 20, repeated"


def test_repeated_strings_are_a_function_of_seed_and_step() -> None:
    held_out = [torch.cat(list(split(9))) for split in (repeats().validation, repeats(1).test)]
    drawn = [repeats().train(0, 256), repeats().train(1, 256), repeats(1).train(0, 256), *held_out]
    for i, one in enumerate(drawn):
        assert all((one == other).all(1).sum() < 3 for other in drawn[:i]), "drawn twice"
    assert torch.equal(drawn[0], repeats().train(0, 256))
    batches = list(repeats(1).validation(7))
    assert [len(batch) for batch in batches] == [7] * 36 + [4]
    assert torch.equal(torch.cat(batches), held_out[0])


def test_repeat_has_its_own_characters(workplace: Path) -> None:
    Path("one.yaml").write_text("data: {source: [repeat]}")
    assert read_config({}, "one.yaml").data == DataConfig(source="repeat")
    for V in (64, 50_000):
        config = DataConfig(source="repeat", repeat_vocab=V)
        own = open_batches(config, 64, 0).tokenizer
        assert open_batches(config, 64, 0, own).tokenizer == own and own.vocab_size == V
        assert len(set(own.labels)) == V and "".join(own.labels).isprintable() == (V == 64)
    for options, block_size, tokenizer, message in (
        ({}, 63, None, r"repeat_max_period, and this at most .* half of --model.block_size"),
        ({"repeat_vocab": 31}, 64, None, "at most --data.repeat_vocab"),
        ({"repeat_min_period": 33}, 64, None, "at most --data.repeat_max_period"),
        ({"tokenizer": "byte"}, 64, None, "has its own vocabulary"),
        ({}, 64, CharTokenizer("abc"), "has its own vocabulary"),
    ):
        with pytest.raises(UserError, match=message):
            open_batches(DataConfig(source="repeat", **options), block_size, 0, tokenizer)


# --- baselines ---------------------------------------------------------------------------------


def by_definition(train: list[int], val: list[int], V: int) -> dict[str, float]:
    def unigram(b: int) -> float:
        return (train.count(b) + 1) / (len(train) + V)

    def bigram(a: int, b: int) -> float:
        pairs = list(pairwise(train))
        return (pairs.count((a, b)) + unigram(b)) / (train[:-1].count(a) + 1)

    predicted = list(pairwise(val))
    return {
        "uniform": math.log(V),
        "unigram": -sum(math.log(unigram(b)) for _, b in predicted) / len(predicted),
        "bigram": -sum(math.log(bigram(a, b)) for a, b in predicted) / len(predicted),
    }


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=60),
    st.lists(st.integers(0, 6), min_size=2, max_size=30),
)
def test_baselines_by_their_definition(train: list[int], val: list[int]) -> None:
    """In the type that tokens have, which must not run over: 230 * V + 230 is no byte."""
    high = [np.array(tokens, dtype=np.uint8) + 230 for tokens in (train, val)]
    expected = by_definition(high[0].tolist(), high[1].tolist(), 237)
    assert baseline_losses(high[0], high[1], 237) == pytest.approx(expected)


def test_baselines_are_of_the_end_of_training_and_the_beginning_of_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = np.random.default_rng(0).integers(0, 5, 1000).astype(np.uint8)
    corpus = Corpus(tokens, CharTokenizer("abcde"), {})
    batches = TextBatches(corpus, DataConfig(val_fraction=0.2, test_fraction=0.1), 8, 0)
    train, val = tokens[:700].tolist(), tokens[700:900].tolist()
    assert batches.baselines() == pytest.approx(by_definition(train, val, 5))
    monkeypatch.setattr("data.batches.BASELINE_TOKENS", 100)
    assert batches.baselines() == pytest.approx(by_definition(train[-100:], val[:100], 5))


def test_baselines_of_repeated_strings_are_counted_on_strings_of_their_own() -> None:
    val = torch.cat(list(repeats().validation(256))).flatten().tolist()
    losses = by_definition(repeats().draw([0, 2], 1024).flatten().tolist(), val[:200], 20)
    assert repeats(seed=3).baselines()["unigram"] == pytest.approx(losses["unigram"], abs=0.01)
