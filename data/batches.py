"""Tokens -> sequences: for training a pure function of (seed, step), for evaluation one fixed pass.

A sequence is T + 1 tokens, T being block_size: the first T are read, the last T predicted.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.errors import UserError, printable
from data.config import DataConfig
from data.corpus import Corpus, load_corpus
from data.tokenizer import CharTokenizer, Tokenizer

BASELINE_TOKENS = 10_000_000  # the baselines are counted on at most so many
REPEAT_VALIDATION_SEQUENCES = 256
REPEAT_VALIDATION_SEED = 0  # the same validation sequences for every seed of training


def open_batches(
    config: DataConfig,
    block_size: int,
    seed: int,
    tokenizer: Tokenizer | None = None,
    named: bool = True,
) -> "Batches":
    """Return the sequences that the config names.

    Args:
        tokenizer: encode with this one instead of one made for the text.
        named: whether the user named the source; see `load_corpus`.

    Raises:
        UserError: see `load_corpus`, and for a text too short for a sequence in each split.
    """
    if config.source not in ("repeat", ["repeat"]):
        return TextBatches(load_corpus(config, tokenizer, named), config, block_size, seed)
    batches = RepeatBatches(config, block_size, seed)
    if config.test_fraction:
        raise UserError("--data.source repeat has no end, so it takes no --data.test_fraction")
    if config.tokenizer != "char" or tokenizer not in (None, batches.tokenizer):
        raise UserError(
            "--data.source repeat has characters of its own: it takes no --data.tokenizer but "
            "char, and no weights of another vocabulary"
        )
    return batches


class TextBatches:
    """Sequences of a text, whose first part is for training, the next for validation, and perhaps
    a last one for testing."""

    def __init__(self, corpus: Corpus, config: DataConfig, block_size: int, seed: int) -> None:
        self.tokenizer, self.info = corpus.tokenizer, corpus.info
        self.block_size, self.seed = block_size, seed
        length, test_fraction = len(corpus.tokens), config.test_fraction
        # Rounded first, because 100 million times 0.9 must not be 89,999,999.99999999.
        train_end = int(round(length * (1 - config.val_fraction - test_fraction), 3))
        val_end = length - round(length * test_fraction)
        splits = np.split(corpus.tokens, [train_end, val_end])
        self.train_tokens, self.val_tokens, self.test_tokens = splits
        self.validation_tokens = len(self.val_tokens) - 1
        for name, tokens in zip(("training", "validation", "test"), splits, strict=True):
            if len(tokens) <= block_size and (name != "test" or test_fraction):
                raise UserError(
                    f"the {name} split has {len(tokens)} tokens, and a sequence needs "
                    f"block_size + 1 = {block_size + 1}: use a longer text, a smaller "
                    f"--model.block_size, or another --data.val_fraction or --data.test_fraction"
                )

    def train(self, step: int, batch_size: int) -> Tensor:
        """The sequences of a training step, (B, T + 1), of 64-bit integers.

        They are numbers step * B and on of an endless series of epochs. Each epoch cuts the text
        into adjacent sequences from its own offset, and takes them in its own order; both are
        drawn from (seed, epoch).
        """
        length, T = len(self.train_tokens), self.block_size
        numbers = np.arange(step * batch_size, (step + 1) * batch_size)
        epochs, places = np.divmod(numbers, sequences_per_epoch(length, T))
        starts = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            now = epochs == epoch
            starts[now] = epoch_starts(length, T, self.seed, int(epoch))[places[now]]
        return gather(self.train_tokens, starts, T + 1)

    def validation(self, batch_size: int, stride: int | None = None) -> Iterator[Tensor]:
        """One pass over the whole validation split in its order, as sequences (B, T + 1); the last
        may be shorter. They are adjacent, or begin `stride` tokens after each other."""
        return one_pass(self.val_tokens, self.block_size, batch_size, stride)

    def test(self, batch_size: int, stride: int | None = None) -> Iterator[Tensor]:
        """The same over the test split; nothing, where there is none."""
        return one_pass(self.test_tokens, self.block_size, batch_size, stride)

    def baselines(self) -> dict[str, float]:
        """Validation losses of `baseline_losses`, by the model's name, in nats per token."""
        train, val = self.train_tokens[-BASELINE_TOKENS:], self.val_tokens[:BASELINE_TOKENS]
        return baseline_losses(train, val, self.tokenizer.vocab_size)

    def describe(self) -> str:
        """The text in one line."""
        test = f", {len(self.test_tokens):,} for testing" if len(self.test_tokens) else ""
        return (
            f"{printable(self.info['source'])}, {self.info['tokens']:,} tokens "
            f"({self.tokenizer.vocab_size} different), {len(self.val_tokens):,} held out for "
            f"validation{test}"
        )


