"""Windows: a pure function of (seed, step) to train on, one fixed pass to evaluate."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from configs.load import SECTIONS, make_parser, read_config
from data.batches import RepeatBatches, TextBatches, ladder, open_batches, windows_per_epoch
from data.config import DataConfig
from data.corpus import Corpus
from data.tokenizer import ByteTokenizer, CharTokenizer

CONFIGS = Path(__file__).parent.parent.parent / "configs"

# Tokens that are their own positions, so that a window says where it was cut.
CHARS = "".join(chr(0x100 + i) for i in range(2000))


def make(
    length: int,
    block_size: int,
    seed: int = 0,
    val_fraction: float = 0.2,
    test_fraction: float = 0.0,
) -> TextBatches:
    corpus = Corpus(np.arange(length, dtype=np.uint16), CharTokenizer(CHARS), {})
    config = DataConfig(val_fraction=val_fraction, test_fraction=test_fraction)
    return TextBatches(corpus, config, block_size, seed)


sizes = st.integers(1, 12).flatmap(
    lambda T: st.tuples(st.integers(6 * (T + 1), 400), st.just(T), st.integers(1, 9))
)


@given(sizes, st.integers(0, 5))
def test_an_epoch_covers_the_training_split_once_and_nothing_else(
    size: tuple[int, int, int], epoch: int
) -> None:
    length, T, batch_size = size
    batches = make(length, T)
    split = len(batches.train_tokens)
    count = windows_per_epoch(split, T)
    steps = range(epoch * count // batch_size, -(-(epoch + 1) * count // batch_size))
    windows = torch.cat([batches.train(step, batch_size) for step in steps])
    skip = epoch * count - steps[0] * batch_size
    windows = windows[skip : skip + count]
    assert windows.shape == (count, T + 1)
    assert (windows.diff(dim=1) == 1).all(), "a window is a stretch of the text"
    assert windows.max() < split, "a window reaches into validation"
    read = windows[:, :-1].flatten()
    assert len(read.unique()) == len(read), "a token is read twice in an epoch"
    assert len(read) > split - 2 * T - 1, "tokens are left out"


@given(st.integers(0, 50), st.integers(0, 3))
def test_windows_depend_on_seed_and_step_alone(step: int, seed: int) -> None:
    first, second = make(300, 4, seed), make(300, 4, seed)
    second.train(7, 5)
    list(second.validation(3))
    assert torch.equal(first.train(step, 6), second.train(step, 6))
    assert torch.equal(
        first.train(step, 6), torch.cat([first.train(2 * step, 3), first.train(2 * step + 1, 3)])
    ), "the order of windows depends on the size of the batch"


def test_epochs_and_seeds_differ_in_order_and_offset() -> None:
    batches = make(1000, 8)
    count = windows_per_epoch(800, 8)
    epochs = [batches.train(epoch, count)[:, 0] for epoch in range(6)]
    assert len({tuple(starts.tolist()) for starts in epochs}) == 6
    assert len({int(starts[0]) % 8 for starts in epochs}) > 1, "windows are always cut alike"
    assert not torch.equal(epochs[0], make(1000, 8, seed=1).train(0, count)[:, 0])
    assert not torch.equal(epochs[0], epochs[0].sort().values), "windows come in order"


@given(sizes)
def test_validation_predicts_every_token_but_the_first_once(size: tuple[int, int, int]) -> None:
    length, T, batch_size = size
    batches = make(length, T, val_fraction=0.5)
    windows = list(batches.validation(batch_size))
    predicted = torch.cat([w[:, 1:].flatten() for w in windows])
    assert predicted.sort().values.tolist() == batches.val_tokens[1:].tolist()
    assert all(w.size(0) <= batch_size and w.size(1) <= T + 1 for w in windows)
    assert all((w.diff(dim=1) == 1).all() for w in windows)


def test_the_split_is_contiguous() -> None:
    batches = make(1000, 8, val_fraction=0.1)
    assert batches.train_tokens.tolist() == list(range(900))
    assert batches.val_tokens.tolist() == list(range(900, 1000))


def test_a_text_just_long_enough() -> None:
    batches = make(10, 4, val_fraction=0.5)
    assert batches.train(3, 2).tolist() == [[0, 1, 2, 3, 4]] * 2
    assert torch.cat(list(batches.validation(9))).tolist() == [[5, 6, 7, 8, 9]]


@pytest.mark.parametrize(("val_fraction", "name"), [(0.1, "validation"), (0.895, "training")])
def test_a_split_too_short_is_named(val_fraction: float, name: str) -> None:
    with pytest.raises(
        UserError, match=rf"the {name} split has 10 tokens, .* block_size \+ 1 = 21"
    ):
        make(100, 20, val_fraction=val_fraction)


@given(sizes, st.floats(0.1, 0.5))
def test_three_splits_share_the_text_out(size: tuple[int, int, int], fraction: float) -> None:
    """Side by side, and a pass over each of those kept apart predicts all but its first token."""
    length, T, batch_size = size
    batches = make(20 * length, T, val_fraction=fraction / 2, test_fraction=fraction)
    splits = [batches.train_tokens, batches.val_tokens, batches.test_tokens]
    assert np.concatenate(splits).tolist() == list(range(20 * length))
    assert len(batches.test_tokens) == pytest.approx(20 * length * fraction, abs=1)
    assert len(batches.val_tokens) == pytest.approx(10 * length * fraction, abs=1.5)
    for tokens, split in ((splits[1], batches.validation), (splits[2], batches.test)):
        targets = torch.cat([windows[:, 1:].flatten() for windows in split(batch_size)])
        assert targets.tolist() == tokens[1:].tolist()


def test_a_hundred_million_bytes_are_split_as_others_do() -> None:
    for name in ("enwik8", "text8"):
        config = read_config(make_parser(SECTIONS), [], str(CONFIGS / f"{name}.yaml"))
        assert (config.data.source, config.data.tokenizer) == (name, "byte")
        corpus = Corpus(np.zeros(10**8, dtype=np.uint8), ByteTokenizer(), {})
        batches = TextBatches(corpus, config.data, config.model.block_size, seed=0)
        splits = (batches.train_tokens, batches.val_tokens, batches.test_tokens)
        assert [len(tokens) for tokens in splits] == [90_000_000, 5_000_000, 5_000_000]


def repeats(seed: int = 0, **options: Any) -> RepeatBatches:
    config = DataConfig(source="repeat", repeat_vocab=20, repeat_min_period=3, repeat_max_period=8)
    return RepeatBatches(config, 24, seed)


def period(window: list[int]) -> int:
    return next(p for p in range(1, len(window)) if window[p:] == window[:-p])


def test_repeat_windows_repeat_different_characters_with_their_own_period() -> None:
    windows = repeats().train(3, 200).tolist()
    periods = [period(window) for window in windows]
    assert set(periods) == set(range(3, 9))
    for window, p in zip(windows, periods, strict=True):
        assert len(window) == 25 and len(set(window[:p])) == p
    firsts = [window[0] for window in windows]
    assert set(firsts) == set(range(20))


def test_repeat_windows_are_a_function_of_seed_and_step() -> None:
    assert torch.equal(repeats().train(3, 5), repeats().train(3, 5))
    assert not torch.equal(repeats().train(3, 5), repeats().train(4, 5))
    assert not torch.equal(repeats().train(3, 5), repeats(seed=1).train(3, 5))
    assert torch.equal(
        torch.cat(list(repeats().validation(7))), torch.cat(list(repeats(1).validation(9)))
    )
    validation = torch.cat(list(repeats().validation(64)))
    shared = (validation == repeats().train(0, 256)).all(1)
    assert shared.sum() < 3, "validation is not a stream of its own"


def test_repeat_windows_need_room_for_two_copies() -> None:
    with pytest.raises(UserError, match="no room for two copies"):
        open_batches(DataConfig(source="repeat"), block_size=63, seed=0)


def test_repeat_has_characters_of_its_own() -> None:
    for config, tokenizer in (
        (DataConfig(source="repeat", tokenizer="byte"), None),
        (DataConfig(source="repeat"), CharTokenizer("abc")),
    ):
        with pytest.raises(UserError, match="has characters of its own"):
            open_batches(config, block_size=64, seed=0, tokenizer=tokenizer)
    own = open_batches(DataConfig(source="repeat"), block_size=64, seed=0).tokenizer
    assert open_batches(DataConfig(source="repeat"), 64, 0, own).tokenizer == own


def test_ladder_against_counting_by_hand() -> None:
    train, val = np.array([0, 1, 0, 1, 2, 0]), np.array([0, 1, 2])
    rungs = ladder(train, val, 4)
    unigram = {1: (2 + 1) / (6 + 4), 2: (1 + 1) / (6 + 4)}
    bigram = [(2 + unigram[1]) / (2 + 1), (1 + unigram[2]) / (2 + 1)]
    assert rungs["uniform"] == pytest.approx(math.log(4))
    assert rungs["unigram"] == pytest.approx(-(math.log(unigram[1]) + math.log(unigram[2])) / 2)
    assert rungs["bigram"] == pytest.approx(-(math.log(bigram[0]) + math.log(bigram[1])) / 2)


def test_ladder_probabilities_sum_to_one() -> None:
    train = np.random.default_rng(0).integers(0, 5, 200)
    for before in range(6):  # 5 was never seen
        losses = [ladder(train, np.array([before, after]), 6) for after in range(6)]
        for rung in ("unigram", "bigram"):
            assert sum(math.exp(-loss[rung]) for loss in losses) == pytest.approx(1)


def test_ladder_falls_on_real_text(workplace: Path) -> None:
    rungs = open_batches(DataConfig(), block_size=32, seed=0).ladder()
    assert rungs["uniform"] > rungs["unigram"] > rungs["bigram"] > 2
