"""Tokens -> sequences. Training batches are a pure function of (seed, step); an evaluation is one
fixed pass.

A sequence has T + 1 tokens, where T is block_size: the model reads the first T and predicts the
last T.
"""

import dataclasses
import functools
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.errors import UserError, printable
from configs.config import DataConfig
from data.corpus import Corpus, Text, find_entry, hash_text, load_text, read_entry
from data.ngrams import open_baselines
from data.sources import find_source
from data.tasks import TASKS
from data.tokenizer import CharTokenizer, Tokenizer, WordTokenizer

# Parts of messages that do not apply to a study
SMALLER_CONTEXT = ", a larger --data.val_fraction or, in a new run, a smaller --model.block_size"
SAME_TEXT = "; --resume takes the same text only, --init_from any"
HELD_OUT = 256  # sequences of a task, for validation and for a test
# Tokens of a file that are held out; of shorter ones, whole files are. This does not depend on the
# context, so that all runs of a text have the same validation split.
SHORTEST_END = 256


def open_batches(
    config: DataConfig,
    block_size: int,
    seed: int,
    tokenizer: Tokenizer | None = None,
    extend: bool = False,
    saved: Corpus | None = None,
) -> "Batches":
    """Return the sequences that the config names.

    Args:
        tokenizer: encode with this tokenizer instead of one made for the text.
        extend: add the characters of a text that this tokenizer lacks.
        saved: what a saved run recorded of its text; the same text is split in the same way.

    Raises:
        UserError: if the text cannot be loaded, or a split is shorter than a sequence.
    """
    if str(config.source) not in TASKS:
        text = load_text(config, tokenizer, extend)
        shortest_end = SHORTEST_END
        if saved and saved.sha256 == text.corpus.sha256:
            shortest_end = saved.shortest_end
        return TextBatches(text, config, block_size, seed, shortest_end)
    batches = TaskBatches(config, block_size, seed)
    V = batches.tokenizer.vocab_size
    # Sequences are ids: a saved run keeps its own tokens.
    batches.tokenizer = tokenizer or batches.tokenizer
    about = f"--data.source {config.source} has its own vocabulary, of {V} tokens"
    if config.tokenizer != "char":
        raise UserError(f"{about}; omit --data.tokenizer")
    if batches.tokenizer.vocab_size != V:
        raise UserError(f"{about}, but the saved run has {batches.tokenizer.vocab_size}")
    return batches


def check_named_text(config: DataConfig, tokenizer: Tokenizer, corpus: Corpus) -> None:
    """Check a text that only the header of a saved run names: an untrusted header could name any
    file or download. It must be in the cache, or a file with the header's hash.

    Raises:
        UserError: if it is not.
    """
    if str(config.source) in TASKS or config.source == "pydocs":
        return
    source = find_source(config)
    if find_entry(config, source, tokenizer).exists():
        return
    if not source.is_local or hash_text(source, tokenizer.errors) != corpus.sha256:
        newest = ""
        if len(source.parts) > 1:
            path, *_ = max(source.identity[1:], key=lambda file: file[2])
            newest = f" (the newest file is {path})"
        raise UserError(
            f"{source.name}, the text of the saved run, has changed or is not here{newest}; to use "
            f"it, give --data.source{SAME_TEXT}"
        )


def cached_training_tokens(
    config: DataConfig, corpus: Corpus, tokenizer: Tokenizer
) -> npt.NDArray[Any] | None:
    """Return the training split of a saved run's text, if that text is in the cache."""
    with suppress(UserError):  # there is no such file any more, or the cache is damaged
        entry = find_entry(config, source := find_source(config), tokenizer)
        if entry.exists() and (text := read_entry(entry, source)).corpus.sha256 == corpus.sha256:
            return TextBatches(text, config, 1, 0, corpus.shortest_end).train_tokens
    return None


