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
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.errors import UserError, printable
from configs.config import DataConfig
from data.corpus import Corpus, Text, find_entry, hash_text, load_text, read_entry
from data.ngrams import Array, open_baselines
from data.sources import TextError, find_source
from data.tasks import TASKS, is_task
from data.tasks.task import Task
from data.tokenizer import CharTokenizer, Tokenizer, WordTokenizer

HELD_OUT = 256  # sequences of each split of a task
SPLITS = {"validation": 0, "training": 2, "test": 3}  # and what draws those of a task
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
    is_named: bool = True,
) -> "Batches":
    """Return the sequences that the config names.

    Args:
        tokenizer: encode with this tokenizer instead of one made for the text.
        extend: add the characters of a text that this tokenizer lacks.
        saved: what a saved run recorded of its text; the same text is split in the same way.
        is_named: whether the user named the text. If only the header of a saved run does, it is
            checked: an untrusted header could name any file or download.

    Raises:
        UserError: if the text cannot be loaded, or a split is shorter than a sequence.
    """
    if is_task(config):
        return task_batches(config, block_size, seed, tokenizer)
    if not is_named:
        assert tokenizer and saved, "only a saved run can name a text for the user"
        check_text(config, tokenizer, saved)
    text = load_text(config, tokenizer, extend)
    shortest_end = SHORTEST_END
    if saved and saved.sha256 == text.corpus.sha256:
        shortest_end = saved.shortest_end
    return text_batches(text, config, block_size, seed, shortest_end)


def check_text(config: DataConfig, tokenizer: Tokenizer, corpus: Corpus) -> None:
    """Check that a text is the manual, is in the cache, or is a file with the hash of `corpus`.

    Raises:
        UserError: if it is not.
    """
    if config.source == "pydocs":
        return
    source = find_source(config)
    if find_entry(config, source, tokenizer).exists():
        return
    if not source.is_local or hash_text(source, tokenizer.errors) != corpus.sha256:
        newest = ""
        if len(source.parts) > 1:
            path, *_ = max(source.identity[1:], key=lambda file: file[2])
            newest = f" (the newest file is {path})"
        about = f"{source.name}, the text of the saved run, has changed or is not here{newest}"
        raise TextError("changed", about)


def cached_training_tokens(
    config: DataConfig, corpus: Corpus, tokenizer: Tokenizer
) -> Array | None:
    """Return the training split of a saved run's text, if that text is in the cache."""
    with suppress(UserError):  # there is no such file any more, or the cache is damaged
        entry = find_entry(config, source := find_source(config), tokenizer)
        if entry.exists() and (text := read_entry(entry, source)).corpus.sha256 == corpus.sha256:
            batches = text_batches(text, config, 1, 0, corpus.shortest_end)
            return batches.tokens["training"]
    return None


