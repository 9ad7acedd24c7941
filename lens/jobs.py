"""What each head does: what it attends to (targets.py), at which answers it matters (answers.py),
and what ablating it costs.

Nothing is reported that chance does. A target counts if the head attends to it more than untrained
heads do: those of models with the same config, as many as have a hundred heads together, on the
same text. All is found on the first half of the sequences, and confirmed and measured on the
second.
"""

import functools
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common.progress import progress
from lens.answers import FEWEST, JOBS, LEAST, Matters, beyond_chance, kinds_of_answers, what_matters
from lens.measure import ablations, mean_outputs, weight_by_distance
from lens.ngram_model import read_ngrams
from lens.subject import ENOUGH, Subject
from lens.tables import Table
from lens.targets import Reads, Target, Targets, Weights, find_targets, weigh
from model.gpt import GPT

NOTHING = "nothing found"
EVERYWHERE = "everywhere"
MOST = 256  # sequences that heads are ablated on
WEIGHED = 64  # of them, whose attention and mean outputs are measured
UNTRAINED_HEADS = 100
UNTRAINED = 8  # sequences whose attention is measured in untrained models
AT_LEAST = 0.1  # of a head's weight, beyond what is expected
TIMES = 2  # the weight of a target, at least, compared with what is expected
MOSTLY = 0.75  # of the weight on every ↵, from which the head attends to the last one
HARD = 0.9  # of the answers have a lower surprisal for n-grams than those that are hard
STEP = 8  # positions
OFTEN = 0.05  # of the queries
HEADING = ["head", "attends to", "matters for (loss change; elsewhere)", "loss if ablated"]


class Job(NamedTuple):
    """What a head does."""

    name: str
    reads: list[Reads]
    """First the target that explains most; at most one that is a position, and one that is not."""
    matters: list[Matters]
    loss_change: tuple[float, float]
    """If the head's output is replaced with its mean, and the standard error over sequences."""
    is_certain: bool
    """Whether the loss change is not chance."""

    @property
    def matters_for(self) -> list[str]:
        found = [
            f"{each.answers} ({each.there[0]:+.2f} ± {each.there[1]:.2f}; {each.elsewhere:+.2f})"
            for each in self.matters
        ]
        return found or [EVERYWHERE if self.is_certain else NOTHING]

    def rows(self) -> list[list[Any]]:
        """Return the lines of a table. What the head attends to at the first kind of answers is
        in the next line, and at the second in the line of those answers."""
        attends, there = [*map(str, self.reads)] or [NOTHING], ["", ""]
        for i, each in enumerate(self.matters):
            there[i] = f"there: {each.reads}" if each.reads else ""
        lines = [(attends[0], self.matters_for[0]), (there[0], "")]
        lines += [(there[i], self.matters_for[i]) for i in range(1, len(self.matters))]
        lines += [(each, "") for each in attends[1:]]
        filled = [line for line in lines if any(line)]
        return [
            [self.name, *line, self.loss_change] if i == 0 else ["", *line, None]
            for i, line in enumerate(filled)
        ]

    def facts(self) -> dict[str, Any]:
        """Return what `rows` prints, with all digits."""
        return {
            "head": self.name,
            "attends to": [each._asdict() for each in self.reads],
            "matters for": [
                {
                    "answers": each.names,
                    "loss change": each.there,
                    "elsewhere": each.elsewhere,
                    "there": each.reads and each.reads._asdict(),
                }
                for each in self.matters
            ],
            "loss if ablated": self.loss_change,
        }

    @property
    def groups(self) -> list[str]:
        """What the head attends to, anywhere or where it matters, without the numbers."""
        return [each.group for each in (*self.reads, *(m.reads for m in self.matters)) if each]

    def line(self) -> str:
        """Return what the head matters for and attends to, in a few words."""
        if not self.matters:
            return self.matters_for[0]
        first, *_ = self.matters
        reads = [first.reads, *sorted(self.reads, key=lambda each: each.is_position)]
        return " ← ".join([first.answers, *(each.target for each in reads if each)][:2])

    def summary(self) -> list[str]:
        """Return what the head attends to and matters for, without the numbers."""
        return [
            *(f"attends to {group}" for group in dict.fromkeys(self.groups)),
            *(f"matters for {name}" for each in self.matters for name in each.names),
        ]

    @property
    def tokens(self) -> list[str]:
        """The answers that the head matters for, of those that are tokens."""
        return [name for each in self.matters if each.are_tokens for name in each.names]

    def sentence(self) -> str:
        """Return the job and its evidence in words."""
        parts = []
        for each in self.reads:
            by = "uniform attention" if each.is_position else "position alone"
            parts.append(
                f"gives {each.weight:.2f} of its weight to {each.target}, where {by} would give "
                f"{each.expected:.2f}"
            )
        text = f"{self.name} {', and '.join(parts) or 'attends to nothing that was found'}."
        costs = []
        for found in self.matters:
            cost = "{:+.2f} ± {:.2f}".format(*found.there)
            costs.append(f"{cost} nats where the answer is {found.answers}, and ")
            costs[-1] += f"{found.elsewhere:+.2f} elsewhere"
            if found.reads:
                costs[-1] += f" (there, it gives {found.reads.weight:.2f} to {found.reads.target})"
        whole = "{:+.3f} ± {:.3f} nats over all answers".format(*self.loss_change)
        return f"{text} Replacing its output with its mean costs {'; '.join([whole, *costs])}."


