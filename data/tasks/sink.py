"""The task sink."""

import string

import numpy as np

from configs.config import DataConfig
from data.tasks.task import Array, Task, choose_by, scramble


class Sink(Task):
    """A fixed Markov chain with triggers: after a digit comes the token before it. At other tokens
    a head has nothing to copy, and attends to the first one (Guo et al. 2024)."""

    kinds = (32, 5, 55)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.letters = self.n - 3
        self.vocab = "^" + string.ascii_letters[: self.letters] + "012"
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
