"""Measure the speed of generation: tokens per second for one sequence and for a batch of 16.

python -m benchmarks.sampling
python -m benchmarks.sampling --nanogpt ../nanoGPT        alternating with nanoGPT
python -m benchmarks.sampling --llama2c ../llama2.c       alternating with llama2.c, without a batch
python -m benchmarks.sampling --default                   at the default's size

The model has the size of nanoGPT's model for Tiny Shakespeare, 10.7M parameters and a context of
256. Its weights are random, because they do not change the time. llama2.c runs a Llama of this size
and stops at token 256, when its context is full; the other two continue with the last part of the
text. With --tokens 256, all three generate the same number of tokens.
"""

import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from benchmarks.throughput import VOCAB, WIDER
from common.errors import UserError, command
from configs.config import STRICT, Count, ModelConfig
from model.fast.choose import optimize_for_decoding
from model.generate import Sampling, generate
from model.gpt import GPT
from training.machine import pick_device

COMPILER = ("cc", "-Ofast", "-fopenmp", "-march=native")  # as in its `make runomp`


@dataclass(frozen=True, config=STRICT)
class Options:
    """Measure the speed of generation"""

    repetitions: frame.Repetitions = 3
    nanogpt: frame.NanoGPT = ""

    tokens: Count = 500
    """Number of tokens to generate for each sequence."""

    default: bool = False
    """Measure a model of the default's size, 0.8M parameters."""

    llama2c: str = ""
    """Path of a checkout of github.com/karpathy/llama2.c; if given, it is compiled and measured."""


def measure(
    config: ModelConfig, batch_size: int, tokens: int, dtype: torch.dtype, checkout: str = ""
) -> frame.Row:
    """Generate with this project's model or, if a checkout is named, with nanoGPT's.

    The speed counts the tokens of all sequences, here without the first of each, as llama2.c does.
    """
    device = pick_device("auto")
    prompt = torch.zeros(batch_size, 1, dtype=torch.long, device=device)
    if checkout:
        theirs = frame.nanogpt(checkout, config, VOCAB).to(device).eval()
        began, counted = time.perf_counter(), tokens
        with torch.no_grad():
            theirs.generate(prompt, tokens, temperature=0.8)
    else:
        import common.start

        ours, _ = optimize_for_decoding(GPT(config, VOCAB).to(device).eval(), dtype)
        sampled = generate(ours, prompt, tokens, Sampling(temperature=0.8))
        next(sampled)
        began = time.perf_counter()
        counted = sum(1 for _ in sampled)
    seconds = time.perf_counter() - began
    return {
        "tokens_per_second": batch_size * counted / seconds,
        "megabytes": frame.peak_memory(device),
    }


def build_llama2c(checkout: str, config: ModelConfig, folder: Path) -> None:
    """Compile llama2.c, a Llama in one C file, into a folder, and write its model and tokenizer.

    The model has random weights and the width, layers, heads, tokens and context of the config.
    """
    source = Path(checkout).resolve() / "run.c"
    if subprocess.run([*COMPILER, str(source), "-lm", "-o", str(folder / "run")]).returncode:
        raise UserError(f"cc could not compile {source} with OpenMP; check --llama2c")

    C, L, H, T = config.n_embd, config.n_layer, config.n_head, config.block_size
    hidden = 8 * C // 3  # of three matrices, which then have as many weights as two of 4 C
    # Embeddings, norms, matrices of attention and MLP, and a table that llama2.c skips.
    size = VOCAB * C + (2 * L + 1) * C + L * (4 * C * C + 3 * C * hidden) + T * C // H
    weights = 0.02 * torch.randn(size)
    # Token 1 would end the text. With the embedding of token 0, which also gives the logits, both
    # are equally likely, and llama2.c chooses the first of the most likely tokens.
    weights[C : 2 * C] = weights[:C]
    header = struct.pack("7i", C, hidden, L, H, H, VOCAB, T)
    (folder / "model.bin").write_bytes(header + weights.numpy().tobytes())
    tokens = [struct.pack("fi", 0.0, 1) + bytes([ord("0") + i]) for i in range(VOCAB)]
    (folder / "tokenizer.bin").write_bytes(struct.pack("i", 1) + b"".join(tokens))


def measure_llama2c(folder: Path, tokens: int) -> frame.Row:
    """Run the compiled program at temperature 0, and return the speed that it prints.

    This speed excludes the first token. The text ends when the context is full. The program has as
    many threads as PyTorch.
    """
    ended = subprocess.run(
        [str(folder / "run"), "model.bin", "-t", "0", "-n", str(tokens)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
    )
    speed = re.search(r"achieved tok/s: (\d+\.\d+)", ended.stderr)
    if speed is None:
        raise UserError(f"llama2.c printed no speed: {ended.stderr.strip()}; increase --tokens")
    return {"tokens_per_second": float(speed[1])}


@command
def main(argv: list[str]) -> int:
    """Measure each batch size with its rivals alternately."""
    options, *_ = frame.read_options(Options, argv)
    rows: list[frame.Row] = []
    config = ModelConfig() if options.default else WIDER
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if options.llama2c:
            build_llama2c(options.llama2c, config, folder)
        for batch_size in (1, 16):
            run = partial(frame.in_fresh_process, measure, config, batch_size, options.tokens)
            ours = partial(run, torch.float32)
            rivals = {"ours": ours, "ours in bfloat16": partial(run, torch.bfloat16)}
            if options.llama2c and batch_size == 1:
                tokens = min(options.tokens, config.block_size)
                rivals["llama2.c"] = partial(measure_llama2c, folder, tokens)
            if options.nanogpt:
                rivals["nanoGPT"] = partial(ours, options.nanogpt)
            batch = str(batch_size)
            rows += frame.alternate(rivals, options.repetitions, "tokens_per_second", batch=batch)
    frame.report("sampling", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
