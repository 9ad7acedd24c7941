"""Tasks: generated sequences on which one can watch attention do something.

A task makes its sequences from uniform random numbers alone, so that another program makes the same
sequences from the same numbers. Arrays of tokens are (count, T + 1), or (1, T) for a prompt.
"""

import math
import string
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import UserError
from data.config import DataConfig

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

    chars: Any
    """The character of each token. Samples begin with the first."""

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
        V, positions = len(self.chars), np.arange(self.T + 1)
        counts = np.ones((self.T + 1, V))
        for sequence in self.draw([0, 2], OBSERVED, held_out=False):
            counts[positions, sequence] += 1
        chance = (counts / counts.sum(1, keepdims=True))[positions, held_out]
        return {"uniform": math.log(V), "chance": float(-np.log(chance[:, 1:]).mean())}


class Repeat(Task):
    """Random strings repeated: each sequence is [r, r, ...] cut to T + 1, with r of random length.

    The characters of r are distinct, so the next character can be predicted only from the previous
    occurrence of the current one. A model that predicts the second copy has learned to find that
    occurrence: induction (Olsson et al. 2022).
    """

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.low, self.high = config.repeat_min_period, config.repeat_max_period
        self.chars = VISIBLE[: config.repeat_vocab]
        if not self.low <= self.high <= min(config.repeat_vocab, T // 2):
            raise UserError(
                "--data.repeat_min_period must be at most --data.repeat_max_period, which must be "
                "at most --data.repeat_vocab and half of --model.block_size"
            )

    def __str__(self) -> str:
        return (
            f"random strings of {self.low} to {self.high} distinct characters out of "
            f"{len(self.chars)}, repeated"
        )

    def draw(self, seed: list[int], count: int, held_out: bool) -> Array:
        # Older than `make`, and kept so that earlier runs resume with the same sequences.
        random = np.random.default_rng(seed)
        periods = random.integers(self.low, self.high, size=(count, 1), endpoint=True)
        strings = np.tile(np.arange(len(self.chars)), (count, 1))
        strings = random.permuted(strings, axis=1)
        return np.take_along_axis(strings, np.arange(self.T + 1) % periods, axis=1)

    def match(self, tokens: Array) -> Array:
        return after_same(tokens)

    def baselines(self, held_out: Array) -> dict[str, float]:
        return {"uniform": math.log(len(self.chars))}


class Sink(Task):
    """A fixed Markov chain with triggers: after a digit comes the token before it. At other tokens
    a head has nothing to copy, and attends to the first one (Guo et al. 2024)."""

    kinds = (32, 5, 55)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.letters = self.n - 3
        self.chars = "^" + string.ascii_letters[: self.letters] + "012"
        weights = -np.log(scramble(np.arange(self.n**2)))
        self.chain = weights.reshape(self.n, self.n) ** 3  # so that few are likely

    def __str__(self) -> str:
        return f"a Markov chain over {self.letters} letters; a digit repeats the token before it"

    def make(self, u: Array, held_out: bool) -> Array:
        tokens = np.zeros((len(u), self.T + 1), dtype=int)
        tokens[:, 1] = 1 + (u[:, 1] * self.letters).astype(int)
        for t in range(2, self.T + 1):
            before = tokens[:, t - 1]
            drawn = 1 + choose_by(self.chain[before - 1], u[:, t])
            tokens[:, t] = np.where(before > self.letters, tokens[:, t - 2], drawn)
        return tokens

    def match(self, tokens: Array) -> Array:
        previous = np.eye(tokens.shape[1], k=-1, dtype=bool)
        return (tokens > self.letters)[..., None] & previous


class Markov(Task):
    """Markov chains, each with a new transition matrix, so that one predicts best by counting the
    bigrams of the context: statistical induction (Edelman et al. 2024)."""

    kinds = (3, 2, 26)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.chars = string.ascii_letters[: self.n]
        self.numbers += self.n**2

    def __str__(self) -> str:
        return f"Markov chains over {self.n} states, each with its own transition matrix"

    def make(self, u: Array, held_out: bool) -> Array:
        first, tokens = self.n**2, np.empty((len(u), self.T + 1), dtype=int)
        chains = -np.log(1 - u[:, :first]).reshape(-1, self.n, self.n)  # in shares, Dirichlet(1)
        tokens[:, 0] = u[:, first] * self.n
        for t in range(1, self.T + 1):
            chain = chains[np.arange(len(u)), tokens[:, t - 1]]
            tokens[:, t] = choose_by(chain, u[:, first + t])
        return tokens

    def match(self, tokens: Array) -> Array:
        return after_same(tokens)

    def answers(self, tokens: Array) -> Array:
        return np.zeros_like(tokens, dtype=bool)

    def baselines(self, held_out: Array) -> dict[str, float]:
        """Return the losses by counting in the context, from 1, the tokens or the bigrams."""
        V = np.eye(self.n)[held_out]
        losses = {"uniform": math.log(self.n)}
        pairs = zip(held_out, V, strict=True)  # one sequence at a time, to save memory
        bigrams = np.stack([after_same(tokens[None])[0] @ each for tokens, each in pairs])
        counts = {"unigram": V.cumsum(1), "bigram": bigrams}
        for name, counted in counts.items():
            chance = (counted + 1) / (counted + 1).sum(-1, keepdims=True)
            nats = -np.log((chance[:, :-1] * V[:, 1:]).sum(-1))
            losses[f"in-context {name}"] = float(nats.mean())
        return losses


class Modular(Task):
    """Sums a+b=c modulo a prime, some of them held out. A model first memorizes the others and,
    later and suddenly, solves these: grokking (Power et al. 2022)."""

    kinds = (97, 2, 500)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        digits = [char for char in dict.fromkeys(string.digits + VISIBLE) if char not in "+="]
        self.chars = "".join(digits[: self.n]) + "+="
        self.pairs = split_pairs(self.n, config.task_held_out)
        self.numbers = 1
        if T != 4:
            raise UserError("--model.block_size must be 4 for --data.source modular")

    def __str__(self) -> str:
        return f"sums modulo {self.n}, {len(self.pairs[1]):,} of {self.n**2:,} held out"

    def make(self, u: Array, held_out: bool) -> Array:
        a, b = choose_pairs(self.pairs[held_out], u[:, 0], self.n)
        plus = np.full_like(a, self.n)
        return np.stack([a, plus, b, plus + 1, (a + b) % self.n], axis=1)

    def match(self, tokens: Array) -> Array:
        found = np.zeros((*tokens.shape, tokens.shape[1]), dtype=bool)
        is_sum = (tokens[:, 1:2] == self.n) & (tokens[:, 3:4] == self.n + 1)
        found[:, 3:4, :3:2] = is_sum[..., None]
        return found


class Addition(Task):
    """Sums of numbers with a fixed number of digits, some of them held out (Lee et al. 2023)."""

    length = (3, 1, 3)
    chars = string.digits + "+=\n"

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.pairs = split_pairs(10**self.size, config.task_held_out)
        self.width = 3 * self.size + 4
        self.numbers = T // self.width + 1
        places = [*range(self.size + 1)]  # of the answer's digits in their order, 0 for ones
        orders = {"highest": places[::-1], "lowest": places, "carry": [self.size, *places[:-1]]}
        self.places = orders[config.task_order]
        if self.width > T + 1:
            raise UserError(f"--model.block_size must be at least {self.width - 1}")

    def __str__(self) -> str:
        return f"sums of {self.size}-digit numbers, with the {self.config.task_order} digit first"

    def make(self, u: Array, held_out: bool) -> Array:
        text, n = "", self.size
        for a, b in zip(*choose_pairs(self.pairs[held_out], u.ravel(), 10**n), strict=True):
            answer = f"{a + b:0{n + 1}}"[::-1]
            text += f"{a:0{n}}+{b:0{n}}={''.join(answer[i] for i in self.places)}\n"
        tokens = np.array([*map(self.chars.index, text)])
        return tokens.reshape(len(u), -1)[:, : self.T + 1]

    def match(self, tokens: Array) -> Array:
        """Return the two digits with the place of the answer's, or, for its last carry, the highest
        place."""
        found, n = np.zeros((*tokens.shape, tokens.shape[1]), dtype=bool), self.size
        for query in range(tokens.shape[1]):
            written = query % self.width - 2 * n - 1  # digits of the answer
            if 0 <= written <= n:
                ends = query - written - np.array([n + 1, 0])  # of the numbers, at + and =
                is_sum = (tokens[:, ends] == [10, 11]).all(1)
                found[:, query, ends - 1 - min(self.places[written], n - 1)] = is_sum[:, None]
        return found


class FlipFlop(Task):
    """Instructions w (write), r (read) and i (ignore), each before a bit. The bit after r is
    that after the last w (Liu et al. 2023)."""

    chars = "wri01"

    def __str__(self) -> str:
        return (
            f"bits that are written, read and, with probability {self.config.task_ignored}, ignored"
        )

    def make(self, u: Array, held_out: bool) -> Array:
        ignored, is_bit = self.config.task_ignored, np.arange(self.T + 1) % 2 == 1
        instructions = np.where(u < ignored, 2, u < (1 + ignored) / 2)  # else 0, which writes
        tokens = np.where(is_bit, 3 + (u < 0.5), instructions)
        tokens[:, 0], written = 0, tokens[:, 1]
        for t in range(1, self.T + 1, 2):
            written = np.where(tokens[:, t - 1] == 0, tokens[:, t], written)
            tokens[:, t] = np.where(tokens[:, t - 1] == 1, written, tokens[:, t])
        return tokens

    def match(self, tokens: Array) -> Array:
        positions = np.arange(tokens.shape[1])
        written = 1 + np.maximum.accumulate(np.where(tokens == 0, positions, -2), axis=1)
        return (tokens == 1)[..., None] & (positions == written[..., None])


class Brackets(Task):
    """Brackets that close in the right order, up to a depth: a Dyck language (Yao et al. 2021)."""

    kinds = (4, 1, 4)
    length = (6, 1, 100)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.chars = "([{<"[: self.n] + ")]}>"[: self.n]

    def __str__(self) -> str:
        return f"{self.n} kinds of brackets, at most {self.size} deep"

    def make(self, u: Array, held_out: bool) -> Array:
        tokens, rows = np.empty(u.shape, dtype=int), np.arange(len(u))
        stack, depth = np.zeros((len(u), self.size + 1), dtype=int), np.zeros(len(u), dtype=int)
        for t in range(self.T + 1):
            opens = (depth == 0) | ((depth < self.size) & (u[:, t] < 0.5))
            kind = (u[:, t] * 2 % 1 * self.n).astype(int)
            tokens[:, t] = np.where(opens, kind, self.n + stack[rows, depth])
            depth += np.where(opens, 1, -1)
            stack[rows[opens], depth[opens]] = kind[opens]
        return tokens

    def match(self, tokens: Array) -> Array:
        """Return the innermost open bracket, whether or not it closes next."""
        found = np.zeros((*tokens.shape, tokens.shape[1]), dtype=bool)
        for row, sequence in enumerate(tokens.tolist()):
            stack: list[int] = []
            for t, token in enumerate(sequence):
                if token < self.n:
                    stack.append(t)
                elif stack:
                    stack.pop()
                found[row, t, stack[-1:]] = True
        return found

    def answers(self, tokens: Array) -> Array:
        return super().answers(tokens) & (tokens >= self.n)


class Recall(Task):
    """Keys, each followed by its value, which is constant within a sequence: associative recall
    (Arora et al. 2023)."""

    kinds = (16, 1, 26)
    length = (16, 1, 26)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.chars = string.ascii_lowercase[: self.n] + string.ascii_uppercase[: self.n]
        self.numbers += 2 * self.n
        if self.size > self.n:
            raise UserError(
                f"--data.task_length {self.size} must be at most --data.task_kinds {self.n}"
            )

    def __str__(self) -> str:
        return f"keys with values, {self.size} of {self.n} keys in a sequence"

    def make(self, u: Array, held_out: bool) -> Array:
        n, places = self.n, (u[:, 2 * self.n :] * self.size).astype(int)
        values = n + (u[:, :n] * n).astype(int)
        keys = u[:, n : 2 * n].argsort(axis=1)  # of which the first are used
        tokens = np.take_along_axis(keys, places, axis=1)
        tokens[:, 1::2] = np.take_along_axis(values, tokens[:, :-1:2], axis=1)
        return tokens

    def match(self, tokens: Array) -> Array:
        return after_same(tokens) & (tokens < self.n)[..., None]


TASKS: dict[Any, type[Task]] = {
    "repeat": Repeat,
    "sink": Sink,
    "markov": Markov,
    "modular": Modular,
    "flipflop": FlipFlop,
    "brackets": Brackets,
    "addition": Addition,
    "recall": Recall,
}


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
