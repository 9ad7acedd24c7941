"""Measure which operations take the time of a training step, with one thread and with all.

python -m benchmarks.step
python -m benchmarks.step --only default

The percentages are of the time of a step without the profiler. `overhead` is what remains: Python,
PyTorch's dispatcher, and operations that compute nothing, such as views. `muon` includes clipping.
"""

import os
import statistics
import sys
from collections import Counter
from dataclasses import replace
from functools import partial

import torch
from pydantic.dataclasses import dataclass
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import common as frame
from benchmarks.throughput import VOCAB, rows_known
from common.errors import command
from configs.config import STRICT, Config, Count
from configs.load import SECTIONS, Values, read_config
from training.machine import Processes, prepare_machine
from training.optim import update_weights
from training.step import compute_gradients, make_model

CONFIGS = ("shakespeare_1min", "shakespeare_3min")
KINDS = {  # the beginnings of the names of PyTorch's operations
    "matmuls": ("mm", "addmm"),
    "attention": ("bmm", "baddbmm", "_softmax", "_scaled_dot_product"),
    "dropout": ("bernoulli_", "random_", "ge_"),
    "norms": ("native_layer_norm",),
    "adamw": ("_fused_adamw_",),
}
NOTHING = ("empty", "view", "as_strided", "transpose", "select", "slice", "expand", "detach")


@dataclass(frozen=True, config=STRICT)
class Options:
    """Profile a training step"""

    steps: Count = 8
    """Number of steps that are timed, each followed by one that is profiled."""

    only: str = ""
    """Measure only the rows whose names contain this."""


def kind_of(event: FunctionEvent) -> str:
    """Return what an operation is for, and "" for Python and operations that compute nothing."""
    name = event.name.removeprefix("aten::")
    if name == event.name or name.startswith(NOTHING):
        return ""
    kind = next((k for k, names in KINDS.items() if name.startswith(names)), "elementwise")
    scope: FunctionEvent | None = event
    while scope and scope.name != "update":
        scope = scope.cpu_parent
    return "muon" if scope and kind != "adamw" else kind


def measure(config: Config, steps: int) -> frame.Row:
    """Return the median time of a step on random tokens, and the percentage of each kind."""
    import common.start

    machine = prepare_machine(config.train, Processes())
    model, optimizer = make_model(config, VOCAB, machine)
    batch = torch.randint(VOCAB, (config.train.batch_size, config.model.block_size + 1))

    def step() -> None:
        _, norm = compute_gradients(model, optimizer.weights, batch, config.train)
        with record_function("update"):
            update_weights(optimizer, norm, config.train, config.train.warmup_steps, 0.1)

    seconds, spent = list[float](), list[Counter[str]]()
    for _ in range(steps):
        seconds += frame.seconds_of(step, machine.device, 1)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            step()
        spent.append(Counter())
        for event in profiler.events() or ():
            spent[-1][kind_of(event)] += event.self_cpu_time_total
    time = statistics.median(seconds)
    kinds = (*KINDS, "elementwise", "muon")
    shares = {kind: statistics.median(each[kind] for each in spent) / time / 1e4 for kind in kinds}
    shares["overhead"] = 100 - sum(shares.values())
    return {"ms_per_step": 1e3 * time} | shares


@command
def main(argv: list[str]) -> int:
    """Measure each row."""
    options, *_ = frame.read_options(Options, argv)
    # PyTorch 2.13 reports each start and end of a profile.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    values: Values = {section: {} for section in SECTIONS}
    known = {
        name: Config(model=model, train=train)
        for name, (model, train) in rows_known(contexts=False).items()
    } | {name: read_config(values, f"{frame.ROOT}/configs/{name}.yaml") for name in CONFIGS}
    rows = []
    for name in frame.containing(options.only, known):
        for threads in (1, 0):
            config = replace(known[name], train=replace(known[name].train, threads=threads))
            run = partial(frame.in_fresh_process, measure, config, options.steps)
            rows += frame.alternate({str(threads or "all"): run}, 1, name=name)
    frame.report("step", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
