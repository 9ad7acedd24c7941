"""llama2.c: a Llama in one C file, compiled from a checkout, with a model of the same size."""

import os
import re
import struct
import subprocess
from pathlib import Path

import torch

from benchmarks.common import Row
from benchmarks.throughput import VOCAB, WIDER
from common.errors import UserError

COMPILER = ("cc", "-Ofast", "-fopenmp", "-march=native")  # as in its `make runomp`


def build(checkout: str, folder: Path) -> None:
    """Compile run.c into a folder, and write a model and a tokenizer for it there.

    The model has random weights and the width, layers, heads, tokens and context of `WIDER`.
    """
    source = Path(checkout).resolve() / "run.c"
    if subprocess.run([*COMPILER, str(source), "-lm", "-o", str(folder / "run")]).returncode:
        raise UserError(f"cc could not compile {source} with OpenMP; check --llama2c")

    C, L, H, T = WIDER.n_embd, WIDER.n_layer, WIDER.n_head, WIDER.block_size
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


def measure(folder: Path, tokens: int) -> Row:
    """Run the program that `build` made, at temperature 0, and return the speed that it prints.

    This speed excludes the first token. The text ends when the context is full. The program has as
    many threads as PyTorch.
    """
    ended = subprocess.run(
        [str(folder / "run"), "model.bin", "-t", "0", "-n", str(min(tokens, WIDER.block_size))],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
    )
    speed = re.search(r"achieved tok/s: (\d+\.\d+)", ended.stderr)
    if speed is None:
        raise UserError(f"llama2.c printed no speed: {ended.stderr.strip()}; increase --tokens")
    return {"tokens_per_second": float(speed[1])}