@dataclasses.dataclass(eq=False)
class Batches:
    """The sequences of a text, which is split into training, validation and perhaps test, or of a
    task, which draws them."""

    about: str
    """A description in one line."""

    tokenizer: Tokenizer
    corpus: Corpus
    block_size: int
    seed: int

    tokens: dict[str, Array]
    """Those of each split of a text; a task has no end of them, and none here."""

    baselines_path: Path = Path()
    """Where the losses of n-grams are kept."""

    task: Task | None = None

    def train_batch(self, step: int, batch_size: int) -> Tensor:
        """Return the sequences of a training step, (B, T + 1), as 64-bit integers.

        Of a text, they are the B sequences from number step * B in an endless series of epochs.
        Each epoch cuts the text into adjacent sequences from a random offset and shuffles them; the
        offset and the order are drawn from (seed, epoch).
        """
        if self.task:
            # The 1 differs from every part in SPLITS, so that no evaluation repeats a batch.
            return torch.from_numpy(self.task.draw([self.seed, 1, step], batch_size, False))
        length, T = len(self.tokens["training"]), self.block_size
        count = max(1, (length - T) // T)  # sequences that fit with any offset
        starts = [
            epoch_starts(length, T, count, self.seed, number // count)[number % count]
            for number in range(step * batch_size, (step + 1) * batch_size)
        ]
        return gather(self.tokens["training"], np.array(starts), T + 1)

    def passes(self, steps: int, batch_size: int) -> float:
        """Return how often these training steps read the text. Of a task, no sequence comes twice,
        except by chance."""
        return (
            0 if self.task else steps * batch_size * self.block_size / len(self.tokens["training"])
        )

    def split(self, name: str, batch_size: int, limit: int = sys.maxsize) -> Iterator[Tensor]:
        """Yield the sequences of a split in order, (B, T + 1). Those of a task do not depend on the
        seed.

        Args:
            name: "validation", "test" or, of a task, "training".
            limit: maximum number of tokens to predict; see `one_pass`.
        """
        if self.task is None:
            return one_pass(self.tokens[name], self.block_size, batch_size, limit)
        drawn = self.task.draw([0, SPLITS[name]], HELD_OUT, held_out=name != "training")
        sequences = torch.from_numpy(drawn[: max(1, limit // self.block_size)])
        return iter(sequences.split(batch_size))

    @property
    def evaluated(self) -> list[str]:
        """The splits that are evaluated in training."""
        return ["validation", "training"] if self.task else ["validation"]

    @property
    def validation_tokens(self) -> int:
        """Number of tokens of the validation split that are predicted."""
        return HELD_OUT * self.block_size if self.task else len(self.tokens["validation"]) - 1

    def validation_sequences(self, places: list[int]) -> Tensor:
        """Return the adjacent sequences of the validation split with these numbers, (B, T + 1)."""
        if self.task:
            return next(self.split("validation", HELD_OUT))[places]
        starts = self.block_size * np.array(places)
        return gather(self.tokens["validation"], starts, self.block_size + 1)

    @functools.cached_property
    def baselines(self) -> dict[str, float]:
        """The losses on the validation split of n-grams or, of a task, of simple predictions, in
        nats per token."""
        if self.task:
            return self.task.baselines(next(self.split("validation", HELD_OUT)).numpy())
        splits = self.tokens["training"], self.tokens["validation"]
        return open_baselines(self.baselines_path, *splits, self.tokenizer.vocab_size)


def task_batches(
    config: DataConfig, block_size: int, seed: int, tokenizer: Tokenizer | None = None
) -> Batches:
    """Return the sequences of the task that the config names.

    Args:
        tokenizer: of a saved run, which keeps its own tokens.

    Raises:
        UserError: for a config that the task rejects, and a tokenizer with more or fewer tokens.
    """
    task = TASKS[config.source](config, block_size)
    V, kind = len(task.vocab), CharTokenizer if isinstance(task.vocab, str) else WordTokenizer
    about = f"the task {config.source} has its own vocabulary, of {V} tokens"
    if config.tokenizer != "char":
        raise UserError(f"{about}; omit --data.tokenizer")
    tokenizer = tokenizer or kind(task.vocab)
    if tokenizer.vocab_size != V:
        raise UserError(f"{about}, but the saved run has {tokenizer.vocab_size}")
    corpus, none = Corpus(str(config.source), start_token=0), dict.fromkeys(SPLITS, np.empty(0))
    return Batches(str(task), tokenizer, corpus, block_size, seed, none, task=task)


def text_batches(
    text: Text, config: DataConfig, block_size: int, seed: int, shortest_end: int = 0
) -> Batches:
    """Return the sequences of a text.

    Args:
        shortest_end: see `Corpus`.

    Raises:
        UserError: if a split is shorter than a sequence.
    """
    corpus = dataclasses.replace(text.corpus, shortest_end=shortest_end)
    V, fractions = text.tokenizer.vocab_size, (config.val_fraction, config.test_fraction)
    parts, held_out = split_parts(text.tokens, corpus, *fractions)
    sizes = list(map(len, parts))
    if min(sizes[: 3 if config.test_fraction else 2]) <= block_size:
        message = f"the splits have {sizes} tokens, but a sequence has {block_size + 1}"
        raise TextError("size", message)
    note = "; the text is not UTF-8, so each byte counts as a character" * (not corpus.is_utf8)
    whole = f" ({held_out} of {len(corpus.parts)} files held out whole)" * (held_out > 0)
    about = (
        f"{printable(corpus.source)}, {corpus.tokens:,} tokens (a vocabulary of {V}{note}), "
        f"{sizes[1]:,} held out for validation{whole}"
    )
    names = map(str, [*fractions, shortest_end * (held_out > 0)])
    path = text.entry / f"ngrams-{'-'.join(names)}.json"
    tokens = dict(zip(("training", "validation", "test"), parts, strict=True))
    return Batches(about, text.tokenizer, corpus, block_size, seed, tokens, path)


def split_parts(
    tokens: Array, corpus: Corpus, val_fraction: float, test_fraction: float
) -> tuple[list[Array], int]:
    """Split each file into training, validation and test tokens, in this order, and join the parts
    of each split; with a single file, they are views. Of many files that are too short for it, each
    belongs to one split as a whole.

    Returns:
        The tokens of each split, and the number of files that are validation as a whole.
    """

    def cut(items: Array) -> list[Array]:
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
def epoch_starts(length: int, T: int, count: int, seed: int, epoch: int) -> Array:
    """Return the starts of an epoch's sequences, in their shuffled order."""
    random = np.random.default_rng([seed, epoch])
    offset = random.integers(min(T, length - count * T))  # less than T only for a short text
    return np.asarray(offset + T * random.permutation(count))


def one_pass(tokens: Array, T: int, batch_size: int, limit: int = sys.maxsize) -> Iterator[Tensor]:
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


def gather(tokens: Array, starts: npt.NDArray[np.int64], length: int) -> Tensor:
    """Return `length` tokens from each start, (len(starts), length)."""
    return torch.from_numpy(tokens[starts[:, None] + np.arange(length)].astype(np.int64))
