"""At which answers a head matters: the kinds of answers at which ablating it costs most, compared
with what it costs elsewhere.

An answer is the token that a prediction is compared with. Its kinds are the token itself; the first
character of a word, a capital, a digit; a copy, which repeats, with the tokens before it, a stretch
of the context; what n-grams find hard; or, in a task, what the context determines.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from lens.tables import visible
from lens.targets import Reads, common_suffixes

CHANCE = 0.01  # probability that chance finds anything in a whole table
COPIES = (4, 8, 16)  # tokens, with the answer
LEAST = 0.005  # nats: a smaller change is not reported, even if it is certain
TIMES = 3  # what ablation costs at a kind of answers, at least, compared with elsewhere
FEWEST = 6  # sequences that have a kind of answers, in each half
TOKENS = 4  # that are reported together
JOBS = 2  # kinds of a head that are reported
KNOWN = "what the context determines"


class Kinds(NamedTuple):
    """N kinds of answers. An answer may be of several."""

    names: list[str]
    are_tokens: Tensor
    at_NBT: Tensor


class Matters(NamedTuple):
    """What ablating a head costs at some answers."""

    names: list[str]
    are_tokens: bool
    there: tuple[float, float]
    """Loss change at these answers, and its standard error over sequences."""
    elsewhere: float

    at_BT: Tensor
    """Which answers are of the first name, whose part of the whole cost is the largest."""

    reads: Reads | None = None
    """What the head attends to there, more than elsewhere and than position alone would."""

    @property
    def answers(self) -> str:
        return " ".join(self.names)

    @property
    def where(self) -> str:
        """Where `reads` is measured."""
        return f"at {self.names[0]}" if len(self.names) > 1 else "there"


class Contrast(NamedTuple):
    """The loss change of H heads at N kinds of answers, and elsewhere, (H, N) each."""

    there: Tensor
    error: Tensor
    elsewhere: Tensor
    z: Tensor
    """The difference in standard errors of the difference."""
    answers_N: Tensor
    """The number of answers of each kind."""


def beyond_chance(looks: int) -> float:
    """Return the number of standard errors that chance exceeds, with a probability of `CHANCE`, in
    any of this number of looks."""
    return NormalDist().inv_cdf(1 - CHANCE / max(looks, 1))


def kinds_of_answers(
    tokens_BT: Tensor,
    labels: Sequence[str],
    hard_BT: Tensor | None = None,
    known_BT: Tensor | None = None,
) -> Kinds:
    """Return the kinds of answers in sequences of T + 1 tokens, of which the last T are answers.

    Args:
        hard_BT: which answers n-grams find hard.
        known_BT: which answers their context determines.
    """
    answers_BT, before_BT, texts = tokens_BT[:, 1:], tokens_BT[:, :-1], [x.strip() for x in labels]
    begins_V = torch.tensor([text[:1].isalnum() for text in texts])
    apart_V = torch.tensor([label[:1].isspace() for label in labels])
    joins_V = torch.tensor([label[-1:].isalnum() for label in labels])
    repeated_BT = common_suffixes(tokens_BT).amax(-1)[:, 1:]
    first_BT = begins_V[answers_BT] & (apart_V[answers_BT] | ~joins_V[before_BT])
    found = {
        "first characters of words": first_BT,
        "capitals": torch.tensor([text[:1].isupper() for text in texts])[answers_BT],
        "digits": torch.tensor([text.isdigit() for text in texts])[answers_BT],
        **{f"copies of {n} or more": repeated_BT >= n for n in COPIES},
        "what n-grams find hard": hard_BT,
        KNOWN: known_BT,
    }
    at = {name: at_BT for name, at_BT in found.items() if at_BT is not None}
    tokens = answers_BT.unique().tolist()
    names = [*at, *(visible(labels[token]) for token in tokens)]
    are_tokens = torch.arange(len(names)) >= len(at)
    of_tokens = [answers_BT == token for token in tokens]
    enough = [_in_both_halves(each) for each in (*at.values(), *of_tokens)]
    kept = [i for i, each in enumerate(enough) if each]
    at_NBT = torch.stack([*at.values(), *of_tokens])[kept]
    return Kinds([names[i] for i in kept], are_tokens[kept], at_NBT)


def _in_both_halves(at_BT: Tensor) -> bool:
    some_B = at_BT.any(1)
    half = len(some_B) // 2
    return min(int(some_B[:half].sum()), int(some_B[half:].sum())) >= FEWEST


def contrast(change_HBT: Tensor, at_NBT: Tensor) -> Contrast:
    """Compare the loss changes at kinds of answers with those elsewhere. Standard errors are over
    sequences, which may have different numbers of such answers."""
    B, T = at_NBT.shape[1:]
    count_NB = at_NBT.sum(-1)
    sum_HNB = torch.einsum("hbt,nbt->hnb", change_HBT, at_NBT.float())
    parts = []
    for count, total in (
        (count_NB, sum_HNB),
        (T - count_NB, change_HBT.sum(-1)[:, None] - sum_HNB),
    ):
        n = count.sum(-1).clamp(min=1)
        mean_HN = total.sum(-1) / n
        parts.append((mean_HN, (total - mean_HN[..., None] * count) / n[:, None]))
    (there, excess), (elsewhere, other) = parts
    scale = (B / (B - 1)) ** 0.5
    z = (there - elsewhere) / ((excess - other).norm(dim=-1) * scale).clamp(min=1e-12)
    return Contrast(there, excess.norm(dim=-1) * scale, elsewhere, z, count_NB.sum(-1))


def specific(found: Contrast, z: float, names: Sequence[str]) -> Tensor:
    """Return which kinds, with these names, cost more than others, beyond this number of standard
    errors, (H, N). What the context determines need not cost `TIMES` as much: it is the task."""
    times_N = torch.tensor([1.0 if name == KNOWN else TIMES for name in names])
    least = (times_N * found.elsewhere).clamp(min=LEAST)
    return (found.z > z) & (found.there > least)


def what_matters(
    change_HBT: Tensor,
    tokens_BT: Tensor,
    labels: Sequence[str],
    hard_BT: Tensor | None = None,
    known_BT: Tensor | None = None,
) -> list[list[Matters]]:
    """Return for each head the kinds of answers at which ablating it costs most: found on the first
    half of the sequences, and confirmed and measured on the second half. First comes the kind with
    the largest part of the whole cost or, in a task, what the context determines.

    Args:
        change_HBT: the loss change of each answer.
        tokens_BT, labels, hard_BT, known_BT: see `kinds_of_answers`.
    """
    kinds = kinds_of_answers(tokens_BT, labels, hard_BT, known_BT)
    if not kinds.names:
        return [[] for _ in change_HBT]
    H, half, N = len(change_HBT), change_HBT.size(1) // 2, len(kinds.names)
    return [
        _matters_of_head(each_BT[None], kinds, half, beyond_chance(H * N), beyond_chance(H))
        for each_BT in change_HBT
    ]


def _matters_of_head(
    change_1BT: Tensor, kinds: Kinds, half: int, z_found: float, z_confirmed: float
) -> list[Matters]:
    jobs, at_NBT = list[Matters](), kinds.at_NBT
    left_N = torch.ones(len(at_NBT), dtype=torch.bool)
    while len(jobs) < JOBS:
        found = contrast(change_1BT[:, :half], at_NBT[:, :half])
        fits_N = specific(found, z_found, kinds.names)[0] & left_N
        if not fits_N.any():
            break
        excess_N = ((found.there - found.elsewhere)[0] * found.answers_N).where(fits_N, -1)
        known = kinds.names.index(KNOWN) if KNOWN in kinds.names else None
        chosen = [int(excess_N.argmax()) if known is None or not fits_N[known] else known]
        if kinds.are_tokens[chosen[0]]:
            order = excess_N.where(kinds.are_tokens, -1).argsort(descending=True)
            chosen = [int(i) for i in order[:TOKENS] if fits_N[i] and kinds.are_tokens[i]]
        at_BT = at_NBT[chosen].any(0)
        again = contrast(change_1BT[:, half:], at_BT[None, half:])
        names = [kinds.names[i] for i in chosen]
        if specific(again, z_confirmed, names[:1]):
            there, error, elsewhere = (float(each) for each in again[:3])
            are_tokens = bool(kinds.are_tokens[chosen[0]])
            at_first_BT = at_NBT[chosen[0]]
            jobs.append(Matters(names, are_tokens, (there, error), elsewhere, at_first_BT))
        left_N &= kinds.are_tokens != kinds.are_tokens[chosen[0]]
        at_NBT = at_NBT & ~at_BT
    return jobs