def job_sequences(subject: Subject, count: int | None) -> Tensor:
    """Choose the sequences to find jobs in: `count`, or as many as `ENOUGH` allows."""
    if count is None:
        config = subject.config.model
        passes = config.n_layer * config.n_head / 2 + 1  # layers before the head's are not repeated
        flops = 2 * passes * subject.window * subject.model.num_parameters()
        count = max(2, min(MOST, int(ENOUGH / flops)))
    return subject.sequences(count)


def find_jobs(subject: Subject, model: GPT, tokens_BT: Tensor) -> list[Job]:
    """Measure what each head does.

    Args:
        model: the subject's, or that of a snapshot.
        tokens_BT: sequences of up to block_size + 1 tokens, from `job_sequences`.
    """
    labels, B = subject.tokenizer.labels, len(tokens_BT)
    every = -(-B // WEIGHED)
    mean_LHD = mean_outputs(model, tokens_BT[::every])
    change_HBT = ablations(model, tokens_BT, mean_LHD, "ablating each head").flatten(0, 1)
    kinds = kinds_of_answers(tokens_BT, labels, *special_answers(subject, tokens_BT))
    matters = what_matters(change_HBT, kinds)
    change_HB = change_HBT.mean(-1)
    mean_H, error_H = change_HB.mean(-1), change_HB.std(-1) / B**0.5
    certain_H = (mean_H > beyond_chance(len(mean_H)) * error_H) & (mean_H > LEAST)
    certain_H &= B >= 2 * FEWEST
    weighed_BT = tokens_BT[::every, :-1]
    targets = find_targets(weighed_BT, labels)
    places = [answers_of(model, matters, place, weighed_BT, every) for place in range(JOBS)]
    weights, *there = weigh(model, weighed_BT, targets, [None, *places])
    reads = find_reads(model, weighed_BT, targets, weights)
    for place, of_place in enumerate(there):
        add_reads_there(targets, of_place, weights, matters, place)
    names = itertools.product(range(model.config.n_layer), range(model.config.n_head))
    return [
        Job(f"L{i}H{h}", reads[n], matters[n], (float(mean), float(error)), bool(certain))
        for n, ((i, h), mean, error, certain) in enumerate(
            zip(names, mean_H, error_H, certain_H, strict=True)
        )
    ]


def special_answers(subject: Subject, tokens_BT: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return which answers n-grams find hard, of a text, and which answers their context
    determines, of a task."""
    if task := subject.batches.task:
        known_BT = torch.from_numpy(task.answers(tokens_BT.numpy()))
        return None, known_BT[:, 1:]
    nats_BT = torch.from_numpy(read_ngrams(subject.batches, len(tokens_BT))[0])
    return nats_BT > nats_BT.flatten().sort().values[int(HARD * nats_BT.numel())], None


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


def answers_of(
    model: GPT, matters: list[list[Matters]], place: int, tokens_BT: Tensor, every: int
) -> Tensor:
    """Return the answers of the kind that is at a place in the list of each head, (L, H, B, T).

    Args:
        tokens_BT: every such sequence of those with the answers, such as every third.
    """
    at_HBT = torch.zeros(len(matters), *tokens_BT.shape)
    for head, found in enumerate(matters):
        if len(found) > place:
            at_HBT[head] = found[place].at_BT[::every]
    return at_HBT.unflatten(0, (model.config.n_layer, model.config.n_head))


def find_reads(
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
    nats_HN = first.explained().where(fits_LHN, 0).flatten(0, 1)
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
    anywhere, and as position alone would.

    Args:
        there: the weights at the answers that are at this place in the list of each head.
    """
    first, second = halves(there)
    fits_LHN = fitting(targets, first, second)
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


def describe_jobs(subject: Subject, tokens_BT: Tensor) -> str:
    """Return the lines above the table."""
    half = len(tokens_BT) // 2
    return (
        f"what each head does, on {subject.describe(tokens_BT)}:\nfound on the first {half}, "
        f"confirmed and measured on the others; losses in {subject.unit} ± standard error\n"
        "attends to: mean weight; there: where it matters\n"
        "matters for: loss change if the head's output is replaced with its mean; elsewhere"
    )


def table_of_jobs(jobs: Sequence[Job]) -> Table:
    """Return a line for each head."""
    rows = [row for job in jobs for row in job.rows()]
    return Table([HEADING, *rows], words=3, full=[job.facts() for job in jobs])