class TextBatches:
    """Sequences of a text, which is split into training, validation and perhaps test."""

    def __init__(
        self, text: Text, config: DataConfig, block_size: int, seed: int, shortest_end: int = 0
    ) -> None:
        tokens, self.tokenizer, corpus, entry = text
        self.corpus = dataclasses.replace(corpus, shortest_end=shortest_end)
        self.start = list[int]()  # of a printed sample
        self.block_size, self.seed = block_size, seed
        fewer = config.tokenizer == "bpe" and self.tokenizer.vocab_size < config.vocab_size
        self.note = f", fewer than vocab_size {config.vocab_size}" * fewer
        if not self.corpus.is_utf8:
            self.note = "; the text is not UTF-8, so each byte counts as a character"
        fractions = config.val_fraction, config.test_fraction
        splits, whole = split_parts(tokens, self.corpus, *fractions)
        sizes = list(map(len, splits))
        if min(sizes[: 3 if config.test_fraction else 2]) <= block_size:
            raise UserError(
                f"the splits have {sizes} tokens, but a sequence has {block_size + 1}; use a "
                f"longer text{' or a smaller --data.vocab_size' * (config.tokenizer == 'bpe')}"
                f"{SMALLER_CONTEXT}"
            )
        self.train_tokens, self.val_tokens, self.test_tokens = splits
        self.validation_tokens = len(self.val_tokens) - 1
        self.whole = f" ({whole} of {len(corpus.parts)} files held out whole)" * (whole > 0)
        names = map(str, [*fractions, shortest_end * (whole > 0)])
        self.baselines_path = entry / f"ngrams-{'-'.join(names)}.json"
        # Call these with a batch size B, and perhaps a limit.
        self.validation_batches = functools.partial(one_pass, self.val_tokens, block_size)
        self.test_batches = functools.partial(one_pass, self.test_tokens, block_size)
        self.evaluated = {"validation": self.validation_batches}

    def __str__(self) -> str:
        """Describe the text in one line."""
        return (
            f"{printable(self.corpus.source)}, {self.corpus.tokens:,} tokens "
            f"(a vocabulary of {self.tokenizer.vocab_size}{self.note}), "
            f"{len(self.val_tokens):,} held out for validation{self.whole}"
        )

    def train_batch(self, step: int, batch_size: int) -> Tensor:
        """Return the sequences of a training step, (B, T + 1), as 64-bit integers.

        They are the B sequences from number step * B in an endless series of epochs. Each epoch
        cuts the text into adjacent sequences from a random offset and shuffles them; the offset and
        the order are drawn from (seed, epoch).
        """
        length, T = len(self.train_tokens), self.block_size
        count = max(1, (length - T) // T)  # sequences that fit with any offset
        starts = [
            epoch_starts(length, T, count, self.seed, number // count)[number % count]
            for number in range(step * batch_size, (step + 1) * batch_size)
        ]
        return gather(self.train_tokens, np.array(starts), T + 1)

    def passes(self, steps: int, batch_size: int) -> float:
        """Return how often these training steps read the text."""
        return steps * batch_size * self.block_size / len(self.train_tokens)

    def validation_sequences(self, places: list[int]) -> Tensor:
        """Return the adjacent sequences of the validation split with these numbers, (B, T + 1)."""
        return gather(self.val_tokens, self.block_size * np.array(places), self.block_size + 1)

    def answers(self, tokens: Tensor) -> Tensor:
        """Return a mask, in the shape of the tokens, of those that their context determines. Of a
        text, there are none."""
        return torch.zeros_like(tokens, dtype=torch.bool)

    @functools.cached_property
    def baselines(self) -> dict[str, float]:
        """The losses of n-grams on the validation split, in nats per token."""
        V = self.tokenizer.vocab_size
        return open_baselines(self.baselines_path, self.train_tokens, self.val_tokens, V)


class TaskBatches:
    """An endless series of a task's sequences, with the methods of TextBatches."""

    def __init__(self, config: DataConfig, block_size: int, seed: int) -> None:
        self.block_size, self.seed = block_size, seed
        self.task = TASKS[config.source](config, block_size)
        vocab = self.task.vocab
        self.tokenizer: Tokenizer = (
            CharTokenizer(vocab) if isinstance(vocab, str) else WordTokenizer(vocab)
        )
        self.corpus, self.start = Corpus(str(config.source), start_token=0), [0]
        self.train_tokens = np.empty(0)  # they have no end
        self.validation_tokens = HELD_OUT * block_size
        self.training_batches = functools.partial(self.fixed, 2)
        self.validation_batches = functools.partial(self.fixed, 0)
        self.test_batches = functools.partial(self.fixed, 3)
        self.evaluated = {"validation": self.validation_batches, "training": self.training_batches}

    def __str__(self) -> str:
        return str(self.task)

    def train_batch(self, step: int, batch_size: int) -> Tensor:
        """Return the sequences of a training step, (B, T + 1), as 64-bit integers."""
        # The 1 differs from every `part` of `fixed`, so that no evaluation repeats a batch.
        return torch.from_numpy(self.task.draw([self.seed, 1, step], batch_size, held_out=False))

    def passes(self, steps: int, batch_size: int) -> float:
        """Return 0: no sequence comes twice, except by chance."""
        return 0.0

    def fixed(self, part: int, batch_size: int, limit: int = sys.maxsize) -> Iterator[Tensor]:
        """Yield a fixed set of sequences, which does not depend on the seed, of what is held out
        unless `part` is 2. `limit` is the maximum number of tokens to predict."""
        sequences = torch.from_numpy(self.task.draw([0, part], HELD_OUT, held_out=part != 2))
        yield from sequences[: max(1, limit // self.block_size)].split(batch_size)

    def validation_sequences(self, places: list[int]) -> Tensor:
        """Return the validation sequences with these numbers, (B, T + 1)."""
        return next(self.validation_batches(HELD_OUT))[places]

    def answers(self, tokens: Tensor) -> Tensor:
        """Return which tokens their context determines, (B, T) booleans."""
        return torch.from_numpy(self.task.answers(tokens.numpy()))

    @functools.cached_property
    def baselines(self) -> dict[str, float]:
        """The losses of simple predictions on the validation sequences, in nats per token."""
        return self.task.baselines(torch.cat([*self.validation_batches(HELD_OUT)]).numpy())


Batches = TextBatches | TaskBatches


def split_parts(
    tokens: npt.NDArray[Any], corpus: Corpus, val_fraction: float, test_fraction: float
) -> tuple[list[npt.NDArray[Any]], int]:
    """Split each file into training, validation and test tokens, in this order, and join the parts
    of each split; with a single file, they are views. Of many files that are too short for it, each
    belongs to one split as a whole.

    Returns:
        The tokens of each split, and the number of files that are validation as a whole.
    """

    def cut(items: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        # Round first, because 100 million times 0.9 must not be 89,999,999.99999999.
        train_end = int(round(len(items) * (1 - val_fraction - test_fraction), 3))
        return np.split(items, [train_end, len(items) - round(len(items) * test_fraction)])

    files, held_out = np.split(tokens, np.cumsum(corpus.parts)[:-1]), 0
    splits = [cut(file) for file in files]
    short = [i for i, (_, val, _) in enumerate(splits) if len(val) < corpus.shortest_end]
    if len(short) * min(val_fraction, test_fraction or 1) >= 1:
        # Every seed holds out the same files, so that the losses of runs can be compared.
        drawn = cut(np.random.default_rng(0).permutation(short))
        held_out = len(drawn[1])
        for which, numbers in enumerate(drawn):
            for i in numbers:
                splits[i] = [files[i] if k == which else files[i][:0] for k in range(3)]
    return [
        each[0] if len(each) == 1 else np.concatenate(each) for each in zip(*splits, strict=True)
    ], held_out


@functools.lru_cache(maxsize=2)  # a batch may end one epoch and begin the next
def epoch_starts(length: int, T: int, count: int, seed: int, epoch: int) -> npt.NDArray[Any]:
    """Return the starts of an epoch's sequences, in their shuffled order."""
    random = np.random.default_rng([seed, epoch])
    offset = random.integers(min(T, length - count * T))  # less than T only for a short text
    return np.asarray(offset + T * random.permutation(count))


def one_pass(
    tokens: npt.NDArray[Any], T: int, batch_size: int, limit: int = sys.maxsize
) -> Iterator[Tensor]:
    """Yield adjacent sequences, (B, T + 1), which together predict every token but the first; the
    remaining tokens make a last, shorter sequence.

    Args:
        limit: maximum number of tokens to predict. If the split has more, yield evenly spaced
            sequences, at least one.
    """
    count = fitting = (len(tokens) - 1) // T
    rest = tokens[T * fitting :]
    if limit < len(tokens) - 1:
        count, rest = max(1, limit // T), rest[:0]
    starts = T * (np.arange(count) * fitting // count)
    for first in range(0, count, batch_size):
        yield gather(tokens, starts[first : first + batch_size], T + 1)
    if len(rest) > 1:
        yield gather(rest, np.zeros(1, int), len(rest))


def gather(tokens: npt.NDArray[Any], starts: npt.NDArray[np.int64], length: int) -> Tensor:
    """Return `length` tokens from each start, (len(starts), length)."""
    return torch.from_numpy(tokens[starts[:, None] + np.arange(length)].astype(np.int64))
