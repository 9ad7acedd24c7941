"""What growth costs and brings: processes, context, width, batch.

python -m benchmarks.scaling
python -m benchmarks.scaling --only context          one table of them

Growing rows change one thing of the default model; a step has the same number of tokens as the
context grows. Memory is what training took beside what PyTorch had taken before.
"""

import multiprocessing
import os
import socket
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.common import (
    describe,
    in_fresh_process,
    machine,
    median_and_spread,
    peak_memory,
    print_json,
    seconds_of,
)
from benchmarks.throughput import VOCAB, make_step
from common.errors import UserError, command
from common.fields import Checked, Count, NonNegative
from common.tables import print_table
from configs.load import Config, build, read_command_line
from model.config import ModelConfig
from training.config import TrainConfig
from training.processes import join_processes
from training.runtime import pick_device, start_runtime
from training.size import flops_per_token, training_bytes

Shape = tuple[ModelConfig, TrainConfig]


@dataclass(frozen=True)
class Options(Checked):
    """What to measure"""

    processes: Count = 2
    """On up to so many; each has its shard of every batch."""

    repetitions: Count = 3
    """Fresh processes for each row."""

    seconds: NonNegative = 2.0
    """Time for which each trains, at least three updates, after one that is not timed."""

    only: str = ""
    """Measure the tables whose name contains this: processes, context, width, batch."""


@dataclass(frozen=True)
class Measured:
    """Of one process."""

    seconds: float
    """Of a step, the median."""

    megabytes: float
    """That training took, at most."""


def train_a_while(
    model: ModelConfig, settings: TrainConfig, at_least: float, rank: int, size: int, port: int
) -> Measured:
    """Train for some seconds on random tokens, as one of so many processes."""
    if size > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    runtime = start_runtime(settings)
    with ExitStack() as held:
        processes = join_processes(settings, runtime.device, held)
        before = peak_memory(runtime.device)
        step = make_step(model, settings, runtime, processes)
        (once,) = seconds_of(step, runtime.device, 1)
        steps = processes.all_reduce_max(max(3, round(at_least / once)))  # the same number for all
        seconds = statistics.median(seconds_of(step, runtime.device, steps))
        # What averages gradients goes before the group that it meets in: to be the last that holds
        # the group, and so to take it down, can hang for ever (seen with PyTorch 2.13 and gloo).
        del step
        return Measured(seconds, peak_memory(runtime.device) - before)


def measure(shape: Shape, at_least: float, size: int = 1) -> Measured:
    """The first of so many fresh processes that train together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(size, mp_context=context) as pool:
        work = [
            pool.submit(train_a_while, *shape, at_least, rank, size, port) for rank in range(size)
        ]
        return next(future.result() for future in work)


def grown() -> dict[str, dict[int, Shape]]:
    """By what grows: its values, and the shape with each."""
    default = Config()
    model, train = default.model, default.train
    tokens = model.block_size * train.batch_size
    return {
        "context": {
            T: (replace(model, block_size=T), replace(train, batch_size=tokens // T))
            for T in (128, 256, 512, 1024, 2048)
        },
        "width": {C: (replace(model, n_embd=C), train) for C in (64, 128, 256, 512)},
        "batch": {B: (model, replace(train, batch_size=B)) for B in (4, 16, 64)},
    }


def measure_growth(name: str, shapes: dict[int, Shape], options: Options) -> list[dict[str, Any]]:
    """One table: cost and memory for both kinds of attention."""
    heading = [name, "batch", "attention", "ms a step", "tokens/s", "GFLOP/s", "MB", "by formula"]
    rows, results = [heading], list[dict[str, Any]]()
    for value, (model, train) in shapes.items():
        for attention in ("fused", "explicit"):
            shape = replace(model, attention=attention), train
            found = [measure(shape, options.seconds) for _ in range(options.repetitions)]
            seconds = statistics.median(m.seconds for m in found)
            tokens = model.block_size * train.batch_size
            result = {
                name: value,
                "attention": attention,
                "seconds": [m.seconds for m in found],
                "tokens_per_second": tokens / seconds,
                "gflops": tokens * flops_per_token(model, VOCAB) / seconds / 1e9,
                "megabytes": max(m.megabytes for m in found),
                "megabytes_by_formula": training_bytes(*shape, VOCAB) / 1e6,
            }
            row = [f"{value:,}", f"{train.batch_size} x {model.block_size}", attention]
            row.append(median_and_spread([1e3 * m.seconds for m in found], 1))
            rows.append(row + [f"{number:,.0f}" for number in list(result.values())[3:]])
            results.append(result)
    print_table(rows, words=3)
    return results


def measure_processes(options: Options) -> list[dict[str, Any]]:
    """One table: the default config on one process and on more, of one thread each on a CPU."""
    default = Config()
    shape = default.model, replace(default.train, threads=1)
    tokens = shape[0].block_size * shape[1].batch_size
    heading = ["processes", "shard of a batch", "ms a step", "tokens/s", "of ideal", "MB each"]
    rows, results = [heading], list[dict[str, Any]]()
    most = torch.cuda.device_count() or options.processes  # each needs a GPU where there are some
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= min(most, options.processes)]
    for size in sizes:
        found = [measure(shape, options.seconds, size) for _ in range(options.repetitions)]
        seconds = [m.seconds for m in found]
        speed = tokens / statistics.median(seconds)
        alone = results[0]["tokens_per_second"] if results else speed
        efficiency = speed / size / alone
        megabytes = max(m.megabytes for m in found)
        results.append(
            {
                "processes": size,
                "seconds": seconds,
                "tokens_per_second": speed,
                "efficiency": efficiency,
                "megabytes": megabytes,
            }
        )
        rows.append(
            [
                str(size),
                f"{shape[1].batch_size // size} x {shape[0].block_size}",
                median_and_spread([1e3 * s for s in seconds], 1),
                f"{speed:,.0f}",
                f"{efficiency:.0%}",
                f"{megabytes:,.0f}",
            ]
        )
    print_table(rows, words=2)
    return results


@command
def main(argv: list[str]) -> int:
    """Measure each table and print it."""
    usage = "python -m benchmarks.scaling [--flag VALUE ...]"
    _, values = read_command_line(
        {"": Options}, argv, usage, "Measure what growing costs, and what it brings.", words=0
    )
    options = build(Options, values[""])
    names = ["processes", *grown()]
    if not any(options.only in name for name in names):
        raise UserError(f"--only {options.only}: there are {', '.join(names)}")
    facts = in_fresh_process(machine, pick_device("auto"))
    print(describe(facts))
    tables = {}
    if options.only in "processes":
        print()
        tables["processes"] = measure_processes(options)
    for name, shapes in grown().items():
        if options.only in name:
            print()
            tables[name] = measure_growth(name, shapes, options)
    print()
    print_json({"benchmark": "scaling", "machine": facts, "tables": tables})
    return 0


if __name__ == "__main__":
    sys.exit(main())
