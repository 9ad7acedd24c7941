"""The task brackets."""

import numpy as np

from configs.config import DataConfig
from data.tasks.task import Array, Task


class Brackets(Task):
    """Brackets that close in the right order, up to a depth: a Dyck language (Yao et al. 2021)."""

    kinds = (4, 1, 4)
    length = (6, 1, 100)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.vocab = "([{<"[: self.n] + ")]}>"[: self.n]

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
