"""Tokens -> windows: for training a pure function of (seed, step), for evaluation one fixed pass.

A window is block_size + 1 tokens: the first block_size are read, the last block_size predicted.
"""

import functools
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.errors import UserError
from data.config import DataConfig
from data.corpus import Corpus, load_corpus
from data.tokenizer import CharTokenizer, Tokenizer

LADDER_TOKENS = 10_000_000  # the unigram and bigram losses are counted on at most so many
REPEAT_VALIDATION_WINDOWS = 256
REPEAT_VALIDATION_SEED = 0  # the same validation windows for every seed of training


class Batches(Protocol):
    """What the training loop asks of its data."""

    tokenizer: Tokenizer
    info: dict[str, Any]

    def train(self, step: int, batch_size: int) -> Tensor:
        """The windows of a training step, (batch_size, block_size + 1), of 64-bit integers."""

    def validation(self, batch_size: int) -> Iterator[Tensor]:
        """One pass over the whole validation split in a fixed order, as windows (b, t + 1)."""

    def test(self, batch_size: int) -> Iterator[Tensor]:
        """The same over the test split, where there is one."""

    def ladder(self) -> dict[str, float]:
        """Validation losses, in nats per token, of models that look back one token at most."""

    def describe(self) -> str:
        """The text in one line."""


def open_batches(
    config: DataConfig, block_size: int, seed: int, tokenizer: Tokenizer | None = None
) -> Batches:
    """The windows that the config names.

    Args:
        tokenizer: encode with this one instead of one made for the text.

    Raises:
        UserError: see `load_corpus`, and for a text too short for a window in each split.
    """
    if config.source in ("repeat", ["repeat"]):
        batches = RepeatBatches(config, block_size, seed)
        if config.test_fraction:
            raise UserError("--data.source repeat has no end, so it takes no --data.test_fraction")
        if config.tokenizer != "char" or tokenizer not in (None, batches.tokenizer):
            raise UserError(
                "--data.source repeat has characters of its own: it takes no --data.tokenizer byte "
                "and no weights that know another vocabulary"
            )
        return batches
    return TextBatches(load_corpus(config, tokenizer), config, block_size, seed)


class TextBatches:
    """Windows of a text: its first part to train on, the next to validate with, and perhaps a
    last one to test with."""

    def __init__(self, corpus: Corpus, config: DataConfig, block_size: int, seed: int) -> None:
        self.tokenizer, self.info = corpus.tokenizer, corpus.info
        self.block_size, self.seed = block_size, seed
        # Rounded first, because 100 million times 0.9 must not be 89,999,999.99999999.
        tested = round(len(corpus.tokens) * config.test_fraction)
        known = len(corpus.tokens) * (1 - config.val_fraction - config.test_fraction)
        boundary, end = int(round(known, 3)), len(corpus.tokens) - tested
        self.train_tokens = corpus.tokens[:boundary]
        self.val_tokens, self.test_tokens = corpus.tokens[boundary:end], corpus.tokens[end:]
        splits = {"training": self.train_tokens, "validation": self.val_tokens}
        if config.test_fraction:
            splits["test"] = self.test_tokens
        for name, tokens in splits.items():
            if len(tokens) < block_size + 1:
                raise UserError(
                    f"the {name} split has {len(tokens)} tokens, and a window needs "
                    f"block_size + 1 = {block_size + 1}: use a longer text, a smaller "
                    f"--model.block_size, or another --data.val_fraction or --data.test_fraction"
                )

    def train(self, step: int, batch_size: int) -> Tensor:
        """Windows step * batch_size and on of an endless row of epochs.

        Each epoch cuts the text into windows side by side from an offset of its own, and takes
        them in an order of its own; both are drawn from (seed, epoch).
        """
        length, T = len(self.train_tokens), self.block_size
        epoch, place = np.divmod(
            np.arange(step * batch_size, (step + 1) * batch_size), windows_per_epoch(length, T)
        )
        starts = np.empty(batch_size, dtype=np.int64)
        for e in np.unique(epoch):
            starts[epoch == e] = epoch_starts(length, T, self.seed, int(e))[place[epoch == e]]
        return gather(self.train_tokens, starts, T + 1)

    def validation(self, batch_size: int) -> Iterator[Tensor]:
        return side_by_side(self.val_tokens, self.block_size, batch_size)

    def test(self, batch_size: int) -> Iterator[Tensor]:
        return side_by_side(self.test_tokens, self.block_size, batch_size)

    def describe(self) -> str:
        return (
            f"{self.info['source']}, {self.info['tokens']:,} tokens "
            f"({self.tokenizer.vocab_size} different), {len(self.val_tokens):,} kept to validate"
            + (f", {len(self.test_tokens):,} to test" if len(self.test_tokens) else "")
        )

    def ladder(self) -> dict[str, float]:
        train, val = self.train_tokens[-LADDER_TOKENS:], self.val_tokens[:LADDER_TOKENS]
        return ladder(train, val, self.tokenizer.vocab_size)


