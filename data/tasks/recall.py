"""The task recall."""

import string

import numpy as np

from common.errors import UserError
from configs.config import DataConfig
from data.tasks.task import Array, Task, after_same


class Recall(Task):
    """Keys, each followed by its value, which is constant within a sequence: associative recall
    (Arora et al. 2023)."""

    kinds = (16, 1, 26)
    length = (16, 1, 26)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.vocab = string.ascii_lowercase[: self.n] + string.ascii_uppercase[: self.n]
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
        keys = u[:, n : 2 * n].argsort(axis=1, kind="stable")  # of which the first are used
        tokens = np.take_along_axis(keys, places, axis=1)
        tokens[:, 1::2] = np.take_along_axis(values, tokens[:, :-1:2], axis=1)
        return tokens

    def match(self, tokens: Array) -> Array:
        return after_same(tokens) & (tokens < self.n)[..., None]
