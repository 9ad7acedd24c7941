"""Write text with a trained run.

python sample.py                                      the newest run
python sample.py runs/my-run --prompt "ROMEO:" --temperature 0.8 --top_k 40 --seed 7
python sample.py --help                               every flag
"""

import signal

if __name__ == "__main__":  # until there is something to save, Ctrl-C ends at once and quietly
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from common.errors import command, require_at_least, require_fraction
from configs.load import build, make_parser, read_flags, split_positional
from model.decode import lay_out_for_decoding
from model.generate import generate
from run.folder import find_run, open_run
from training.runtime import pick_device


@dataclass(frozen=True)
class Options:
    """What to write"""

    prompt: str | None = None
    """Text to go on from; without it writing starts after a newline, or after the commonest
    character of a text that has none."""

    num_samples: int = 1
    """How many texts to write, side by side."""

    max_new_tokens: int = 500
    """Length of each, the prompt not counted."""

    temperature: float = 0.8
    """Below 1 the likely becomes likelier; 0 always takes the likeliest."""

    top_k: int | None = None
    """Draw from the k likeliest tokens."""

    top_p: float = 1.0
    """Draw from the fewest likeliest tokens that together have this probability."""

    min_p: float = 0.0
    """Draw from tokens at least this times as likely as the likeliest."""

    seed: int = 1337
    """The same seed writes the same text; another one another."""

    int8: bool = False
    """Round the weights to 8 bits, to write one text about 1.4 times as fast on a CPU; the model
    is then not quite the one that was trained."""

    checkpoint: Literal["best", "last"] = "best"
    """The weights of the lowest validation loss, or those of the last step."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""

    def __post_init__(self) -> None:
        if self.prompt == "":
            raise ValueError("--prompt is empty; leave it out to start from a newline")
        require_at_least(1, num_samples=self.num_samples, max_new_tokens=self.max_new_tokens)
        require_at_least(0, temperature=self.temperature, seed=self.seed)
        if self.top_k is not None:
            require_at_least(1, top_k=self.top_k)
        if self.seed >= 2**63:
            raise ValueError(f"--seed must be below 2**63, got {self.seed}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top_p must be in (0, 1], got {self.top_p}")
        require_fraction(min_p=self.min_p)


@command
def main(argv: list[str]) -> int:
    """Read the command line, open the run, write."""
    usage = "python sample.py [RUN] [--flag VALUE ...]"
    parser = make_parser(
        {"": Options}, usage, "Write text with a trained run, by default the newest."
    )
    words, flags = split_positional(argv)
    options = build(Options, read_flags(parser, flags))
    saved = open_run(find_run(words[0] if words else None), options.checkpoint)
    device = pick_device(options.device)
    model = lay_out_for_decoding(saved.model(device, options.num_samples), options.int8)
    loss = saved.header.val_loss
    how = ", weights rounded to 8 bits" if options.int8 else ""
    about = "not evaluated yet" if loss is None else f"validation loss {loss:.4f}"
    print(f"{saved.path}, step {saved.header.step}, {about}, on {device}{how}", file=sys.stderr)

    if options.prompt is None:
        start = [saved.start_token]
    else:
        start = saved.tokenizer.encode(options.prompt).tolist()
    prompt = torch.tensor([start] * options.num_samples, device=device)
    stream = generate(
        model,
        prompt,
        options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        generator=torch.Generator().manual_seed(options.seed),
    )
    others: list[list[int]] = [[] for _ in range(options.num_samples - 1)]

    def first_sample() -> Iterator[int]:
        for tokens in stream:
            first, *rest = tokens.tolist()
            for other, token in zip(others, rest, strict=True):
                other.append(token)
            yield first

    heading = options.prompt or ""
    print(heading, end="", flush=True)
    for piece in saved.tokenizer.stream(first_sample()):
        print(piece, end="", flush=True)
    print()
    for other in others:
        print("-" * 80)
        print(heading + saved.tokenizer.decode(other))
    return 0


if __name__ == "__main__":
    sys.exit(main())
