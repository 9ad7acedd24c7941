"""How fast text is generated: tokens per second, one sequence or 16 in a batch, and how soon
`sample.py` begins.

python -m benchmarks.sampling
python -m benchmarks.sampling --nanogpt ../nanoGPT        in turn with nanoGPT
python -m benchmarks.sampling --llama2c ../llama2.c       and with llama2.c, which has no batch

The model is nanoGPT's for Tiny Shakespeare, 10.7M parameters and a context of 256, with random
weights: which text it generates does not change how long it takes. llama2.c's is a Llama of that
size. It ends where its context is full, at token 256; ours and nanoGPT's go on with the last part
of the text. With --tokens 256 all three generate the same number.
"""

import contextlib
import io
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass

from benchmarks import llama2c
from benchmarks.common import (
    ROOT,
    describe,
    in_fresh_process,
    machine,
    median_and_spread,
    nanogpt_model,
    peak_memory,
    print_json,
)
from benchmarks.throughput import VOCAB, WIDER
from common.errors import UserError, command
from common.fields import STRICT, Count
from common.tables import print_table
from configs.load import build, read_command_line
from model.decode import optimize_for_decoding
from model.generate import Sampling, generate
from model.gpt import GPT
from training.runtime import pick_device


@dataclass(frozen=True, config=STRICT)
class Options:
    """What to measure"""

    repetitions: Count = 3
    """Fresh processes for each row, ours and the others in turn."""

    tokens: Count = 500
    """Length of each sequence."""

    nanogpt: str = ""
    """A checkout of nanoGPT, to sample from the same model in turn with ours."""

    llama2c: str = ""
    """A checkout of llama2.c, to compile and sample from a model of that size in turn with ours."""


OTHERS = {"nanogpt": "nanoGPT", "llama2c": "llama2.c"}


def measure(how: str, batch_size: int, tokens: int, checkout: str) -> tuple[float, float]:
    """Tokens per second of all sequences together, and peak memory in MB, by "ours", by a
    checkout of "nanogpt", or by "llama2c" as it was built, whose memory is not known."""
    device = pick_device("auto")
    if how == "llama2c":
        return llama2c.tokens_per_second(Path(checkout), tokens), math.nan
    prompt = torch.zeros(batch_size, 1, dtype=torch.long, device=device)
    if how == "nanogpt":
        module = nanogpt_model(checkout)
        sizes = {key: getattr(WIDER, key) for key in ("block_size", "n_layer", "n_head", "n_embd")}
        with contextlib.redirect_stdout(io.StringIO()):  # it says how large it is
            theirs = module.GPT(module.GPTConfig(**sizes, vocab_size=VOCAB, bias=False))
        theirs.to(device).eval()
        began = time.perf_counter()
        with torch.no_grad():
            theirs.generate(prompt, tokens, temperature=0.8)
    else:
        import common.start  # noqa: F401 - keeps freed memory, as our commands do

        model = optimize_for_decoding(GPT(WIDER, VOCAB).to(device).eval())
        began = time.perf_counter()
        for _ in generate(model, prompt, tokens, Sampling()):
            pass
    return batch_size * tokens / (time.perf_counter() - began), peak_memory(device)


def seconds_to_first_character(folder: Path) -> float:
    """Of `python sample.py` in a folder that has a run, from the command on."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, str(ROOT / "sample.py"), "--prompt=A", "--max_new_tokens=100"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(2)  # the prompt, and the first character after it
        seconds = time.perf_counter() - began
        process.stdout.read()
    if process.returncode:
        raise UserError(f"sample.py exited with {process.returncode}")
    return seconds


@command
def main(argv: list[str]) -> int:
    """Measure each way of sampling in turn and print what was found."""
    usage = "python -m benchmarks.sampling [--flag VALUE ...]"
    _, values = read_command_line(
        {"": Options}, argv, usage, "Measure how fast text is generated.", words=0
    )
    options = build(Options, values[""])
    with tempfile.TemporaryDirectory() as folder:
        return compare(options, Path(folder))


def compare(options: Options, folder: Path) -> int:
    """`main`, with a folder for what is compiled and trained."""
    if options.nanogpt:
        nanogpt_model(options.nanogpt)
    if options.llama2c:
        llama2c.build(options.llama2c, folder)
    facts = in_fresh_process(machine, pick_device("auto"))
    print(describe(facts))

    others = [other for other in OTHERS if getattr(options, other)]
    rows = [["sampling", "batch", "tokens/s", "MB", *(f"times {OTHERS[o]}" for o in others)]]
    results: list[dict[str, Any]] = []
    for batch_size in (1, 16):
        ways = ["ours", *(o for o in others if o != "llama2c" or batch_size == 1)]
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(options.repetitions):
            for way in ways:
                where = str(folder) if way == "llama2c" else options.nanogpt
                found[way].append(in_fresh_process(measure, way, batch_size, options.tokens, where))
                speed = f"{found[way][-1][0]:,.0f} tokens/s"
                print(f"{way}, batch of {batch_size}: {speed}", file=sys.stderr)
        for way in ways:
            speeds = [speed for speed, _ in found[way]]
            memory = "" if way == "llama2c" else f"{max(held for _, held in found[way]):.0f}"
            row = [way, str(batch_size), median_and_spread(speeds), memory]
            result = {"way": way, "batch_size": batch_size, "tokens_per_second": speeds}
            for other in others:
                if way in others or other not in ways:
                    row.append("")
                    continue
                ratios = [a[0] / b[0] for a, b in zip(found[way], found[other], strict=True)]
                row.append(median_and_spread(ratios, 1))
                result[f"times_{other}"] = ratios
            rows.append(row)
            results.append(result)

    flags = ["--train.max_steps=1", "--train.sample_tokens=0", "--train.batch_size=1"]
    shape = [f"--model.{key}={getattr(WIDER, key)}" for key in ("block_size", "n_layer")]
    shape += [f"--model.{key}={getattr(WIDER, key)}" for key in ("n_head", "n_embd")]
    subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *flags, *shape],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    starts = [seconds_to_first_character(folder) for _ in range(options.repetitions)]
    print_table(rows)
    print(f"sample.py prints its first character after {median_and_spread(starts, 2)} s")
    summary = {"benchmark": "sampling", "machine": facts, "rows": results}
    print_json(summary | {"first_character_seconds": statistics.median(starts)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
