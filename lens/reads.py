"""What heads attend to: the targets that explain most of their attention.

Let a be the weight that a head gives to the keys of a target, and p the weight that position alone
would give them, means over the queries that have such keys. The target then explains

    (share of the queries that have such keys) x (a ln(a / p) + (1 - a) ln((1 - a) / (1 - p))) nats

of a query's attention: the relative entropy of the choice between these keys and the others. So of
two targets with the same weight, the one with fewer keys explains more.

Position alone is a head whose weights depend only on the distance, and on whether a key is the
first one of the sequence: the means of this head's own weights. For a target that is itself a
position, such as 1 back, p is the weight of uniform attention.

A target counts if the head attends to it more than untrained heads do: those of models with the
same config, as many as have a hundred heads together, on the same text.
"""

import functools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from common.progress import progress
from lens.answers import FEWEST, Matters, beyond_chance
from lens.capture import capture
from lens.measure import micro_batches, weight_by_distance
from lens.targets import Reads, Target, Targets, find_targets
from model.gpt import GPT

UNTRAINED_HEADS = 100
UNTRAINED = 8  # sequences whose attention is measured in untrained models
AT_LEAST = 0.1  # of a head's weight, beyond what is expected
TIMES = 2  # the weight of a target, at least, compared with what is expected
MOSTLY = 0.75  # of the weight on every ↵, from which the head attends to the last one
STEP = 8  # positions
OFTEN = 0.05  # of the queries
MOST = 0.5  # of the queries at which a head matters


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

    def shares(self) -> Tensor:
        """Return the share of the queries that have such keys, (L, H, N)."""
        return self.count_LHBN.sum(2) / self.queries_LHB.sum(2).clamp(min=1)[..., None]

    def explained(self) -> Tensor:
        """Return the nats that each target explains of each head's attention at a query that has
        such keys, (L, H, N)."""
        a_LHN, p_LHN = self.means()
        others_LHN = (1 - a_LHN) * ((1 - a_LHN) / (1 - p_LHN)).log()
        return a_LHN * (a_LHN / p_LHN).log() + others_LHN


def find_reads(
    model: GPT, tokens_BT: Tensor, labels: Sequence[str], matters: list[list[Matters]], every: int
) -> list[list[Reads]]:
    """Return what each head attends to, and add to `matters` what it attends to there.

    Args:
        tokens_BT: sequences of up to block_size tokens: every such one of those with the answers,
            such as every third.
    """
    targets = find_targets(tokens_BT, labels)
    most = max(map(len, matters))
    places = [answers_of(model, matters, place, tokens_BT, every) for place in range(most)]
    anywhere, *there = weigh(model, tokens_BT, targets, [None, *places])
    for place, weights in enumerate(there):
        add_reads_there(targets, weights, anywhere, matters, place)
    return reads_anywhere(model, tokens_BT, targets, anywhere)


def answers_of(
    model: GPT, matters: list[list[Matters]], place: int, tokens_BT: Tensor, every: int
) -> Tensor:
    """Return the first answers of the kind that is at a place in the list of each head,
    (L, H, B, T).

    Args:
        tokens_BT, every: see `find_reads`.
    """
    at_HBT = torch.zeros(len(matters), *tokens_BT.shape)
    for head, found in enumerate(matters):
        if len(found) > place:
            at_HBT[head] = found[place].at_BT[::every]
    return at_HBT.unflatten(0, (model.config.n_layer, model.config.n_head))


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


