"""What each head does: at which answers it matters (answers.py), what it attends to (reads.py), and
what ablating it costs.

Nothing is reported that chance does. All is found on the first half of the sequences, and confirmed
and measured on the second.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lens.answers import FEWEST, LEAST, Matters, beyond_chance, what_matters
from lens.measure import ablations, mean_outputs
from lens.ngram_model import read_ngrams
from lens.reads import find_reads
from lens.subject import ENOUGH, Subject
from lens.tables import Table
from lens.targets import Reads
from model.gpt import GPT

NOTHING = "nothing found"
EVERYWHERE = "everywhere"
MOST = 256  # sequences that heads are ablated on
WEIGHED = 64  # of them, whose attention and mean outputs are measured
HARD = 0.9  # of the answers have a lower surprisal for n-grams than those that are hard
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
            there[i] = f"{each.where}: {each.reads}" if each.reads else ""
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
        """Return what the head matters for and attends to, in a few words: of targets that are not
        positions, the one with most weight, anywhere or where the head matters."""
        if not self.matters:
            return self.matters_for[0]
        first, *_ = self.matters
        reads = [each for each in (first.reads, *self.reads) if each]
        reads.sort(key=lambda each: (each.is_position, -each.weight))
        return " ← ".join([first.answers, *(each.target for each in reads[:1])])

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
        text = f"{self.name} {', and '.join(parts) or 'has no target that holds everywhere'}."
        costs = []
        for found in self.matters:
            cost = "{:+.2f} ± {:.2f}".format(*found.there)
            costs.append(f"{cost} nats where the answer is {found.answers}, and ")
            costs[-1] += f"{found.elsewhere:+.2f} elsewhere"
            if found.reads:
                reads = found.reads
                costs[-1] += f" ({found.where}, it gives {reads.weight:.2f} to {reads.target})"
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
    special = special_answers(subject, tokens_BT)
    matters = what_matters(change_HBT, tokens_BT, labels, *special)
    change_HB = change_HBT.mean(-1)
    mean_H, error_H = change_HB.mean(-1), change_HB.std(-1) / B**0.5
    certain_H = (mean_H > beyond_chance(len(mean_H)) * error_H) & (mean_H > LEAST)
    certain_H &= B >= 2 * FEWEST
    reads = find_reads(model, tokens_BT[::every, :-1], labels, matters, every)
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


def describe_jobs(subject: Subject, tokens_BT: Tensor) -> str:
    """Return the lines above the table."""
    half = len(tokens_BT) // 2
    return (
        f"what each head does, on {subject.describe(tokens_BT)}:\nfound on the first {half}, "
        f"confirmed and measured on the others; losses in {subject.unit} ± standard error\n"
        "attends to: mean weight where there is such a key; there, at: where it matters\n"
        "matters for: loss change if the head's output is replaced with its mean; elsewhere"
    )


def table_of_jobs(jobs: Sequence[Job]) -> Table:
    """Return a line for each head."""
    rows = [row for job in jobs for row in job.rows()]
    return Table([HEADING, *rows], words=3, full=[job.facts() for job in jobs])
