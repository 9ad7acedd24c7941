"""Train each task and its control with several seeds, and count in how many the result appears.

python -m benchmarks.zoo                  all of them, 20 minutes on two cores
python -m benchmarks.zoo markov           the configs that have this in their name

Each run is `python train.py` on one thread, and there are as many at a time as cores. The result
that a seed has to show is in RESULTS; docs/tasks.md explains the numbers.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from common.errors import command
from configs.config import STRICT, Count, Natural
from data.batches import task_batches
from data.tasks.flipflop import FlipFlop
from data.tasks.markov import Markov
from data.tasks.maximum import Maximum
from data.tasks.modular import Modular
from data.tasks.sink import Sink
from lens.capture import blocks_of, capture
from lens.heads import names_of
from lens.measure import (
    find_matches,
    measure_copying,
    score_heads,
    score_match,
    strongest_frequencies,
)
from lens.metrics import MATCH
from lens.subject import MeasureOptions, Subject
from model.gpt import GPT
from training.evaluate import evaluate
from training.folder import read_metrics
from training.machine import Processes

LONG = "addition brackets induction modular"  # 20 seconds or more: at most three seeds
Test = Callable[[frame.Row], bool]
RESULTS: dict[str, tuple[str, Test]] = {
    "induction": ("loss of the second copy below 0.3 of the first", lambda r: r["ratio"] < 0.3),
    "induction_one_layer": ("above 0.5 of it", lambda r: r["ratio"] > 0.5),
    "sink": (
        "97% right; weight on the match 0.8, on the first token 0.5",
        lambda r: r["right"] >= 0.97 and r["match"] >= 0.8 and r["first"] >= 0.5,
    ),
    "sink_rotary": (
        "97% right; on the first token below 0.5",
        lambda r: r["right"] >= 0.97 and r["first"] < 0.5,
    ),
    "markov": (
        "at uniform, unigram, then within 0.01 of bigram",
        lambda r: len(r["stages"].split(", ")) == 3 and abs(r["above"]) < 0.01,
    ),
    "markov_one_layer": ("not nearest to bigram", lambda r: "bigram" not in r["stages"]),
    "modular": (
        "95% right after a gap of 80%",
        lambda r: r["right"] >= 0.95 and r["gap"] >= 0.8,
    ),
    "modular_no_decay": (
        "below 20% right, gap of 80%",
        lambda r: r["right"] < 0.2 and r["gap"] >= 0.8,
    ),
    "flipflop": (
        "98% right; below 98% if 98% are ignored",
        lambda r: r["right"] >= 0.98 and r["rare"] < 0.98,
    ),
    "flipflop_one_layer": ("below 98% right", lambda r: r["right"] < 0.98),
    "brackets": ("99% right", lambda r: r["right"] >= 0.99),
    "brackets_one_layer": ("below 98% right", lambda r: r["right"] < 0.98),
    "addition": ("98% right", lambda r: r["right"] >= 0.98),
    "addition_lowest": ("below 50% right", lambda r: r["right"] < 0.5),
    "addition_carry": ("98% right", lambda r: r["right"] >= 0.98),
    "recall": ("98% right", lambda r: r["right"] >= 0.98),
    "recall_no_bigrams": ("below 50% right", lambda r: r["right"] < 0.5),
    "wrap": ("99% right", lambda r: r["right"] >= 0.99),
    "wrap_one_layer_none": ("below 98% right", lambda r: r["right"] < 0.98),
    "maximum": (
        "99% right; the score of = rises at each step, all numbers are copied",
        lambda r: r["right"] >= 0.99 and r["rises"] == r["copied"] == 1,
    ),
    "maximum_window": ("below 65% right", lambda r: r["right"] < 0.65),
    "stories": ("99% right", lambda r: r["right"] >= 0.99),
    "stories_window": ("below 60% right", lambda r: r["right"] < 0.6),
}


@dataclass(frozen=True, config=STRICT)
class Options:
    """Seeds"""

    seeds: Count = 5
    """Number of runs of each config; of a long one, at most 3."""

    first_seed: Natural = 1337
    """The seed of the first run; the others have the next ones."""


def describe(run: Path) -> frame.Row:
    """Measure a run and its last weights: all that RESULTS needs."""
    subject = Subject(str(run), MeasureOptions(checkpoint="last"))
    batches, model, metrics = subject.batches, subject.model, read_metrics(run)
    sequences_BT = torch.cat([*batches.split("validation", 64)])[:64, :-1]
    task, matching = batches.task, find_matches(batches.task, sequences_BT)
    weight_LH = score_match(model, *matching)[MATCH.key]
    head, at = max(names_of(model).items(), key=lambda item: weight_LH[item[1]].item())
    evaluations = [line for line in metrics if "val_loss" in line]
    uniform = MATCH.uniform(sequences_BT.size(1), matching[1])
    found: frame.Row = {"head": head, "match": weight_LH[at].item(), "uniform": uniform}
    if "accuracy" in evaluations[-1]:
        found["right"] = evaluations[-1]["accuracy"]
    if subject.trained_periods:
        first, second, _ = measure_copying(model, subject.period() or 2)
        found["ratio"] = second / first
    if isinstance(task, Sink):
        (layer,) = capture(model, sequences_BT).layers
        norms_BT = layer.v_BHSD.norm(dim=-1)[:, 0]
        found["first"] = score_heads(model, sequences_BT, repeats=False)["first_token"].item()
        found["norm"] = (norms_BT[:, 0].mean() / norms_BT[:, 1:].mean()).item()
    if isinstance(task, Markov):
        baselines, *_ = (line["baselines"] for line in metrics if "baselines" in line)
        near = [
            min(baselines, key=lambda b: abs(baselines[b] - e["val_loss"])) for e in evaluations
        ]
        found["stages"] = ", ".join(dict.fromkeys(near))
        found["above"] = evaluations[-1]["val_loss"] - min(baselines.values())
    if isinstance(task, Modular):
        found["gap"] = max(e["train_accuracy"] - e["accuracy"] for e in evaluations)
        found["power"] = strongest_frequencies(model.token_embedding.weight[: task.n])
    if isinstance(task, Maximum):
        found |= read_maximum(model)
    if isinstance(task, FlipFlop):
        other = task_batches(replace(subject.config.data, task_ignored=0.98), batches.block_size, 0)
        result = evaluate(model, other.split("validation", 64), other, Processes())
        found["rare"] = result.accuracy if result else None
    return found


@torch.no_grad()
def read_maximum(model: GPT) -> frame.Row:
    """Read one layer of one head, without norms and positions, from its weights.

    Returns:
        Four fractions. Of the steps from a number to the next, those at which the score of = rises.
        Of the numbers, those whose own logit the head raises most; those that attend most to
        themselves; and those whose own logit the embedding alone lowers most.
    """
    embedding_VC, attn = model.token_embedding.weight, blocks_of(model)[0].attn
    q_VC, k_VC, v_VC = (layer(embedding_VC) for layer in (attn.query, attn.key, attn.value))
    scores_VV, copied_VV = (q_VC @ k_VC.T)[:, :-1], model.unembed(attn.out(v_VC))[:-1]
    own_V = torch.arange(len(copied_VV))
    found = {
        "rises": scores_VV[-1].diff() > 0,
        "copied": copied_VV.argmax(1) == own_V,
        "to_itself": scores_VV[:-1].argmax(1) == own_V,
        "not_again": model.unembed(embedding_VC)[:-1].argmin(1) == own_V,
    }
    return {name: each.double().mean().item() for name, each in found.items()}


@command
def main(argv: list[str]) -> int:
    """Train, measure, and report."""
    options, name, _ = frame.read_options(Options, argv, "[NAME]")
    configs = frame.containing(name, RESULTS)
    torch.set_num_threads(1)
    jobs, rows = dict[str, list[Future[frame.Row]]](), []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for config in configs:
            is_long = any(part in config for part in LONG.split())
            file = str(frame.ROOT / "configs/tasks" / f"{config}.yaml")
            count = min(options.seeds, 3) if is_long else options.seeds
            for seed in range(options.first_seed, options.first_seed + count):
                job = partial(frame.train, file, ["--train.threads=1"], iter([seed]), describe)
                jobs.setdefault(config, []).append(pool.submit(job))
        for config, runs in jobs.items():
            found = [run.result() for run in runs]
            print(f"{config}: {found}", file=sys.stderr)
            result, shows = RESULTS[config]
            rows.append(frame.collect({"config": config, "result": result}, found, shows))
    frame.report("zoo", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
