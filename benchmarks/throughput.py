"""How fast a model is trained, in tokens per second and as a fraction of the machine's peak.

python -m benchmarks.throughput
python -m benchmarks.throughput --nanogpt ../nanoGPT      alternating with nanoGPT
python -m benchmarks.throughput --table context           the default model, one size growing

A step has the same number of tokens as the context grows.
"""

import contextlib
import dataclasses
import io
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass

from benchmarks.common import (
    ROOT,
    describe,
    in_fresh_process,
    machine,
    median_and_spread,
    nanogpt_model,
    peak_memory,
    print_json,
    product_rate,
    seconds_of,
)
from common.errors import UserError, command
from common.fields import STRICT, Count, NonNegative
from common.tables import print_table
from configs.load import (
    Config,
    build,
    read_command_line,
    read_config,
)
from model.config import ModelConfig
from model.gpt import GPT
from training.config import TrainConfig
from training.optim import Optimizer
from training.runtime import Runtime, pick_device, start_runtime
from training.size import flops_per_token
from training.step import train_step

VOCAB = 65  # Tiny Shakespeare's characters

# nanoGPT's model (Karpathy 2022, config/train_shakespeare_char.py): GPT-2's block without biases.
CLASSICAL = ModelConfig(
    block_size=64,
    n_layer=4,
    n_head=4,
    n_embd=128,
    positions="learned",
    activation="gelu",
    qk_norm=False,
    tie_embeddings=True,
    zero_init=False,
    bias=False,
)
WIDER = replace(CLASSICAL, block_size=256, n_layer=6, n_head=6, n_embd=384)


@dataclass(frozen=True, config=STRICT)
class Options:
    """What to measure"""

    repetitions: Count = 3
    """Fresh processes for each row, ours and nanoGPT's in turn."""

    seconds: NonNegative = 3.0
    """Time for which each process trains, at least three updates, after one that is not timed."""

    nanogpt: str = ""
    """A checkout of nanoGPT, to train the same model with the same batch in turn with ours."""

    table: Literal["models", "context", "width"] = "models"
    """Some models, or the default with a growing context or width and both kinds of attention."""

    only: str = ""
    """Measure the rows whose name contains this."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Of one process."""

    tokens_per_second: float
    """The median over its steps."""

    gflops: float
    """See `flops_per_token`."""

    peak: float
    """What large matrix products reach in the same process and precision, in GFLOP/s."""

    megabytes: float
    """Peak memory, less what PyTorch had taken before."""


def shipped(name: str) -> Config:
    """A config of this project."""
    file = str(ROOT / "configs" / name)
    return read_config({}, file)


Shapes = dict[str, tuple[ModelConfig, TrainConfig, bool]]


def shapes(table: str) -> Shapes:
    """Return by name: model, training, and whether nanoGPT has the same."""
    default = Config()
    tokens = default.train.batch_size * default.model.block_size
    if table == "context":
        return sweep("block_size", (128, 256, 512, 1024, 2048), default, tokens)
    if table == "width":
        return sweep("n_embd", (64, 128, 256, 512), default, tokens)
    adamw = TrainConfig(optimizer="adamw")
    dropped = replace(WIDER, dropout=0.2, attn_dropout=0.2)
    half_hour = shipped("shakespeare_30min.yaml")
    return {
        "nanoGPT's 4 x 128": (CLASSICAL, replace(adamw, batch_size=12), True),
        "nanoGPT's 6 x 384, dropout 0.2": (dropped, replace(adamw, batch_size=16), True),
        "nanoGPT's 6 x 384, no dropout": (WIDER, replace(adamw, batch_size=16), True),
        "the default, with Muon": (default.model, default.train, False),
        "shakespeare_30min, with Muon": (half_hour.model, half_hour.train, False),
    }


