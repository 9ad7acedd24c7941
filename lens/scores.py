"""The command scores: scores and ablation of each head, copying, pairs of heads, and the logit
lens."""

from collections.abc import Iterator
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from configs.config import STRICT
from data.tasks.modular import Modular
from lens.composition import composition, induction_from_weights
from lens.heads import ablated, names_of
from lens.measure import (
    REPEATS,
    ablate,
    find_matches,
    logit_lens,
    mean_loss,
    measure_copying,
    score_heads,
    score_match,
    strongest_frequencies,
)  # fmt: skip
from lens.metrics import SINK, uniform_scores
from lens.subject import AtLeastTwo, Checkpoint, Prompt, Sequences, Source, Subject, Without
from lens.tables import Table
from model.gpt import GPT

PAIRS = 12  # number of printed pairs of heads, those that compose most
MOST = 1e12  # FLOPs for induction from weights: ten seconds, on a core


@dataclass(frozen=True, config=STRICT)
class Scores:
    """Print the scores of every head, and the loss change if it is ablated"""

    without: Without = None

    period: AtLeastTwo | None = None
    """Length of the random strings for the copying scores; if omitted, it depends on the run."""

    prompt: Prompt = None
    source: Source = None
    checkpoint: Checkpoint = "best"
    sequences: Sequences = None


def scores(word: str | None, options: Scores) -> Iterator[str | Table]:
    """Yield the tables."""
    subject = Subject(word, options)
    sequences_BT = subject.sequences(options.sequences)
    with ablated(subject.model, options.without):
        yield from scores_and_ablation(subject, options, sequences_BT)
        if periods_to_copy(subject):
            yield copying(subject)
        yield from pairs_of_heads(subject.model)
        rows: list[list[Any]] = [["logit lens", f"loss, {subject.unit}"]]
        for i, loss in enumerate(logit_lens(subject.model, sequences_BT)):
            rows.append([f"after layer {i - 1}" if i else "embedding", loss])
        yield Table(rows, form=".4f")
        if isinstance(task := subject.batches.task, Modular):
            yield frequencies(subject.model.token_embedding.weight[: task.n])


def scores_and_ablation(
    subject: Subject, options: Scores, sequences_BT: Tensor
) -> Iterator[str | Table]:
    """Yield a row per head, below the row of uniform attention, and what it was measured on."""
    model, period = subject.model, subject.period(options.period)
    text_BT = sequences_BT[:, :-1] if options.prompt is None else subject.prompt_T[None]
    found = score_heads(model, text_BT, repeats=False)
    title = f"scores over {len(text_BT)} x {text_BT.size(1)} tokens"
    title += f" of {subject.text}" if options.prompt is None else " of the prompt"
    if period:
        found |= measure_copying(model, period)[2]
        title += f"; copying over\n{REPEATS} random strings of {period} distinct tokens, "
        title += "each repeated"
    yield title
    if matching := find_matches(subject.batches.task, text_BT):
        found |= score_match(model, *matching)
    uniform = uniform_scores(text_BT.size(1), period, *matching[1:])
    changes, kinds = ablate(model, sequences_BT), ("zero", "mean")
    rows: list[list[Any]] = [
        ["head", *(s.name for s in uniform), *(f"loss change ({kind} ablation)" for kind in kinds)],
        ["uniform", *uniform.values(), None, None],
    ]
    for name, at in names_of(model).items():
        sink = " sink" if found["first_token"][at] > SINK else ""
        cells = [found[score.key][at].item() for score in uniform]
        both = [(changes[kind][at].item(), changes[f"{kind}_error"][at].item()) for kind in kinds]
        rows.append([name + sink, *cells, *both])
    yield Table(rows)
    loss, measured = mean_loss(model, sequences_BT), subject.describe(sequences_BT)
    yield f"loss {loss:.4f} {subject.unit} on {measured};\nchanges ± standard error"


def copying(subject: Subject) -> Table:
    """Return how well random strings are copied, at several lengths."""
    rows: list[list[Any]] = [
        ["copying", "trained on", "loss, first copy", "second", "ratio", "induction", "best head"],
    ]
    for period in periods_to_copy(subject):
        first, second, scores = measure_copying(subject.model, period)
        induction_LH = scores["induction"]
        trained = "yes" if period in subject.trained_periods else "no"
        name, at = max(names_of(subject.model).items(), key=lambda head: induction_LH[head[1]])
        best = induction_LH[at].item()
        rows.append([f"period {period}", trained, first, second, second / first, best, name])
    return Table(rows)


def periods_to_copy(subject: Subject) -> list[int]:
    """Choose lengths of strings: for a run on repeated strings, inside and outside the range it was
    trained on; for others, the longest that fits, a half and a quarter of it."""
    trained, half = subject.trained_periods, subject.window // 2
    wanted = [half // 4, half // 2, half]
    if trained:
        low, high = trained[0], trained[-1]
        wanted = [low // 2, low, (low + high) // 2, high, high * 5 // 4, high * 3 // 2]
    return sorted({period for period in wanted if 2 <= period <= subject.longest_period})


def frequencies(numbers_nC: Tensor) -> Table:
    """Return the fraction of the power of the numbers' embeddings in the strongest frequencies."""
    random = torch.randn(numbers_nC.shape, generator=torch.Generator().manual_seed(0))
    heading = f"power in the 5 strongest of {len(numbers_nC) // 2} frequencies"
    rows: list[list[Any]] = [["token embedding", heading]]
    for name, embedding in {"random": random, "model": numbers_nC}.items():
        rows.append([name, strongest_frequencies(embedding)])
    return Table(rows)


def pairs_of_heads(model: GPT) -> Iterator[str | Table]:
    """Yield the pairs of heads in different layers with the highest composition scores, and those
    with the most induction from weights."""
    if model.config.n_layer == 1:
        yield "composition and induction from weights: one layer has no earlier head to read from"
        return
    random, V = model.config.n_embd**-0.5, model.token_embedding.num_embeddings
    rows: list[list[Any]] = [["composition", "Q", "K", "V"], ["random", *[random] * 3]]
    composed = sorted(composition(model), key=lambda pair: -max(pair[2].values()))
    for (i, a), (j, b), scores in composed[:PAIRS]:
        rows.append([f"L{i}H{a} -> L{j}H{b}", *scores.values()])
    yield Table(rows)
    if 2 * len(composed) * model.config.head_width * V**2 > MOST:
        yield f"induction from weights: omitted, which is slow for a vocabulary of {V:,}"
        return
    yield (
        "induction from weights: the fraction of tokens whose query in the later head fits best\n"
        "the key into which the earlier head copied the same token; without rotation, QK-norm, MLPs"
    )
    rows = [["induction from weights", "own token"], ["random", 1 / V]]
    pairs = sorted(induction_from_weights(model), key=lambda pair: -pair[2])
    rows += [[f"L{i}H{a} -> L{j}H{b}", share] for (i, a), (j, b), share in pairs[:PAIRS]]
    if others := [share for *_, share in pairs[PAIRS:]]:
        rows.append([f"mean of the other {len(others):,}", sum(others) / len(others)])
    yield Table(rows)
