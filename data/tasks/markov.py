"""The task markov."""

import math
import string

import numpy as np

from configs.config import DataConfig
from data.tasks.task import Array, Task, after_same, choose_by


class Markov(Task):
    """Markov chains, each with a new transition matrix, so that one predicts best by counting the
    bigrams of the context: statistical induction (Edelman et al. 2024)."""

    kinds = (3, 2, 26)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.vocab = string.ascii_letters[: self.n]
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
