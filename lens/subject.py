"""The subject of a study: a run, and the text that it is measured on, all on the CPU."""

import dataclasses
import sys
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError, printable
from configs.config import STRICT
from configs.load import fields_of
from data.batches import Batches, open_batches
from data.sources import Problem, with_fixes
from data.tasks import SOURCES, TASKS, is_task
from data.tasks.repeat import Repeat
from data.tasks.task import Task
from lens.capture import LayerPass, capture
from lens.formula import check_attention
from lens.measure import repeated, spread
from training.checkpoint import SavedRun, open_run

PROMPT_TOKENS = 128  # of the validation text, if no prompt is given
# Of a prompt and of a measured sequence; longer attention maps are too large to save and to read.
MAX_TOKENS = 256
SEQUENCES = 32
ENOUGH = 3e13  # FLOPs for ablating each head once: minutes, on two cores

# A study has one flag for its text.
FIXES: dict[Problem, str] = {
    "absent": f"--source takes {SOURCES}",
    "changed": "to use it, give --source",
    "encoding": "convert it",
    "column": "save one of them as a .txt file",
    "size": "use a longer text",
}

AtLeastTwo = Annotated[int, Field(ge=2)]


@dataclass(frozen=True, config=STRICT)
class MeasureOptions:
    """What a `Subject` is made from, and how it is measured: flags that commands share."""

    source: list[str] | str | None = None
    """New location of the run's text, or another text to measure on. For several files, repeat the
    flag."""

    checkpoint: Literal["best", "last"] = "best"
    """Use the weights with the lowest validation loss (best) or of the last step (last)."""

    prompt: str | None = None
    """Text to study; if omitted, the beginning of the validation split or, for a run on repeated
    strings or another task, such a sequence."""

    sequences: AtLeastTwo | None = None
    """Number of evenly spaced validation sequences for scores and losses; if omitted 32, or fewer
    for a large model."""


# A command has some of these fields, with their help.
SHARED = fields_of(MeasureOptions)
Source = Annotated[list[str] | str | None, SHARED["source"]]
Checkpoint = Annotated[Literal["best", "last"], SHARED["checkpoint"]]
Prompt = Annotated[str | None, SHARED["prompt"]]
Sequences = Annotated[AtLeastTwo | None, SHARED["sequences"]]
Without = Annotated[
    str | None, Field(description="Heads to ablate in all measurements, such as L0H1,L1H0.")
]


