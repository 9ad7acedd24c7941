"""The task modular."""

import numpy as np

from common.errors import UserError
from configs.config import DataConfig
from data.tasks.task import Array, Task, choose_pairs, split_pairs


class Modular(Task):
    """Sums a+b=c modulo a prime, some of them held out. A model first memorizes the others and,
    later and suddenly, solves these: grokking (Power et al. 2022)."""

    kinds = (97, 2, 500)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.vocab = (*map(str, range(self.n)), "+", "=")
        self.pairs = split_pairs(self.n, config.task_held_out)
        self.numbers = 1
        if T != 4:
            raise UserError("--model.block_size must be 4 for the task modular")

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
