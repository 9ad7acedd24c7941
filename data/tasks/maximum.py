"""The task maximum."""

import numpy as np

from common.errors import UserError
from configs.config import DataConfig
from data.tasks.task import Array, Task


class Maximum(Task):
    """Numbers, and after = the largest of them. The numbers of a sequence are below a limit of its
    own, so that small numbers, too, are the largest often enough to be learned."""

    kinds = (32, 2, 500)
    length = (6, 1, 200)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.vocab = (*map(str, range(self.n)), "=")
        self.numbers = 1 + self.size
        if self.size != T - 1:
            raise UserError(f"--model.block_size must be {self.size + 1} for {self.size} numbers")

    def __str__(self) -> str:
        return f"{self.size} numbers below {self.n}, and the largest of them"

    def make(self, u: Array, held_out: bool) -> Array:
        limits = 1 + (u[:, :1] * self.n).astype(int)
        numbers = (u[:, 1:] * limits).astype(int)
        equals = np.full_like(limits, self.n)
        return np.concatenate([numbers, equals, numbers.max(1, keepdims=True)], axis=1)

    def match(self, tokens: Array) -> Array:
        """Return each occurrence of the largest number, for a query at =."""
        largest = np.maximum.accumulate(np.where(tokens < self.n, tokens, -1), axis=1)
        found = np.tril(tokens[:, None] == largest[..., None])
        return (tokens == self.n)[..., None] & found
