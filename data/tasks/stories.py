"""The task stories."""

from collections.abc import Iterator, Sequence

import numpy as np

from configs.config import DataConfig
from data.tasks.task import Array, Task

PEOPLE = ["Anna", "Ben", "Eva", "Leo", "Mia", "Paul", "Sara", "Tom"]
THINGS = ["ball", "book", "drum", "hat", "kite", "map"]
OTHERS = ["Grandma", "gives", "the", "to", ",", "and", ".", "wants", "talks", "Who", "has", "?"]


class Stories(Task):
    """Stories of three people and three things, which are wanted and given on. The question at the
    end asks who has one of them: the one to whom it was given last. It is not the thing that was
    given last of all, so that the last name is no better than a guess."""

    length = (4, 1, 100)

    def __init__(self, config: DataConfig, T: int) -> None:
        super().__init__(config, T)
        self.numbers = T + 7 + 3 * self.size  # the last story may need all of its own
        self.vocab = (*OTHERS, *PEOPLE, *THINGS)  # a story begins with the first

    def __str__(self) -> str:
        return f"stories of {self.size} events between the first gifts and a question"

    def make(self, u: Array, held_out: bool) -> Array:
        ids = {word: i for i, word in enumerate(self.vocab)}
        told = np.zeros((len(u), self.T + 1), dtype=int)
        for tokens, numbers in zip(told, u.tolist(), strict=True):
            random, words = iter(numbers), list[str]()
            while len(words) <= self.T:
                words += self.tell(random).split()
            tokens[:] = [ids[word] for word in words[: self.T + 1]]
        return told

    def tell(self, random: Iterator[float]) -> str:
        """Return a story, with spaces between its tokens. They outnumber the random numbers that it
        takes, at most 7 and 3 for each event."""

        def pick(words: Sequence[str], *but: str) -> str:
            left = [word for word in words if word not in but]
            return left[int(next(random) * len(left))]

        def three(words: Sequence[str]) -> tuple[str, str, str]:
            a = pick(words)
            b = pick(words, a)
            return a, b, pick(words, a, b)

        people, things = three(PEOPLE), three(THINGS)
        owner = dict(zip(things, people, strict=True))
        given, gifts = things[-1], [f"the {thing} to {who}" for thing, who in owner.items()]
        told = ["Grandma gives {} , {} and {}".format(*gifts)]
        for _ in range(self.size):
            kind, thing = pick(["gives", "gives", "talks"]), pick(things, given)
            has, other = owner[thing], pick(people, owner[thing])
            if kind == "gives":
                told += [f"{other} wants the {thing}", f"{has} gives the {thing} to {other}"]
                owner[thing], given = other, thing
            else:
                told.append(f"{has} talks to {other}")
        asked = pick(things, given)
        return " . ".join([*told, f"Who has the {asked} ? {owner[asked]} ."])

    def match(self, tokens: Array) -> Array:
        """Return the one to whom the thing was given last, for a query at a question mark."""
        asks, to = self.vocab.index("?"), self.vocab.index("to")
        before, thing = np.roll(tokens, 1, axis=1), np.roll(tokens, 2, axis=1)
        gets = before == to
        gets[:, :2] = False
        is_same = (tokens == asks)[..., None] & (before[..., None] == thing[:, None])
        positions = np.arange(tokens.shape[1])
        last = np.where(np.tril(is_same & gets[:, None], k=-1), positions, -1).max(-1)
        return np.asarray(positions == last[..., None])
