"""What heads may attend to: a short list of targets.

A target names, for a query, one or several of the keys that it may attend to, such as the last
newline, or the token after the previous occurrence of the same two tokens. reads.py measures how
much of a head's attention each explains.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lens.tables import visible

CLOSING, QUOTES = {")": "(", "]": "[", "}": "{"}, "\"'`"
LAST = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # tokens before a query
SAME = (1, 2, 3, 4)  # lengths of the n-grams whose previous occurrence is a target
COMMON = 1 / 8  # of the sequences: a rarer token is no target
KINDS: dict[str, Callable[[str], bool]] = {
    "letters": str.isalpha,
    "capitals": lambda text: text[:1].isupper(),
    "digits": str.isdigit,
    "white space": lambda text: not text,
    "punctuation": lambda text: bool(text) and not any(map(str.isalnum, text)),
}


class Reads(NamedTuple):
    """A target that a head attends to."""

    target: str

    group: str
    """Targets that differ only in a number have the same group."""

    weight: float
    expected: float
    is_position: bool

    def __str__(self) -> str:
        return f"{self.target} ({self.weight:.2f})"


class Target(NamedTuple):
    """Something that a head may attend to."""

    name: str

    group: str
    """Targets that differ only in a number have the same group."""

    is_position: bool = False

    token: int | None = None
    """Of the last occurrence of a token."""


class Targets(NamedTuple):
    """The targets in B sequences of T tokens: first those of one key, then kinds of keys, then
    ranges of positions."""

    names: list[Target]

    key_BTN: Tensor
    """The key, for each query; -1 if there is none."""

    member_BTK: Tensor
    """Which keys are of a kind."""

    spans: list[tuple[int, int]]
    """The first and the last distance of a range."""

    @property
    def has_BTN(self) -> Tensor:
        """Which queries have such keys, for each target."""
        B, T, _ = self.key_BTN.shape
        first_N = torch.tensor([*(first for first, _ in self.spans), 0])
        of_spans_TN = torch.arange(T)[:, None] >= first_N
        of_kinds_BTK = self.member_BTK.cummax(1).values
        return torch.cat((self.key_BTN >= 0, of_kinds_BTK, of_spans_TN.expand(B, -1, -1)), -1)

    def part(self, sequences: slice) -> "Targets":
        """Return the targets in some of the sequences."""
        return self._replace(key_BTN=self.key_BTN[sequences], member_BTK=self.member_BTK[sequences])


def common_suffixes(tokens_BT: Tensor) -> Tensor:
    """Return how many tokens up to query q equal those up to an earlier key k, (B, T, T)."""
    B, T = tokens_BT.shape
    lengths_BTT = torch.zeros(B, T + 1, T + 1, dtype=torch.int16)
    for q in range(T):
        equal_BS = tokens_BT[:, :q] == tokens_BT[:, q, None]
        lengths_BTT[:, q + 1, 1 : q + 1] = (lengths_BTT[:, q, :q] + 1) * equal_BS
    return lengths_BTT[:, 1:, 1:]


def last_open(tokens_BT: Tensor, labels: Sequence[str]) -> Tensor:
    """Return the position of the last bracket or quote that is open after each token, (B, T), or
    -1. A quote after a letter or a digit opens nothing, because it may be an apostrophe."""
    found_BT = torch.full_like(tokens_BT, -1)
    for b, row in enumerate(tokens_BT.tolist()):
        stack, before = list[tuple[str, int]](), " "
        for t, token in enumerate(row):
            for char in labels[token]:
                if stack and stack[-1][0] == CLOSING.get(char, char):
                    stack.pop()
                elif char in CLOSING.values() or (char in QUOTES and not before.isalnum()):
                    stack.append((char, t))
                before = char
            if stack:
                found_BT[b, t] = stack[-1][1]
    return found_BT


def common_tokens(tokens_BT: Tensor) -> list[int]:
    """Return the tokens that enough sequences have."""
    sequences = torch.cat([row.unique() for row in tokens_BT]).bincount()
    return (sequences >= COMMON * len(tokens_BT)).nonzero().flatten().tolist()


def find_targets(tokens_BT: Tensor, labels: Sequence[str]) -> Targets:
    """Find the targets in sequences of tokens."""
    T = tokens_BT.size(1)
    positions_T = torch.arange(T)
    single, kinds, spans = dict[Target, Tensor](), dict[Target, Tensor](), dict[Target, Any]()
    for token in common_tokens(tokens_BT):
        name, is_token_BT = visible(labels[token]), tokens_BT == token
        last_BT = torch.where(is_token_BT, positions_T, -1).cummax(1).values
        single[Target(f"the last {name}", name, token=token)] = last_BT
        kinds[Target(f"every {name}", name)] = is_token_BT
    suffixes_BTT = common_suffixes(tokens_BT)
    for n in SAME:
        key_BT = torch.where(suffixes_BTT >= n, positions_T, -1).amax(-1)
        same = "the same token" if n == 1 else f"the same {n} tokens"
        if n == 1:
            single[Target(f"{same} before", f"{same} before")] = key_BT
        after_BT = torch.where(key_BT < 0, -1, key_BT + 1)
        single[Target(f"after {same}", "after the same tokens")] = after_BT
    open_bracket = Target("the last open bracket or quote", "the last open bracket or quote")
    single[open_bracket] = last_open(tokens_BT, labels)
    texts = [label.strip() for label in labels]
    for kind, belongs in KINDS.items():
        kinds[Target(kind, kind)] = torch.tensor([*map(belongs, texts)])[tokens_BT]
    spans[Target("itself", "itself", True)] = 0, 0
    for n in range(1, T):
        group = "the token before" if n == 1 else "further back"
        spans[Target(f"{n} back", group, True)] = n, n
    for last in LAST:
        if last < T:
            spans[Target(f"the last {last} tokens", "the last tokens", True)] = 0, last - 1
    first = Target("the first token", "the first token", True)  # of_spans adds it
    return Targets(
        [*single, *kinds, *spans, first],
        torch.stack([*single.values()], -1),
        torch.stack([*kinds.values()], -1),
        [*spans.values()],
    )
