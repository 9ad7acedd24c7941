"""Train each task and its control with several seeds, and count the seeds that show the result.

python -m benchmarks.zoo                  all of them, 15 minutes on two cores
python -m benchmarks.zoo markov           those whose config has this in its name

Each run is `python train.py` on one thread; as many run at a time as there are cores. See
docs/tasks.md for what the columns mean.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from common.errors import command
from common.fields import STRICT, Count
from data.batches import TaskBatches
from lens.capture import capture
from lens.heads import names_of
from lens.measure import measure_copying, score_heads
from lens.subject import Subject, SubjectOptions
from run.log import read_metrics
from training.processes import Processes
from training.step import evaluate


@dataclass(frozen=True, config=STRICT)
class Options:
    """Watch every task"""

    seeds: Count = 5
    """Number of runs of each config, from seed 1337. Those that take longer than 20 seconds have
    three at most."""


LONG = ("addition", "brackets", "induction", "modular")
# By config: what a run shows, and how it is recognized among the numbers of `describe`.
RESULTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "induction": ("copies: loss ratio below 0.3", lambda run: run["ratio"] < 0.3),
    "induction_one_layer": ("does not: above 0.5", lambda run: run["ratio"] > 0.5),
    "tasks/sink": (
        "97% right; match 0.8, first token 0.5",
        lambda run: run["right"] >= 0.97 and run["match"] >= 0.8 and run["first_token"] >= 0.5,
    ),
    "tasks/sink_rotary": (
        "97% right; first token below 0.5",
        lambda run: run["right"] >= 0.97 and run["first_token"] < 0.5,
    ),
    "tasks/markov": (
        "uniform, unigram, bigram within 0.01",
        lambda run: run["stages"] == "uniform unigram bigram" and run["above"] < 0.01,
    ),
    "tasks/markov_one_layer": (
        "stays at unigram",
        lambda run: run["stages"] == "uniform unigram",
    ),
    "tasks/modular": (
        "95% right, after a gap of 80%",
        lambda run: run["right"] >= 0.95 and run["gap"] >= 0.8,
    ),
    "tasks/modular_no_decay": ("gap of 80% remains", lambda run: run["last_gap"] >= 0.8),
    "tasks/flipflop": (
        "98% right; below 98% if 98% ignored",
        lambda run: run["right"] >= 0.98 and run["ignored_98%"] < 0.98,
    ),
    "tasks/flipflop_one_layer": ("below 90% right", lambda run: run["right"] < 0.9),
    "tasks/brackets": ("99% right", lambda run: run["right"] >= 0.99),
    "tasks/brackets_one_layer": ("below 98% right", lambda run: run["right"] < 0.98),
    "tasks/addition": ("98% right", lambda run: run["right"] >= 0.98),
    "tasks/addition_lowest": ("below 50% right", lambda run: run["right"] < 0.5),
    "tasks/addition_carry": ("98% right", lambda run: run["right"] >= 0.98),
    "tasks/recall": ("98% right", lambda run: run["right"] >= 0.98),
    "tasks/recall_no_bigrams": ("below 50% right", lambda run: run["right"] < 0.5),
}


def describe(run: Path) -> frame.Row:
    """Measure a run: what its config's result is recognized by."""
    subject = Subject(str(run), SubjectOptions(checkpoint="last"))
    batches, model = subject.batches(subject.window), subject.model
    assert isinstance(batches, TaskBatches)
    tokens_BT = torch.cat([*batches.validation_batches(64)])[:64, :-1]
    evaluations = [line for line in read_metrics(run) if "val_loss" in line]
    *_, last = evaluations
    match_LH = score_heads(model, tokens_BT, batches.task)["match"]
    head, at = max(names_of(model).items(), key=lambda head: match_LH[head[1]])
    found = {"right": last.get("accuracy"), "match": match_LH[at].item(), "head": head}
    return found
