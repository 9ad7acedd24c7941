"""Measure the speed of generation: tokens per second for one sequence and for a batch of 16.

python -m benchmarks.sampling
python -m benchmarks.sampling --nanogpt ../nanoGPT        alternating with nanoGPT
python -m benchmarks.sampling --llama2c ../llama2.c       alternating with llama2.c, without a batch

The model has the size of nanoGPT's model for Tiny Shakespeare, 10.7M parameters and a context of
256. Its weights are random, because they do not change the time. llama2.c runs a Llama of this size
and stops at token 256, when its context is full; the other two continue with the last part of the
text. With --tokens 256, all three generate the same number of tokens.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from benchmarks import llama2c
from benchmarks.throughput import VOCAB, WIDER
from common.errors import command
from configs.config import STRICT, Count
from model.fast.decode import optimize_for_decoding
from model.generate import Sampling, generate
from model.gpt import GPT
from training.machine import pick_device


@dataclass(frozen=True, config=STRICT)
class Options(frame.RivalOptions):
    """Measure the speed of generation"""

    tokens: Count = 500
    """Number of tokens to generate for each sequence."""

    llama2c: str = ""
    """Path of a checkout of github.com/karpathy/llama2.c; if given, it is compiled and measured."""


def measure(batch_size: int, tokens: int, checkout: str = "") -> frame.Row:
    """Generate with this project's model or, if a checkout is named, with nanoGPT's.

    The speed counts the tokens of all sequences.
    """
    device = pick_device("auto")
    prompt = torch.zeros(batch_size, 1, dtype=torch.long, device=device)
    if checkout:
        theirs = frame.nanogpt(checkout, WIDER, VOCAB).to(device).eval()
        began = time.perf_counter()
        with torch.no_grad():
            theirs.generate(prompt, tokens, temperature=0.8)
    else:
        import common.start

        ours = optimize_for_decoding(GPT(WIDER, VOCAB).to(device).eval())
        began = time.perf_counter()
        for _ in generate(ours, prompt, tokens, Sampling(temperature=0.8)):
            pass
    seconds = time.perf_counter() - began
    return {
        "tokens_per_second": batch_size * tokens / seconds,
        "megabytes": frame.peak_memory(device),
    }


@command
def main(argv: list[str]) -> int:
    """Measure each batch size with its rivals alternately."""
    options, *_ = frame.read_options(Options, argv)
    rows: list[frame.Row] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if options.llama2c:
            llama2c.build(options.llama2c, folder)
        for batch_size in (1, 16):
            ours = partial(frame.in_fresh_process, measure, batch_size, options.tokens)
            rivals = {"ours": ours}
            if options.llama2c and batch_size == 1:
                rivals["llama2.c"] = partial(llama2c.measure, folder, options.tokens)
            if options.nanogpt:
                rivals["nanoGPT"] = partial(ours, options.nanogpt)
            batch = str(batch_size)
            rows += frame.alternate(rivals, options.repetitions, "tokens_per_second", batch=batch)
    frame.report("sampling", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
