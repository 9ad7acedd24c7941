"""A task: generated sequences on which one can watch attention do something.

A task makes its sequences from uniform random numbers alone, so that another program makes the same
sequences from the same numbers. Arrays of tokens are (count, T + 1), or (1, T) for a prompt.
"""

import math
import string
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import UserError
from configs.config import DataConfig

Array = npt.NDArray[Any]
OBSERVED = 4096  # sequences that the baseline "chance" is estimated from
# Letters and digits first, so that sequences can be typed.
VISIBLE = string.ascii_letters + string.digits + string.punctuation
VISIBLE += "".join(map(chr, range(0x100, 0xD000)))


class Task:
    """Random sequences of T + 1 tokens. To add a task, write a class, and see the row "a task" in
    docs/architecture.md."""

    kinds = (1, 1, 1)
    """Default, minimum and maximum of --data.task_kinds; a task with one choice does not use it."""

    length = (1, 1, 1)
    """The same of --data.task_length."""

    vocab: Any
    """A character for each token, or a tuple of words. Samples begin with the first."""

    def __init__(self, config: DataConfig, T: int) -> None:
        """
        Raises:
            UserError: for a setting that is not possible.
        """
        self.config, self.T = config, T
        self.numbers = T + 1  # that make a sequence
        self.n = choose("task_kinds", config.task_kinds, *self.kinds)
        self.size = choose("task_length", config.task_length, *self.length)

    def make(self, u: Array, held_out: bool) -> Array:
        """Return sequences, (count, T + 1), of integers. Each depends only on its own numbers.

        Args:
            u: random numbers in [0, 1), (count, numbers).
            held_out: make them of what is held out, if the task has something to hold out.
        """
        raise NotImplementedError

    def draw(self, seed: list[int], count: int, held_out: bool) -> Array:
        """Draw sequences, (count, T + 1)."""
        return self.make(np.random.default_rng(seed).random((count, self.numbers)), held_out)

    def match(self, tokens: Array) -> Array:
        """Return for each query the keys that determine the next token, (count, T, T) booleans.
        Any tokens may be given, because a prompt can be typed; no key is after its query."""
        raise NotImplementedError

    def answers(self, tokens: Array) -> Array:
        """Return which tokens their context determines, (count, T) booleans."""
        return np.pad(np.any(self.match(tokens), axis=-1)[:, :-1], ((0, 0), (1, 0)))

    def baselines(self, held_out: Array) -> dict[str, float]:
        """Return the losses of simple predictions, in nats per token. "chance" predicts each token
        by its frequency at its position."""
        V, positions = len(self.vocab), np.arange(self.T + 1)
        counts = np.ones((self.T + 1, V))
        for sequence in self.draw([0, 2], OBSERVED, held_out=False):
            counts[positions, sequence] += 1
        chance = (counts / counts.sum(1, keepdims=True))[positions, held_out]
        return {"uniform": math.log(V), "chance": float(-np.log(chance[:, 1:]).mean())}


def choose(name: str, given: int | None, default: int, low: int, high: int) -> int:
    """Return the given number, or the default.

    Raises:
        UserError: if the task does not allow it.
    """
    if given is None:
        return default
    if low == high:
        raise UserError(f"this task does not use --data.{name}; omit it")
    if not low <= given <= high:
        raise UserError(f"--data.{name} {given} must be from {low} to {high} for this task")
    return given


def choose_by(weights: Array, u: Array) -> Array:
    """Return an index for each row of weights, (count, n), and random number."""
    ends = weights.cumsum(1)
    return (u[:, None] * ends[:, -1:] >= ends[:, :-1]).sum(1)


def scramble(numbers: Array) -> Array:
    """Return a fixed number in (0, 1] for each natural number, by a hash of 32 bits."""
    numbers = numbers + 1
    for _ in range(2):
        numbers = (numbers ^ numbers >> 16) * 0x45D9F3B & 0xFFFFFFFF
    return ((numbers ^ numbers >> 16) + 1) / 2**32


def split_pairs(limit: int, held_out: float) -> tuple[Array, Array]:
    """Split the pairs (a, b) of numbers below `limit`, as a * limit + b, in those for training and
    those held out.

    Raises:
        UserError: if there are none for one of them.
    """
    chosen = scramble(np.arange(limit**2)) <= held_out
    if chosen.all() or not chosen.any():
        raise UserError(
            f"--data.task_held_out {held_out} leaves no sums for training or for validation"
        )
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def choose_pairs(pairs: Array, u: Array, limit: int) -> tuple[Array, Array]:
    """Return a and b of the pairs that the random numbers choose."""
    return np.divmod(pairs[(u * len(pairs)).astype(int)], limit)


def after_same(tokens: Array) -> Array:
    """Return which keys follow an earlier occurrence of the query's token, (count, T, T)."""
    same = np.tril(tokens[:, :, None] == tokens[:, None], k=-1)
    return np.roll(same, 1, axis=2)  # the last key has no later query
