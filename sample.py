"""Generate text with a trained run.

python sample.py                                      the newest run
python sample.py runs/my-run --prompt "ROMEO:" --temperature 0.8 --top_k 40 --seed 7
python sample.py --help                               every flag
"""

import common.start

import itertools
import sys
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from common.errors import command
from configs.config import STRICT, Natural
from configs.load import read_command_line
from data.batches import cached_training_tokens
from data.ngrams import longest_copy
from data.tasks import is_task
from model.fast.choose import optimize_for_decoding
from model.generate import Sampling, generate
from training.checkpoint import open_run
from training.machine import pick_device

COMPARED = 10_000  # tokens of the first text that are searched in the training text


@dataclass(frozen=True, config=STRICT)
class Options:
    """What to generate"""

    prompt: str = ""
    """Text to continue; in bash, $'\\n' is a newline. If empty, generation starts after a newline
    or, if the run's text has none, after its most frequent token; the sequences of a task start
    with its first token."""

    num_samples: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of texts to generate, in one batch; at most a thousand."""

    max_new_tokens: Annotated[int, Field(ge=1, le=10**6)] = 500
    """Length of each text in tokens, not counting the prompt; at most a million."""

    seed: Natural = 1337
    """Seed of the RNG; the same seed gives the same text."""

    checkpoint: Literal["best", "last"] = "best"
    """Use the weights with the lowest validation loss (best) or of the last step (last)."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to compute on; auto selects a GPU if there is one."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights and, on a GPU, of the activations. bfloat16 is less precise and takes
    half the memory. On a CPU it is faster, and requires a C compiler."""


@command
def main(argv: list[str]) -> int:
    """Read the command line, open the run, and generate."""
    usage = "python sample.py [RUN] [--flag VALUE ...]"
    description = "Generate text with a trained run, by default the newest."
    sections = {"": Options, ".": Sampling}
    words, (options, sampling), _ = read_command_line(sections, argv, usage, description)
    saved = open_run(words[0] if words else None, options.checkpoint)
    device = pick_device(options.device)
    decoder, note = optimize_for_decoding(saved.model(device), getattr(torch, options.dtype))
    if note:
        print(f"note: {note}", file=sys.stderr)
    print(f"{saved}, on {device}", file=sys.stderr)

    of_task = is_task(saved.config.data)
    prompt = saved.tokenizer.encode(options.prompt).tolist() or [saved.start_token]
    shown = prompt if options.prompt or of_task else []
    tokens = generate(
        decoder,
        torch.tensor([prompt] * options.num_samples, device=device),
        options.max_new_tokens,
        sampling,
        torch.Generator().manual_seed(options.seed),
    )
    tokens, batch = itertools.tee(tokens)
    new = (int(token_B[0]) for token_B in tokens)
    for piece in saved.tokenizer.stream(itertools.chain(shown, new)):
        print(piece, end="", flush=True)  # the first sample, as it grows
    print()
    first, *others = torch.stack(list(batch), dim=1).tolist()
    for sample in others:
        print("-" * 80)
        print(saved.tokenizer.decode(shown + sample))
    train = cached_training_tokens(saved.config.data, saved.header.corpus, saved.tokenizer)
    if train is not None:
        start, length = longest_copy(np.array(first[:COMPARED]), train)
        copied = saved.tokenizer.decode(first[start : start + length])
        about = f"longest copy of the training text: {len(copied)} characters, {copied!r}"
        print(about, file=sys.stderr)
    elif not of_task:
        print("no longest copy: the training text has changed, or is not cached", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