def reads_anywhere(
    model: GPT, tokens_BT: Tensor, targets: Targets, weights: Weights
) -> list[list[Reads]]:
    """Return what each head attends to.

    Args:
        tokens_BT: the sequences of the targets, of up to block_size tokens.
        weights: of all heads, at all queries.
    """
    half = len(tokens_BT) // 2
    first, second = halves(weights)
    found = [list[Reads]() for _ in range(model.config.n_layer * model.config.n_head)]
    if half < FEWEST // 2:
        return found
    some = slice(0, half, -(-half // UNTRAINED))
    mean_N, spread_N = untrained(model, tokens_BT[some], targets.part(some))
    a_LHN, p_LHN = first.means()
    certain_LHN = (a_LHN / p_LHN).log() - mean_N > beyond_chance(len(targets.names)) * spread_N
    fits_LHN = fitting(targets, first, second) & certain_LHN
    nats_HN = (first.shares() * first.explained()).where(fits_LHN, 0).flatten(0, 1)
    a_HN, p_HN = (each.flatten(0, 1) for each in second.means())
    is_position_N = torch.tensor([target.is_position for target in targets.names])
    by_distance = functools.cache(partial(weight_by_distance, model, tokens_BT[half:]))
    for head, nats_N in enumerate(nats_HN):
        best = {int(nats_N.where(each_N, 0).argmax()) for each_N in (is_position_N, ~is_position_N)}
        for n in sorted(best, key=lambda n: -float(nats_N[n])):
            if nats_N[n] > 0:
                target, weight = targets.names[n], float(a_HN[head, n])
                name, expected = target.name, float(p_HN[head, n])
                if target.token is not None:
                    weight_LHT, count_T = by_distance(target.token)
                    of_head = weight_LHT.flatten(0, 1)[head], count_T
                    name = name_with_reach(target, of_head, weight)
                found[head].append(Reads(name, target.group, weight, expected, target.is_position))
    return found


def add_reads_there(
    targets: Targets,
    there: Weights,
    anywhere: Weights,
    matters: list[list[Matters]],
    place: int,
) -> None:
    """Add what each head attends to where it matters, if it does so there twice as much as
    anywhere, and as position alone would, and if most of these queries have such a key.

    Args:
        there: the weights at the answers that are at this place in the list of each head.
    """
    first, second = halves(there)
    fits_LHN = fitting(targets, first, second)
    fits_LHN &= second.shares() > MOST
    fits_LHN &= ~torch.tensor([target.is_position for target in targets.names])
    fits_LHN &= second.means()[0] > TIMES * halves(anywhere)[1].means()[0]
    nats_HN = first.explained().where(fits_LHN, 0).flatten(0, 1)
    a_HN, p_HN = (each.flatten(0, 1) for each in second.means())
    for head, nats_N in enumerate(nats_HN):
        n = int(nats_N.argmax())
        if len(matters[head]) > place and nats_N[n] > 0:
            target, both = targets.names[n], (float(a_HN[head, n]), float(p_HN[head, n]))
            reads = Reads(target.name, target.group, *both, False)
            matters[head][place] = matters[head][place]._replace(reads=reads)


def fitting(targets: Targets, first: Weights, second: Weights) -> Tensor:
    """Return which targets have enough weight in each head, on both halves, (L, H, N). Every
    occurrence of a token has not if the last one has most of the weight."""
    (a_LHN, p_LHN), (b_LHN, q_LHN) = first.means(), second.means()
    fits_LHN = (a_LHN > TIMES * p_LHN) & (a_LHN - p_LHN > AT_LEAST)
    fits_LHN &= (b_LHN > TIMES * q_LHN) & (b_LHN - q_LHN > AT_LEAST)
    last = {each.group: n for n, each in enumerate(targets.names) if each.token is not None}
    for n, each in enumerate(targets.names):
        if each.name == f"every {each.group}":
            fits_LHN[..., n] &= a_LHN[..., last[each.group]] < MOSTLY * a_LHN[..., n]
    return fits_LHN


def halves(weights: Weights) -> tuple[Weights, Weights]:
    """Return the weights in the first half of the sequences, and in the second."""
    half = weights.queries_LHB.size(-1) // 2
    return weights.part(slice(0, half)), weights.part(slice(half, None))


def untrained(model: GPT, tokens_BT: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation over untrained heads of ln(a / p), (N,)."""
    config, V = model.config, model.token_embedding.num_embeddings
    copies, ratios = -(-UNTRAINED_HEADS // (config.n_layer * config.n_head)), []
    for seed in progress(range(copies), "measuring untrained heads"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            (weights,) = weigh(GPT(config, V).eval(), tokens_BT, targets)
        a_LHN, p_LHN = weights.means()
        ratios.append((a_LHN / p_LHN).log().flatten(0, 1))
    ratio_HN = torch.cat(ratios)
    return ratio_HN.mean(0), ratio_HN.std(0).clamp(min=1e-3)


def name_with_reach(target: Target, of_head: tuple[Tensor, Tensor], weight: float) -> str:
    """Return the name of the last occurrence of a token, with the distance up to which a head
    attends to it, if it is often further back.

    Args:
        of_head: the head's weight on it at each distance, and the number of queries, (T,) each.
        weight: the mean weight.
    """
    weight_T, count_T = of_head
    total_T, far = weight_T * count_T, 0
    for start in range(0, len(count_T), STEP):
        part = slice(start, start + STEP)
        if total_T[part].sum() > weight / 2 * count_T[part].sum():
            far = start + STEP
    often = count_T[far:].sum() > OFTEN * count_T.sum()
    return f"{target.name}, up to {far} back" if far and often else target.name