class RepeatBatches:
    """Random strings repeated: each sequence is [r, r, ...] cut to T + 1, r of its own length.

    The characters of r are all different, so that what follows one is known from its last
    appearance, and from nothing else. A model that predicts the second copy has learned to
    look back for it: induction (Olsson et al. 2022). The methods are those of TextBatches.
    """

    def __init__(self, config: DataConfig, block_size: int, seed: int) -> None:
        self.block_size, self.seed = block_size, seed
        self.low, self.high = config.repeat_min_period, config.repeat_max_period
        if block_size < 2 * self.high:
            raise UserError(
                f"--model.block_size {block_size} has no room for two copies of "
                f"--data.repeat_max_period {self.high} characters; make it {2 * self.high} or more"
            )
        # '!' and on are printable and visible; past '~' the letters from U+0100 on are too
        codes = [0x21 + i if i < 94 else 0x100 + i - 94 for i in range(config.repeat_vocab)]
        self.tokenizer: Tokenizer = CharTokenizer("".join(map(chr, codes)))
        self.info: dict[str, Any] = {"source": "repeat", "start_token": 0}
        self.validation_tokens = REPEAT_VALIDATION_SEQUENCES * block_size

    def train(self, step: int, batch_size: int) -> Tensor:
        return self.draw([self.seed, 1, step], batch_size)

    def validation(self, batch_size: int, stride: int | None = None) -> Iterator[Tensor]:
        sequences = self.draw([REPEAT_VALIDATION_SEED, 0], REPEAT_VALIDATION_SEQUENCES)
        yield from sequences.split(batch_size)

    def test(self, batch_size: int, stride: int | None = None) -> Iterator[Tensor]:
        return iter(())  # validation is on strings never trained on already

    def baselines(self) -> dict[str, float]:
        count = REPEAT_VALIDATION_SEQUENCES
        train = self.draw([REPEAT_VALIDATION_SEED, 2], 4 * count).numpy().ravel()
        val = self.draw([REPEAT_VALIDATION_SEED, 0], count).numpy().ravel()
        return baseline_losses(train, val, self.tokenizer.vocab_size)

    def describe(self) -> str:
        return (
            f"random strings of {self.low} to {self.high} different characters out of "
            f"{self.tokenizer.vocab_size}, repeated"
        )

    def draw(self, seed: list[int], count: int) -> Tensor:
        """So many sequences, (count, T + 1)."""
        random, V = np.random.default_rng(seed), self.tokenizer.vocab_size
        periods = random.integers(self.low, self.high, size=(count, 1), endpoint=True)
        strings = random.permuted(np.tile(np.arange(V), (count, 1)), axis=1)
        places = np.arange(self.block_size + 1) % periods
        return torch.from_numpy(np.take_along_axis(strings, places, axis=1))


Batches = TextBatches | RepeatBatches


def sequences_per_epoch(length: int, T: int) -> int:
    """How many sequences that predict T tokens each fit into a text, whatever the offset."""
    return max(1, (length - T) // T)


@functools.lru_cache(maxsize=2)  # a batch may end one epoch and begin the next
def epoch_starts(length: int, T: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Where the sequences of an epoch begin, in the order in which they are taken."""
    random = np.random.default_rng([seed, epoch])
    count = sequences_per_epoch(length, T)
    offset = random.integers(min(T, length - count * T))
    return np.asarray(offset + T * random.permutation(count))


def one_pass(
    tokens: npt.NDArray[Any], T: int, batch_size: int, stride: int | None = None
) -> Iterator[Tensor]:
    """Sequences (B, T + 1), each beginning `stride` tokens (by default T) after the one before;
    what is left over makes a last, shorter one. The last `stride` tokens of each (of the last one,
    only those that are new) together cover every token once, except the first T + 1 - stride."""
    stride = stride or T
    starts = np.arange(0, len(tokens) - 1, stride)
    full, rest = np.split(starts, [np.searchsorted(starts, len(tokens) - T)])
    for first in range(0, len(full), batch_size):
        yield gather(tokens, full[first : first + batch_size], T + 1)
    if len(rest):
        yield gather(tokens, rest[:1], len(tokens) - int(rest[0]))


def gather(tokens: npt.NDArray[Any], starts: npt.NDArray[np.int64], length: int) -> Tensor:
    """(len(starts), length): the tokens from each start on."""
    return torch.from_numpy(tokens[starts[:, None] + np.arange(length)].astype(np.int64))


def baseline_losses(train: npt.NDArray[Any], val: npt.NDArray[Any], V: int) -> dict[str, float]:
    """Losses on `val`, in nats per token, of models that look back one token at most.

    uniform: 1 / V. unigram: (count(b) + 1) / (n + V). bigram, after a token a:
    (count(ab) + unigram(b)) / (count(a) + 1), with the prior of MacKay & Peto (1995), so that a
    pair never seen has a probability too. Counts, and their sum n, are from `train`.
    """
    unigram = (np.bincount(train, minlength=V) + 1) / (len(train) + V)
    followed = np.bincount(train[:-1], minlength=V)
    before, after = val[:-1].astype(np.int64), val[1:]
    asked, place = np.unique(before * V + after, return_inverse=True)
    pairs = train[:-1].astype(np.int64) * V + train[1:]
    found = np.searchsorted(asked, pairs).clip(max=len(asked) - 1)
    counts = np.bincount(found[asked[found] == pairs], minlength=len(asked))
    bigram = (counts[place] + unigram[after]) / (followed[before] + 1)
    losses = {"unigram": -np.log(unigram[after]).mean(), "bigram": -np.log(bigram).mean()}
    return {"uniform": float(np.log(V))} | {name: float(loss) for name, loss in losses.items()}
