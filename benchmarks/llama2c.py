"""llama2.c, one text in one file of C, on a model of the size of ours; a checkout is brought."""

import os
import re
import struct
import subprocess
from pathlib import Path

import torch

from benchmarks.throughput import VOCAB, WIDER
from common.errors import UserError

COMPILER = ("cc", "-Ofast", "-fopenmp", "-march=native")  # as in its `make runomp`


def build(checkout: str, folder: Path) -> None:
    """Compile a checkout's run.c in a folder, and write a model and a tokenizer for it there.

    The model has random weights and the width, layers, heads, tokens and context of `WIDER`.

    Raises:
        UserError: where there is no run.c, or no compiler that takes it.
    """
    source = Path(checkout).resolve() / "run.c"
    if not source.is_file():
        raise UserError(
            f"--llama2c {checkout} is no checkout of llama2.c: there is no {source}; "
            f"get one with: git clone https://github.com/karpathy/llama2.c"
        )
    command = [*COMPILER, str(source), "-lm", "-o", str(folder / "run")]
    try:
        compiled = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError("--llama2c needs a C compiler, and there is no cc; install gcc") from None
    if compiled.returncode:
        lines = compiled.stderr.splitlines()
        reason = next((line for line in lines if "error" in line), "it does not say why")
        raise UserError(f"cc does not compile {source} with OpenMP: {reason}")

    C, L, H, T = WIDER.n_embd, WIDER.n_layer, WIDER.n_head, WIDER.block_size
    hidden = 8 * C // 3  # of three matrices, which so have as many weights as two of 4 C
    # Embeddings, norms, matrices of attention and MLP, a table that it skips.
    numbers = VOCAB * C + (2 * L + 1) * C + L * (4 * C * C + 3 * C * hidden) + T * C // H
    weights = 0.02 * torch.randn(numbers)
    # Token 1 would end the text. With the embedding of token 0, by which logits are made too, it is
    # as likely as that, and the first of the likeliest is taken.
    weights[C : 2 * C] = weights[:C]
    header = struct.pack("7i", C, hidden, L, H, H, VOCAB, T)
    (folder / "model.bin").write_bytes(header + weights.numpy().tobytes())
    tokens = [struct.pack("fi", 0.0, 1) + bytes([ord("0") + i]) for i in range(VOCAB)]
    (folder / "tokenizer.bin").write_bytes(struct.pack("i", 1) + b"".join(tokens))


def tokens_per_second(folder: Path, tokens: int) -> float:
    """What the program says of one text, at temperature 0, of what `build` made in the folder.

    It leaves out the first token, and ends where its context ends. It has as many threads as
    PyTorch.

    Raises:
        UserError: when it does not say.
    """
    ended = subprocess.run(
        [str(folder / "run"), "model.bin", "-t", "0", "-n", str(min(tokens, WIDER.block_size))],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
    )
    said = re.search(r"achieved tok/s: (\d+\.\d+)", ended.stderr)
    if said is None:
        last = ended.stderr.strip().splitlines()[-1:] or ["it takes more --tokens"]
        raise UserError(f"llama2.c ended with {ended.returncode} and no speed: {last[0]}")
    return float(said[1])
