"""The command heads: what each head does, in a line, and what differs between two runs."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pydantic.dataclasses import dataclass

from common.errors import UserError
from configs.config import STRICT
from lens.capture import head_replaced
from lens.jobs import Job, describe_jobs, find_jobs, job_sequences, table_of_jobs
from lens.subject import AtLeastTwo, Checkpoint, Source, Subject, Without
from lens.tables import Table
from model.gpt import GPT

MOST = 6  # heads that are named


@dataclass(frozen=True, config=STRICT)
class Heads:
    """Print what each head attends to, at which answers it matters, and what ablating it costs"""

    without: Without = None
    source: Source = None
    checkpoint: Checkpoint = "best"

    sequences: AtLeastTwo | None = None
    """Number of evenly spaced validation sequences; if omitted 256, or fewer for a large model."""


def heads(names: Sequence[str], options: Heads) -> Iterator[str | Table]:
    """Yield a table with a line for each head, or, of two runs, both tables and what differs.

    Raises:
        UserError: for more than two runs.
    """
    if len(names) > 2:
        raise UserError("heads compares two runs; name one or two")
    found = dict[str, list[Job]]()
    words: Sequence[str | None] = names or [None]
    for name in words:
        subject = Subject(name, options)
        tokens_BT = job_sequences(subject, options.sequences)
        with ablated(subject.model, options.without):
            jobs = find_jobs(subject, subject.model, tokens_BT)
        found[subject.run.name] = jobs
        yield describe_jobs(subject, tokens_BT)
        yield table_of_jobs(jobs)
    if len(found) == 2:
        yield table_of_differences(found)


def table_of_differences(found: dict[str, list[Job]]) -> Table:
    """Return which heads of each run have a job: first the jobs of the first run alone, then those
    of the second run alone, then those of both."""
    has = {run: dict[str, list[str]]() for run in found}
    for run, jobs in found.items():
        for job in jobs:
            for what in job.summary():
                has[run].setdefault(what, []).append(job.name)
    first, second = has.values()
    order = [*sorted(first.keys() - second), *sorted(second.keys() - first)]
    rows: list[list[Any]] = [["job", *found]]
    for what in [*order, *sorted(first.keys() & second)]:
        names = [each.get(what, []) for each in has.values()]
        cells = [" ".join(each) if len(each) <= MOST else f"{len(each)} heads" for each in names]
        rows.append([what, *(cell or "none" for cell in cells)])
    return Table(rows, words=3)


def names_of(model: GPT) -> dict[str, tuple[int, int]]:
    """Return the layer and the index of each head by its name, in order."""
    places = itertools.product(range(model.config.n_layer), range(model.config.n_head))
    return {f"L{layer}H{head}": (layer, head) for layer, head in places}


def find_heads(model: GPT, names: str) -> dict[str, tuple[int, int]]:
    """Return the heads that a list of names, such as L0H1,L1H0, has.

    Raises:
        UserError: for a name that is not a head of the model.
    """
    known, found = names_of(model), names.upper().split(",")
    for name in found:
        if name not in known:
            raise UserError(f"{name} is not a head; name heads from L0H0 to {[*known][-1]}")
    return {name: known[name] for name in found}


@contextmanager
def ablated(model: GPT, names: str | None) -> Iterator[None]:
    """Set the output of these heads to zero inside the `with` block."""
    with ExitStack() as stack:
        for head in find_heads(model, names).values() if names else ():
            stack.enter_context(head_replaced(model, *head, 0.0))
        yield
