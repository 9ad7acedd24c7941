"""Measure training speed, in tokens per second and as a fraction of the machine's peak.

python -m benchmarks.throughput
python -m benchmarks.throughput --nanogpt ../nanoGPT      alternating with nanoGPT
python -m benchmarks.throughput --only context            the default model with longer contexts
"""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from common.errors import UserError, command
from configs.config import STRICT, Config, ModelConfig, NonNegative, TrainConfig
from model.gpt import GPT
from training.machine import Processes, prepare_machine
from training.step import make_model, train_step

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
    """Measure training speed"""

    repetitions: frame.Repetitions = 3
    nanogpt: frame.NanoGPT = ""

    seconds: NonNegative = 3.0
    """Seconds of training in each process, at least three steps, after one warmup step."""

    other: str = ""
    """Path of another checkout of this project; if given, the same rows are measured there."""

    only: str = ""
    """Measure only the rows whose names contain this text. `context` adds longer contexts of the
    default model, with both kinds of attention."""


def rows_known(contexts: bool) -> dict[str, tuple[ModelConfig, TrainConfig]]:
    """Return the model and the training config of each row; nanoGPT has the first three as well."""
    adamw, default = TrainConfig(optimizer="adamw"), Config()
    dropped = replace(WIDER, dropout=0.2, attn_dropout=0.2)
    rows = {
        "nanoGPT's 4 x 128": (CLASSICAL, replace(adamw, batch_size=12)),
        "nanoGPT's 6 x 384, dropout 0.2": (dropped, replace(adamw, batch_size=16)),
        "nanoGPT's 6 x 384, no dropout": (WIDER, replace(adamw, batch_size=16)),
        "the default, with Muon": (default.model, default.train),
    }
    for attention in ("fused", "explicit") if contexts else ():
        model = replace(default.model, attention=attention)
        for T in (128, 256, 512, 1024, 2048):
            batch_size = default.train.batch_size * model.block_size // T  # as many tokens a step
            train = replace(default.train, batch_size=batch_size)
            rows[f"context {T}, {attention}"] = replace(model, block_size=T), train
    return rows


def measure(
    config: ModelConfig, train: TrainConfig, at_least: float, checkout: str = ""
) -> frame.Row:
    """Train this project's model or, if a checkout is named, nanoGPT's on random tokens.

    FLOPs come from `flops_per_token`, the peak from large matmuls in the same process and
    precision, and memory is what training needed in addition to PyTorch.
    """
    machine = prepare_machine(train, Processes())
    if checkout:  # whose train.py does not ask for the same result every time
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.enable_cudnn_sdp(True)
    device, before = machine.device, frame.peak_memory(machine.device)
    batch = torch.randint(VOCAB, (train.batch_size, config.block_size + 1))
    precision = getattr(torch, machine.precision)
    if checkout:
        precision = torch.bfloat16 if device == "cuda" else torch.float32
        step = nanogpt_step(checkout, config, batch.to(device))
    else:
        import common.start

        model, optimizer = make_model(Config(model=config, train=train), VOCAB, machine)
        step = partial(train_step, model, optimizer, batch, train, train.warmup_steps)
    (once,) = frame.seconds_of(step, device, 1)
    seconds = statistics.median(frame.seconds_of(step, device, max(3, round(at_least / once))))
    megabytes = frame.peak_memory(device) - before
    tokens = train.batch_size * config.block_size
    with torch.device("meta"):
        flops = tokens * flops_per_token(GPT(config, VOCAB))
    return {
        "tokens_per_second": tokens / seconds,
        "ms_per_step": 1e3 * seconds,
        "percent_of_peak": flops / seconds / 1e7 / frame.matmul_gflops(device, precision),
        "megabytes": megabytes,
    }


def flops_per_token(model: GPT) -> int:
    """Return the FLOPs per token, forward and backward (Chowdhery et al. 2022, appendix B).

    They are 6 for each weight of the matrices, except the embeddings, and 12 L C T for the two
    matmuls of attention, including masked positions.
    """
    config = model.config
    matrices = sum(p.numel() for p in model.blocks.parameters() if p.dim() == 2)
    head = config.n_embd * model.token_embedding.num_embeddings
    return 6 * (matrices + head) + 12 * config.n_layer * config.n_embd * config.block_size


def nanogpt_step(checkout: str, config: ModelConfig, batch: torch.Tensor) -> Callable[[], object]:
    """Return a function that trains nanoGPT's model for one step, as its train.py does."""
    inputs, targets, device = batch[:, :-1], batch[:, 1:].contiguous(), batch.device.type
    model = frame.nanogpt(checkout, config, VOCAB).to(device)
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            _, loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_elsewhere(checkout: str, name: str, seconds: float) -> frame.Row:
    """Measure one row with the command of another checkout."""
    flags = ["--repetitions=1", f"--seconds={seconds}", f"--only={name}"]
    _, printed = frame.run_command(["-m", "benchmarks.throughput", *flags], Path(checkout))
    (speed,) = json.loads(printed.splitlines()[-1])["rows"][0]["tokens_per_second"]
    return {"tokens_per_second": speed}


@command
def main(argv: list[str]) -> int:
    """Measure each row, alternating with every rival that has it."""
    options, *_ = frame.read_options(Options, argv)
    known = rows_known(contexts=bool(options.only))
    chosen = {name: shape for name, shape in known.items() if options.only in name}
    if not chosen:
        raise UserError(f"--only {options.only} matches no row of: {', '.join(known)}")
    rows: list[frame.Row] = []
    for name, (config, train) in chosen.items():
        ours = partial(frame.in_fresh_process, measure, config, train, options.seconds)
        rivals = {"ours": ours}
        if options.nanogpt and name.startswith("nanoGPT"):
            rivals["nanoGPT"] = partial(ours, options.nanogpt)
        if options.other:
            rivals["other"] = partial(measure_elsewhere, options.other, name, options.seconds)
        batch = f"{train.batch_size} x {config.block_size}"
        rows += frame.alternate(
            rivals, options.repetitions, "tokens_per_second", name=name, batch=batch
        )
    frame.report("throughput", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
