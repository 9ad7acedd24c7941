"""The task stories."""

import numpy as np

from common.errors import UserError
from configs.config import DataConfig
from data.tasks.task import Array, Task

OTHERS = ("The", "the", "still", "Now", "In", "end", ".")
PEOPLE = ("Anna", "Ben", "Eva", "Leo", "Mia", "Paul", "Sara", "Tom")
ANIMALS = ("dog", "cat", "hen", "goat", "duck", "pig")
VERBS = ("follows", "watches", "likes", "fears", "calls", "trusts")  # one for each animal
CAST = 4  # people in a story


class Stories(Task):
    """Stories about animals, each of which follows, watches or likes somebody, and now and then
    somebody else. After "still" and a verb comes the last name that followed this verb."""

    kinds = (3, 1, 6)
    length = (6, 1, 100)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.vocab = (*OTHERS, *PEOPLE, *ANIMALS, *VERBS)
        self.numbers = 15 + self.n + 2 * self.size
        if (fits := 5 * self.n + 6 * self.size + 8) != T:
            raise UserError(
                f"--model.block_size must be {fits} for {self.n} animals and {self.size} sentences"
            )

    def __str__(self) -> str:
        return f"stories of {self.n} animals, with {self.size} sentences before the last"

    def make(self, u: Array, held_out: bool) -> Array:
        n, rows = self.n, np.arange(len(u))
        ends = np.cumsum([8, 6, n, self.size, self.size])
        *ordered, first, chosen, changes, last = np.split(u, ends, axis=1)
        people, animals = (each.argsort(axis=1, kind="stable") for each in ordered)
        ids, whom = {word: i for i, word in enumerate(self.vocab)}, (first * CAST).astype(int)

        def say(sentence: str, i: Array) -> Array:
            """Return a sentence about the i-th animal of each story, (count, words)."""
            animal = animals[rows, i]
            drawn = {
                "ANIMAL": ids[ANIMALS[0]] + animal,
                "DOES": ids[VERBS[0]] + animal,
                "WHO": ids[PEOPLE[0]] + people[rows, whom[rows, i]],
            }
            words = [drawn[w] if w in drawn else np.full(len(u), ids[w]) for w in sentence.split()]
            return np.stack(words, axis=1)

        told = [say("The ANIMAL DOES WHO .", np.full(len(u), i)) for i in range(n)]
        for i, change in zip((chosen.T * n).astype(int), changes.T, strict=True):
            other = (whom[rows, i] + 1 + ((2 * change - 1) * (CAST - 1)).astype(int)) % CAST
            whom[rows, i] = np.where(change < 0.5, whom[rows, i], other)
            same, new = "The ANIMAL still DOES WHO .", "Now the ANIMAL DOES WHO ."
            told.append(np.where(change[:, None] < 0.5, say(same, i), say(new, i)))
        asked = (last[:, 0] * n).astype(int)
        told.append(say("In the end the ANIMAL still DOES WHO .", asked))
        return np.concatenate(told, axis=1)

    def match(self, tokens: Array) -> Array:
        """Return the token after the last same verb, for a query at a verb after "still"."""
        verb, still = self.vocab.index(VERBS[0]), self.vocab.index("still")
        asks = (tokens >= verb) & (tokens < verb + len(VERBS)) & (np.roll(tokens, 1, 1) == still)
        asks[:, 0] = False
        positions = np.arange(tokens.shape[1])
        same = np.tril(tokens[:, :, None] == tokens[:, None], k=-1)
        after = 1 + np.where(same, positions, -2).max(-1)  # -1 if there is none
        return asks[..., None] & (positions == after[..., None])
