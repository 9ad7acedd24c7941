"""The task addition."""

import string

import numpy as np

from common.errors import UserError
from configs.config import DataConfig
from data.tasks.task import Array, Task, choose_pairs, split_pairs


class Addition(Task):
    """Sums of numbers with a fixed number of digits, some of them held out (Lee et al. 2023)."""

    length = (3, 1, 3)
    vocab = string.digits + "+=\n"

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
        tokens = np.array([*map(self.vocab.index, text)])
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
