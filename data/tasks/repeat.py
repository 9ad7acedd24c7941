"""The tasks repeat and repeat_fixed: random strings, repeated."""

import math

import numpy as np

from common.errors import UserError
from configs.config import DataConfig
from data.tasks.task import VISIBLE, Array, Task, after_same


class Repeat(Task):
    """Random strings repeated: each sequence is [r, r, ...] cut to T + 1, with r of random length.

    The characters of r are distinct, so the next character can be predicted only from the previous
    occurrence of the current one. A model that predicts the second copy has learned to find that
    occurrence: induction (Olsson et al. 2022).
    """

    kinds = (64, 2, 50_000)
    length = (32, 2, 50_000)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.vocab = VISIBLE[: self.n]
        self.numbers = 1 + self.n
        self.periods = self.choose_periods()
        if self.size > min(self.n, T // 2):
            raise UserError(
                f"--data.task_length {self.size}, the longest period, must be at most "
                f"--data.task_kinds {self.n} and half of --model.block_size {T}"
            )

    def choose_periods(self) -> range:
        """Return the lengths of r: from a quarter of task_length to task_length."""
        return range(max(1, self.size // 4), self.size + 1)

    def __str__(self) -> str:
        return (
            f"random strings of {self.periods[0]} to {self.periods[-1]} distinct characters out of "
            f"{self.n}, repeated"
        )

    def make(self, u: Array, held_out: bool) -> Array:
        periods = self.periods[0] + (u[:, :1] * len(self.periods)).astype(int)
        strings = u[:, 1:].argsort(axis=1, kind="stable")
        return np.take_along_axis(strings, np.arange(self.T + 1) % periods, axis=1)

    def match(self, tokens: Array) -> Array:
        return after_same(tokens)

    def baselines(self, held_out: Array) -> dict[str, float]:
        return {"uniform": math.log(self.n)}


class RepeatFixed(Repeat):
    """The same with one period, task_length: a model can learn to attend that many tokens back,
    which is not induction."""

    def choose_periods(self) -> range:
        return range(self.size, self.size + 1)