def sweep(field: str, values: Sequence[int], default: Config, tokens: int) -> Shapes:
    """Return the default model with each value of a field and both kinds of attention."""
    rows: Shapes = {}
    change: dict[str, Any]
    for value in values:
        for attention in ("fused", "explicit"):
            change = {field: value, "attention": attention}
            model = replace(default.model, **change)
            train = replace(default.train, batch_size=tokens // model.block_size)
            rows[f"{field} {value}, {attention}"] = model, train, False
    return rows


def measure(config: ModelConfig, settings: TrainConfig, at_least: float, nanogpt: str) -> Measured:
    """Train for some seconds on random tokens, ours or (with a checkout) nanoGPT's model."""
    runtime = start_runtime(settings)
    device, before = runtime.device, peak_memory(runtime.device)
    if nanogpt:
        step = nanogpt_step(nanogpt, config, settings, device)
    else:
        import common.start  # noqa: F401 - keeps freed memory, as our commands do

        step = make_step(config, settings, runtime)
    (once,) = seconds_of(step, device, 1)
    seconds = statistics.median(seconds_of(step, device, max(3, round(at_least / once))))
    megabytes = peak_memory(device) - before
    tokens = settings.batch_size * config.block_size
    return Measured(
        tokens / seconds,
        tokens * flops_per_token(config, VOCAB) / seconds / 1e9,
        product_rate(device, runtime.precision),
        megabytes,
    )


def make_step(config: ModelConfig, settings: TrainConfig, runtime: Runtime) -> Callable[[], Any]:
    """One step of a new model on random tokens."""
    model = GPT(config, VOCAB).to(runtime.device)
    optimizer = Optimizer(model, settings, runtime.precision)
    forward = runtime.prepare(model, settings.compile)
    shape = settings.batch_size, config.block_size + 1
    batch = torch.randint(VOCAB, shape, device=runtime.device)
    return lambda: train_step(forward, optimizer, batch, 1.0)


def nanogpt_step(
    checkout: str, config: ModelConfig, settings: TrainConfig, device: torch.device
) -> Callable[[], None]:
    """One update as nanoGPT's train.py makes it, of its own model of this shape."""
    module = nanogpt_model(checkout)
    sequences = torch.randint(VOCAB, (settings.batch_size, config.block_size + 1), device=device)
    sizes = {name: getattr(config, name) for name in ("block_size", "n_layer", "n_head", "n_embd")}
    shape = module.GPTConfig(**sizes, vocab_size=VOCAB, dropout=config.dropout, bias=config.bias)
    with contextlib.redirect_stdout(io.StringIO()):  # it says how large it is
        model = module.GPT(shape).to(device)
        optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
    inputs, targets = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            _, loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@command
def main(argv: list[str]) -> int:
    """Measure every shape, ours and nanoGPT's in turn, and print what was found."""
    usage = "python -m benchmarks.throughput [--flag VALUE ...]"
    _, values = read_command_line(
        {"": Options}, argv, usage, "Measure how fast models are trained.", words=0
    )
    options = build(Options, values[""])
    if options.nanogpt:
        nanogpt_model(options.nanogpt)
    every = shapes(options.table)
    chosen = {name: shape for name, shape in every.items() if options.only in name}
    if not chosen:
        raise UserError(f"--only {options.only}: the rows are {', '.join(every)}")
    facts = in_fresh_process(machine, pick_device("auto"))
    print(describe(facts))
    heading = ["training", "batch", "ms a step", "tokens/s", "GFLOP/s", "of peak", "MB"]
    rows = [heading + (["nanoGPT tokens/s", "times nanoGPT"] if options.nanogpt else [])]
    results: list[dict[str, Any]] = []
    for name, (config, settings, known) in chosen.items():
        ours, theirs = [], []
        for _ in range(options.repetitions):
            ours.append(in_fresh_process(measure, config, settings, options.seconds, ""))
            if options.nanogpt and known:
                theirs.append(
                    in_fresh_process(measure, config, settings, options.seconds, options.nanogpt)
                )
        speeds = [m.tokens_per_second for m in ours]
        percents = [100 * m.gflops / m.peak for m in ours]
        row = [
            name,
            f"{settings.batch_size} x {config.block_size}",
            median_and_spread([1e3 * settings.batch_size * config.block_size / s for s in speeds]),
            median_and_spread(speeds),
            f"{statistics.median(m.gflops for m in ours):.0f}",
            f"{statistics.median(percents):.0f}%",
            f"{max(m.megabytes for m in ours):.0f}",
        ]
        result = {"name": name, "tokens_per_second": speeds, "percent_of_peak": percents}
        if theirs:
            ratios = [s / m.tokens_per_second for s, m in zip(speeds, theirs, strict=True)]
            nano = [m.tokens_per_second for m in theirs]
            row += [median_and_spread(nano), median_and_spread(ratios, 2)]
            result |= {"nanogpt_tokens_per_second": nano, "ratios": ratios}
        rows.append(row + [""] * (len(rows[0]) - len(row)))
        results.append(result)
    print_table(rows)
    print_json({"benchmark": "throughput", "machine": facts, "rows": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
