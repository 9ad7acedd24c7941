"""The task flipflop."""

import numpy as np

from data.tasks.task import Array, Task


class FlipFlop(Task):
    """Instructions w (write), r (read) and i (ignore), each before a bit. The bit after r is
    that after the last w (Liu et al. 2023)."""

    vocab = "wri01"

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
