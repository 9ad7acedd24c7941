"""The task wrap."""

import string

import numpy as np

from configs.config import DataConfig
from data.tasks.task import Array, Task

ENDS = 0.25  # probability that a letter is the last of its word


class Wrap(Task):
    """Words in lines: a capital letter ends a word, and the first word that ends at or beyond a
    column ends the line. After a capital, the distance to the last newline determines whether a
    space or a newline follows."""

    kinds = (4, 1, 26)
    length = (24, 2, 1000)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        lower, upper = string.ascii_lowercase[: self.n], string.ascii_uppercase[: self.n]
        self.vocab = "\n " + lower + upper

    def __str__(self) -> str:
        return f"words of {self.n} letters, in lines that end at the first word beyond {self.size}"

    def make(self, u: Array, held_out: bool) -> Array:
        tokens = np.zeros((len(u), self.T + 1), dtype=int)  # which begins with a newline
        column = np.zeros(len(u), dtype=int)  # characters of the line so far
        for t in range(1, self.T + 1):
            ends = u[:, t] < ENDS
            share = np.where(ends, u[:, t] / ENDS, (u[:, t] - ENDS) / (1 - ENDS))
            letter = 2 + (share * self.n).astype(int) + self.n * ends
            after_word = tokens[:, t - 1] >= 2 + self.n
            tokens[:, t] = np.where(after_word, column < self.size, letter)
            column = np.where(tokens[:, t] == 0, 0, column + 1)
        return tokens

    def match(self, tokens: Array) -> Array:
        """Return the last newline, for a query at the end of a word."""
        positions = np.arange(tokens.shape[1])
        last = np.maximum.accumulate(np.where(tokens == 0, positions, -1), axis=1)
        return (tokens >= 2 + self.n)[..., None] & (positions == last[..., None])