class RepeatBatches:
    """Random strings repeated: each window is [r, r, ...] cut to length, r of a length of its own.

    The characters of r are all different, so that what follows one is known from its last
    appearance, and from nothing else. A model that predicts the second copy has learned to
    look back for it: induction (Olsson et al. 2022).
    """

    def __init__(self, config: DataConfig, block_size: int, seed: int) -> None:
        self.config, self.block_size, self.seed = config, block_size, seed
        if block_size < 2 * config.repeat_max_period:
            raise UserError(
                f"--model.block_size {block_size} has no room for two copies of "
                f"--data.repeat_max_period {config.repeat_max_period} characters; make it "
                f"{2 * config.repeat_max_period} or more"
            )
        # '!' and on are printable and visible; past '~' the letters from U+0100 on are too
        chars = [
            chr(0x21 + i) if i < 94 else chr(0x100 + i - 94) for i in range(config.repeat_vocab)
        ]
        self.tokenizer: Tokenizer = CharTokenizer("".join(chars))
        self.info: dict[str, Any] = {"source": "repeat", "start_token": 0}

    def train(self, step: int, batch_size: int) -> Tensor:
        return self.windows([self.seed, 1, step], batch_size)

    def validation(self, batch_size: int) -> Iterator[Tensor]:
        windows = self.windows([REPEAT_VALIDATION_SEED, 0], REPEAT_VALIDATION_WINDOWS)
        yield from torch.split(windows, batch_size)

    def test(self, batch_size: int) -> Iterator[Tensor]:
        return iter(())  # there is no end of strings never trained on, and validation has some

    def windows(self, seed: list[int], count: int) -> Tensor:
        """(count, block_size + 1)."""
        random = np.random.default_rng(seed)
        low, high, V = (
            self.config.repeat_min_period,
            self.config.repeat_max_period,
            self.config.repeat_vocab,
        )
        periods = random.integers(low, high, size=(count, 1), endpoint=True)
        strings = random.permuted(np.tile(np.arange(V), (count, 1)), axis=1)
        places = np.arange(self.block_size + 1) % periods
        return torch.from_numpy(np.take_along_axis(strings, places, axis=1))

    def describe(self) -> str:
        low, high = self.config.repeat_min_period, self.config.repeat_max_period
        V = self.tokenizer.vocab_size
        return f"random strings of {low} to {high} different characters out of {V}, repeated"

    def ladder(self) -> dict[str, float]:
        train = (
            self.windows([REPEAT_VALIDATION_SEED, 2], 4 * REPEAT_VALIDATION_WINDOWS).numpy().ravel()
        )
        val = torch.cat(list(self.validation(REPEAT_VALIDATION_WINDOWS))).numpy().ravel()
        return ladder(train, val, self.tokenizer.vocab_size)


def windows_per_epoch(length: int, T: int) -> int:
    """How many windows that predict T tokens each fit side by side, whatever the offset."""
    return max(1, (length - T) // T)


@functools.lru_cache(maxsize=2)  # a batch may end one epoch and begin the next
def epoch_starts(length: int, T: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Where the windows of an epoch begin, in the order in which they are taken."""
    random = np.random.default_rng([seed, epoch])
    count = windows_per_epoch(length, T)
    offset = random.integers(min(T, length - count * T))
    return np.asarray(offset + T * random.permutation(count))


def side_by_side(tokens: npt.NDArray[Any], T: int, batch_size: int) -> Iterator[Tensor]:
    """Windows (b, t + 1); each token but the first is predicted once, the rest of the last window
    in a shorter one."""
    full = (len(tokens) - 1) // T
    for first in range(0, full, batch_size):
        starts = np.arange(first, min(first + batch_size, full)) * T
        yield gather(tokens, starts, T + 1)
    if len(tokens) > full * T + 1:
        yield gather(tokens, np.array([full * T]), len(tokens) - full * T)


def gather(tokens: npt.NDArray[Any], starts: npt.NDArray[np.int64], length: int) -> Tensor:
    """(len(starts), length): the tokens from each start on."""
    windows = tokens[starts[:, None] + np.arange(length)]
    return torch.from_numpy(windows.astype(np.int64))


def ladder(train: npt.NDArray[Any], val: npt.NDArray[Any], V: int) -> dict[str, float]:
    """Losses on `val`, in nats per token, of models that know nothing, the frequency of each
    token, and the token before.

    Counts are from `train`. The unigram gives each token one count more than it has; the bigram
    adds to the counts after a token one count more, shared out as the unigram says (MacKay &
    Peto 1995), so that both know what they have never seen.
    """
    counts = np.bincount(train, minlength=V)
    unigram = (counts + 1) / (len(train) + V)
    before, after = val[:-1].astype(np.int64), val[1:].astype(np.int64)
    pairs, place = np.unique(before * V + after, return_inverse=True)
    pair_counts = np.zeros(len(pairs), dtype=np.int64)
    for start in range(0, len(train) - 1, 1 << 20):  # only pairs that `val` asks for are counted
        piece = train[start : start + (1 << 20) + 1].astype(np.int64)
        codes = piece[:-1] * V + piece[1:]
        found = np.searchsorted(pairs, codes).clip(max=len(pairs) - 1)
        pair_counts += np.bincount(found[pairs[found] == codes], minlength=len(pairs))
    followed = np.bincount(train[:-1], minlength=V)
    bigram = (pair_counts[place] + unigram[after]) / (followed[before] + 1)
    return {
        "uniform": float(np.log(V)),
        "unigram": float(-np.log(unigram[after]).mean()),
        "bigram": float(-np.log(bigram).mean()),
    }
