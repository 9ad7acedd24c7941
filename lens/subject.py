"""What is studied: a run's weights, and the texts that they read. All of it on the CPU."""

import dataclasses
import sys
from functools import cached_property
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError, printable
from common.fields import STRICT
from data.batches import Batches, open_batches
from lens.capture import blocks_of
from lens.measure import repeated
from model.attention import MultiHeadAttention
from run.checkpoint import open_run
from run.folder import find_run
from training.step import flops_per_token

PROMPT_TOKENS = 128  # of the validation text, where no prompt is given
# Of a prompt, and of a sequence that is measured: longer maps are too large to send, and to see.
MAX_TOKENS = 256
SEQUENCES = 32
ENOUGH = 3e13  # FLOPs for cutting each head once: minutes, on two cores
REPEATS = 64  # random strings that copying is measured on


@dataclass(frozen=True, config=STRICT)
class SubjectOptions:
    """Flags of every verb."""

    prompt: str | None = None
    """The text to look at; without it, the beginning of the validation split."""

    source: str | None = None
    """The run's text, if it has moved; or another text to measure on."""

    checkpoint: Literal["best", "last"] = "best"
    """The weights of the lowest validation loss, or those of the last step."""


@dataclass(frozen=True, config=STRICT)
class MeasureOptions(SubjectOptions):
    """Flags of the verbs that measure on the validation split."""

    sequences: Annotated[int, Field(ge=2, lt=2**63)] | None = None
    """Number of sequences, spread evenly over the validation split, that scores and losses are
    averaged over; without it 32, or fewer for a large model."""


class Subject:
    """A run, as the flags name it."""

    def __init__(self, word: str | None, options: SubjectOptions) -> None:
        self.options = options
        self.run = find_run(word)
        self.saved = open_run(self.run, options.checkpoint)
        self.config, self.tokenizer = self.saved.config, self.saved.tokenizer
        self.header, self.V = self.saved.header, self.tokenizer.vocab_size
        self.model = self.saved.model(torch.device("cpu"))
        self.vocab = self.tokenizer.labels
        print(printable(str(self.saved)), file=sys.stderr)

    @property
    def dtype(self) -> torch.dtype:
        """What the run computed in."""
        return torch.bfloat16 if self.header.machine.precision == "bfloat16" else torch.float32

    @property
    def copies(self) -> bool:
        """Whether the run was trained on repeated strings."""
        return self.config.data.source in ("repeat", ["repeat"])

    def batches(self, block_size: int) -> Batches:
        """The run's text, or that of --source, in sequences of a length.

        Raises:
            UserError: when it is not there any more, or too short.
        """
        config, source = self.config.data, self.options.source
        try:
            if source is not None:
                config = dataclasses.replace(config, source=source)
            named, seed = source is not None, self.config.train.seed
            return open_batches(config, block_size, seed, self.tokenizer, named)
        except (UserError, ValueError) as error:
            raise UserError(str(error).replace("--data.source", "--source")) from None

    @cached_property
    def prompt_T(self) -> Tensor:
        """The tokens to look at: two at least, at most block_size of them and `MAX_TOKENS`.

        Raises:
            UserError: for a prompt of less.
        """
        block_size = self.config.model.block_size
        if self.options.prompt is not None:
            tokens = torch.from_numpy(self.tokenizer.encode(self.options.prompt).astype("int64"))
        elif self.copies and self.options.source is None:
            tokens = repeated(self.V, self.period(), 1)[0]
        else:
            tokens = next(self.batches(block_size).validation(1))[
                0, : min(block_size, PROMPT_TOKENS)
            ]
        longest = min(block_size, MAX_TOKENS)
        if len(tokens) > longest:
            note = f"note: of {len(tokens)} tokens only the first {longest} are shown"
            print(note, file=sys.stderr)
        if len(tokens[:longest]) < 2:
            raise UserError(
                "there is nothing to look back at: give a --prompt of two tokens or more"
            )
        return tokens[:longest]

    @property
    def window(self) -> int:
        """Tokens of a sequence that is measured."""
        return min(self.config.model.block_size, MAX_TOKENS)

    def sequences(self, count: int | None) -> Tensor:
        """(count, window + 1) or fewer, spread evenly over the validation split.

        Args:
            count: None for 32, or as many as `ENOUGH` allows.

        Raises:
            UserError: when there are not two of them.
        """
        model = self.config.model
        if count is None:
            each = self.window * flops_per_token(self.model) / 3  # forward only
            cuts = 2 * model.n_layer * model.n_head
            count = max(2, min(SEQUENCES, int(ENOUGH / (cuts * each))))
            if count < SEQUENCES:
                print(
                    f"note: {count} sequences of {self.window} tokens instead of {SEQUENCES}: to "
                    f"cut each head takes {cuts * each * count:.0e} FLOPs; see --sequences",
                    file=sys.stderr,
                )
        sequences = spread_sequences(self.batches(self.window), self.window, count)
        if len(sequences) < 2:
            raise UserError(
                "the validation split has fewer than two sequences; name a longer --source"
            )
        return sequences

    def layer(self, index: int) -> MultiHeadAttention:
        """Attention of a layer.

        Raises:
            UserError: when there is no such layer.
        """
        L = self.config.model.n_layer
        if index >= L:
            raise UserError(f"--layer {index}: the layers are 0 to {L - 1}")
        return blocks_of(self.model)[index].attn

    @property
    def longest_period(self) -> int:
        """The longest string that fits twice into the context, and has different tokens only."""
        return min(self.window // 2, self.V)

    def periods(self) -> list[int]:
        """Lengths of strings to copy: of a run on repeated strings inside and outside the range it
        was trained on; of others, the longest that fits and a half and a quarter of it."""
        data, half = self.config.data, self.window // 2
        wanted = [half // 4, half // 2, half]
        if self.copies:
            low, high = data.repeat_min_period, data.repeat_max_period
            wanted = [low // 2, low, (low + high) // 2, high, high + high // 4, high + high // 2]
        return sorted({period for period in wanted if 2 <= period <= self.longest_period})

    def period(self, asked: int | None = None) -> int:
        """The length that scores are measured at.

        Raises:
            UserError: when it does not fit twice into the context, or the vocabulary is too small.
        """
        longest = self.longest_period
        if longest < 2:
            raise UserError("copying needs a context of 4 tokens and a vocabulary of 2 at least")
        if asked is not None and asked > longest:
            raise UserError(
                f"--period {asked} must be from 2 to {longest}, to fit twice into the context"
            )
        data = self.config.data
        middle = (data.repeat_min_period + data.repeat_max_period) // 2 if self.copies else 32
        return asked or min(middle, longest)


def spread_sequences(batches: Batches, block_size: int, count: int) -> Tensor:
    """(count, block_size + 1) or fewer, spread evenly over the validation split."""
    full = sum(s.size(1) == block_size + 1 for s in batches.validation(1))  # all but the last
    if not full:
        return torch.empty(0, block_size + 1, dtype=torch.long)
    places = set(torch.linspace(0, full - 1, min(count, full)).round().long().tolist())
    return torch.cat([s for i, s in enumerate(batches.validation(1)) if i in places])