class Subject:
    """A run, its prompt, and the text that it is measured on."""

    def __init__(
        self,
        word: str | None,
        options: Any,
        saved: SavedRun | None = None,
        numbers: bool = True,
    ) -> None:
        """
        Args:
            options: the flags of a command, source and checkpoint and, for `prompt_T`, prompt.
            saved: a run that is already open, instead of the one that the word names.
            numbers: see `check_attention`.

        Raises:
            UserError: for a run that cannot be opened, or that `check_attention` rejects.
        """
        if saved is None:
            saved = open_run(word, options.checkpoint)
            print(saved, file=sys.stderr)
        self.saved, self.options, self.run = saved, options, saved.path.parent
        self.config, self.tokenizer, self.model = saved.config, saved.tokenizer, saved.model()
        self.V = self.tokenizer.vocab_size
        self.window = min(self.config.model.block_size, MAX_TOKENS)  # tokens of a sequence
        # The longest string that fits twice into a sequence.
        self.longest_period = min(self.window // 2, self.V)
        check_attention(self.model, numbers)

    @cached_property
    def batches(self) -> Batches:
        """The text, in sequences of `window` tokens."""
        return open_text(self.saved, self.options.source, self.window)

    @property
    def text(self) -> str:
        """The name of the text, and whether the run was trained on another one."""
        return f"{printable(self.batches.corpus.source)}{other_text(self.saved, self.batches)}"

    @property
    def unit(self) -> str:
        """The unit of losses."""
        return f"nats/{self.tokenizer.unit}"

    def sequences(self, count: int | None) -> Tensor:
        """Choose (count, window + 1) or fewer, spread evenly over the validation split.

        Args:
            count: None for 32, or as many as `ENOUGH` allows.

        Raises:
            UserError: if there are fewer than two.
        """
        if count is None:
            passes = 2 * self.config.model.n_layer * self.config.model.n_head
            flops = 2 * passes * self.window * self.model.num_parameters()  # forward only
            count = max(2, min(SEQUENCES, int(ENOUGH / flops)))
        sequences = self.batches.validation_sequences(spread_places(self.batches, count))
        if len(sequences) < 2:
            raise UserError("the validation split needs 2 sequences; use a longer --source")
        return sequences

    def describe(self, sequences_BT: Tensor) -> str:
        """Say which sequences of the validation split were measured, and of which text."""
        return f"{self.counted(len(sequences_BT))} of {self.text}"

    def counted(self, count: int) -> str:
        """Say how many sequences of the validation split were measured."""
        total = self.batches.validation_tokens // self.window
        return f"{count:,} of {total:,} validation sequences of {self.window} tokens"

    @cached_property
    def prompt_T(self) -> Tensor:
        """The tokens to study: at least two, at most `window`.

        Raises:
            UserError: for a shorter prompt.
        """
        if self.options.prompt is not None:
            tokens = torch.from_numpy(self.tokenizer.encode(self.options.prompt).astype("int64"))
        elif self.trained_periods and self.options.source is None and (period := self.period()):
            tokens = repeated(self.V, period, 1)[0]
        else:
            batches = open_text(self.saved, self.options.source, self.config.model.block_size)
            tokens = next(batches.split("validation", 1))[0, :PROMPT_TOKENS]
        if len(tokens) < 2:
            raise UserError("--prompt must have at least 2 tokens")
        return tokens[: self.window]

    def layer(self, index: int) -> LayerPass:
        """Return the pass of the layer with this index over the prompt.

        Raises:
            UserError: if there is no such layer.
        """
        layers = capture(self.model, self.prompt_T[None]).layers
        check_index("layer", index, len(layers))
        return layers[index]

    @property
    def trained_periods(self) -> range:
        """Lengths of the random strings that the run was trained on; empty for other runs."""
        data = self.config.data
        kind = TASKS.get(str(data.source), Task)
        if not issubclass(kind, Repeat):
            return range(0)
        return kind(data, self.config.model.block_size).periods

    def period(self, asked: int | None = None) -> int | None:
        """Return the length of the strings for the scores; None if no string fits.

        Raises:
            UserError: if it does not fit twice into the context, or the vocabulary is too small.
        """
        trained, longest = self.trained_periods, self.longest_period
        if asked and asked > longest:
            raise UserError(
                f"--period {asked} exceeds {longest}: the tokens of a string are distinct, and it "
                f"must fit into the context twice"
            )
        period = asked or min(sum(trained) // len(trained) if trained else 32, longest)
        return period if period > 1 else None


@with_fixes(FIXES)
def open_text(saved: SavedRun, source: Source, block_size: int) -> Batches:
    """Open the run's text, or the text of --source, in sequences of `block_size`.

    Raises:
        UserError: if the text is missing or too short.
    """
    data, is_named = saved.config.data, source is not None
    if source is not None:
        data = dataclasses.replace(data, source=source)
    seed, text = saved.config.train.seed, saved.header.corpus
    return open_batches(data, block_size, seed, saved.tokenizer, saved=text, is_named=is_named)


def other_text(saved: SavedRun, batches: Batches) -> str:
    """Return what to say if the run was trained on another text, or another task, than this one."""
    own, now = saved.header.corpus, batches.corpus
    # The hash is unknown of an imported model.
    of_task, of_text = own.source == now.source, own.sha256 in ("", now.sha256)
    same = of_task if is_task(saved.config.data) else of_text
    return "" if same else " (not the text that the run was trained on; they may share parts)"


def check_index(flag: str, index: int, count: int) -> None:
    """Raise a UserError if the index given with a flag is not below `count`."""
    if index >= count:
        raise UserError(f"--{flag} {index} must be from 0 to {count - 1}")


def spread_places(batches: Batches, count: int) -> list[int]:
    """Choose the numbers of `count` or fewer validation sequences, spread evenly over the split."""
    return spread(count, batches.validation_tokens // batches.block_size)
