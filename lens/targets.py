"""What heads attend to: the best of a short list of targets.

A target names, for a query, one or several of the keys that it may attend to, such as the last
newline, or the token after the previous occurrence of the same two tokens. Let a be the weight that
a head gives them, and p the weight that position alone would give them, means over the queries that
have such keys. The target then explains

    (share of the queries that have such keys) x (a ln(a / p) + (1 - a) ln((1 - a) / (1 - p))) nats

of a query's attention: the relative entropy of the choice between these keys and the others. So of
two targets with the same weight, the one with fewer keys explains more.

Position alone is a head whose weights depend only on the distance, and on whether a key is the
first one of the sequence: the means of this head's own weights. For a target that is itself a
position, such as 1 back, p is the weight of uniform attention.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lens.capture import capture
from lens.measure import micro_batches
from lens.tables import visible
from model.gpt import GPT

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


class Weights(NamedTuple):
    """The weights of heads on N targets, in B sequences: sums over queries."""

    own_LHBN: Tensor

    expected_LHBN: Tensor
    """By position alone or, for a target that is a position, by uniform attention."""

    count_LHBN: Tensor
    """The number of queries that have such keys."""

    queries_LHB: Tensor
    """The number of queries."""

    def part(self, sequences: slice) -> "Weights":
        """Return the weights in some of the sequences."""
        return Weights(*(each[:, :, sequences] for each in self))

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the weight of each head on each target, and the expected weight, (L, H, N)."""
        count_LHN, tiny = self.count_LHBN.sum(2).clamp(min=1), 1e-9
        both = self.own_LHBN.sum(2) / count_LHN, self.expected_LHBN.sum(2) / count_LHN
        return both[0].clamp(tiny, 1 - tiny), both[1].clamp(tiny, 1 - tiny)

    def explained(self) -> Tensor:
        """Return the nats that each target explains of each head's attention, (L, H, N)."""
        a_LHN, p_LHN = self.means()
        share_LHN = self.count_LHBN.sum(2) / self.queries_LHB.sum(2).clamp(min=1)[..., None]
        others_LHN = (1 - a_LHN) * ((1 - a_LHN) / (1 - p_LHN)).log()
        return share_LHN * (a_LHN * (a_LHN / p_LHN).log() + others_LHN)


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


def distances(T: int) -> tuple[Tensor, Tensor]:
    """Return how far each query is from each key, (T, T), 0 for keys after it, and which keys it
    may attend to."""
    back_TT = torch.arange(T)[:, None] - torch.arange(T)
    return back_TT.clamp(min=0), back_TT >= 0


def position_alone(mean_HTT: Tensor) -> Tensor:
    """Return the weights of heads that depend only on the distance, and on whether a key is the
    first, (H, T, T), from their mean weights for each query and key."""
    T = mean_HTT.size(-1)
    back_TT, causal_TT = distances(T)
    later_TT = causal_TT & (torch.arange(T) > 0)
    sums_HT = mean_HTT.new_zeros(len(mean_HTT), T)
    sums_HT.index_add_(1, back_TT[later_TT], mean_HTT[:, later_TT])
    mean_HT = sums_HT / back_TT[later_TT].bincount(minlength=T).clamp(min=1)
    weights_HTT = mean_HT[:, back_TT] * causal_TT
    weights_HTT[..., 0] = mean_HTT[:, 1:, 0].mean(1, keepdim=True)
    weights_HTT[:, 0, 0] = 1.0
    return weights_HTT / weights_HTT.sum(-1, keepdim=True)


def on_keys(weights_BHTT: Tensor, targets: Targets) -> Tensor:
    """Sum the weights on targets of one key and on kinds of keys, (B, H, N + K)."""
    index_B1TN = targets.key_BTN[:, None]
    index_BHTN = index_B1TN.clamp(min=0).expand(-1, weights_BHTT.size(1), -1, -1)
    single_BHN = (weights_BHTT.gather(-1, index_BHTN) * (index_B1TN >= 0)).sum(2)
    return torch.cat((single_BHN, weights_BHTT.sum(2) @ targets.member_BTK.float()), -1)


def on_spans(weights_BHTT: Tensor, targets: Targets) -> Tensor:
    """Sum the weights on ranges of positions and on the first token, (B, H, M)."""
    back_TT, causal_TT = distances(weights_BHTT.size(-1))
    by_distance_BHT = weights_BHTT.new_zeros(weights_BHTT.shape[:-1])
    by_distance_BHT.index_add_(2, back_TT[causal_TT], weights_BHTT[..., causal_TT])
    sums = [by_distance_BHT[..., a : b + 1].sum(-1) for a, b in targets.spans]
    return torch.stack([*sums, weights_BHTT[..., 0].sum(-1)], -1)


@torch.no_grad()
def weigh(
    model: GPT, tokens_BT: Tensor, targets: Targets, queries: Sequence[Tensor | None] = (None,)
) -> list[Weights]:
    """Measure the weights of every head on targets, for each choice of queries.

    Args:
        tokens_BT: the sequences of the targets, of up to block_size tokens.
        queries: which queries of each head are measured, (L, H, B, T); None for all.
    """
    L, H = model.config.n_layer, model.config.n_head
    (B, T), batches = tokens_BT.shape, micro_batches(model, tokens_BT)
    chosen = [torch.ones(L, H, B, T) if each is None else each.float() for each in queries]
    own_CLHBN = torch.zeros(len(chosen), L, H, B, len(targets.names))
    mean_LHTT = torch.zeros(L, H, T, T)
    for start, batch in zip(range(0, B, len(batches[0])), batches, strict=True):
        part = slice(start, start + len(batch))
        here = targets.part(part)
        for i, layer in enumerate(capture(model, batch).layers):
            weights_BHTT = layer.weights_BHTS
            mean_LHTT[i] += weights_BHTT.sum(0) / B
            for own_LHBN, at_LHBT in zip(own_CLHBN, chosen, strict=True):
                at_BHTT = weights_BHTT * at_LHBT[i, :, part].transpose(0, 1)[..., None]
                own_BHN = torch.cat((on_keys(at_BHTT, here), on_spans(at_BHTT, here)), -1)
                own_LHBN[i, :, part] = own_BHN.transpose(0, 1)
    alone_HTT = torch.cat([*map(position_alone, mean_LHTT)])
    return [
        Weights(own_LHBN, *expect(alone_HTT, targets, at_LHBT), at_LHBT.sum(-1))
        for own_LHBN, at_LHBT in zip(own_CLHBN, chosen, strict=True)
    ]


def expect(alone_HTT: Tensor, targets: Targets, at_LHBT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected weights on the targets, and the number of queries that have such keys,
    (L, H, B, N) each: sums over the chosen queries.

    Args:
        alone_HTT: the weights by position alone, of the heads of all layers.
    """
    L, H, B, T = at_LHBT.shape
    _, causal_TT = distances(T)
    uniform_TT = causal_TT / causal_TT.sum(-1, keepdim=True)
    expected, counts = [], []
    for b in range(B):
        here, at_1HT = targets.part(slice(b, b + 1)), at_LHBT[:, :, b].flatten(0, 1)[None]
        alone_1HN = on_keys(alone_HTT * at_1HT[..., None], here)
        uniform_1HN = on_spans(uniform_TT * at_1HT[..., None], here)
        expected.append(torch.cat((alone_1HN, uniform_1HN), -1))
        counts.append(at_1HT @ here.has_BTN.float())
    both = torch.cat(expected), torch.cat(counts)
    expected_LHBN, count_LHBN = (each.transpose(0, 1).unflatten(0, (L, H)) for each in both)
    return expected_LHBN, count_LHBN
