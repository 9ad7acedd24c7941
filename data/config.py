"""Which text, as which tokens, in which splits."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.fields import STRICT, Count, Fraction


@dataclass(frozen=True, config=STRICT)
class DataConfig:
    """The text: where it comes from, and how it becomes tokens."""

    source: list[str] | str = "pydocs"
    """Text to train on: pydocs (the reference manual that comes with CPython), a file, a glob,
    hub:OWNER/NAME (a dataset of the Hugging Face Hub), or a task, whose sequences are generated:
    repeat, sink, markov, modular, flipflop, brackets, addition, recall (see docs/tasks.md). For
    several files, repeat the flag."""

    tokenizer: Literal["char", "byte", "bpe"] = "char"
    """Kind of tokens: characters, bytes of UTF-8, or subwords by byte-level BPE, as in GPT-2,
    learned from the text."""

    vocab_size: Annotated[int, Field(ge=257, le=60_000)] = 1024
    """For bpe: number of distinct tokens, including 256 bytes."""

    unknown: Literal["error", "skip"] = "error"
    """What to do with characters that the vocabulary of --init_from lacks: skip leaves them out,
    and the first lines count them."""

    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Fraction of the text for validation. The splits are training, validation and test, in this
    order."""

    test_fraction: Fraction = 0.0
    """Fraction of the text for the test split, which only --evaluate uses."""

    counting: bool = True
    """Count the n-grams of the training split, up to the order that predicts best, and compare the
    run with them. If false, only unigrams and bigrams are counted."""

    separator: str = ""
    """Text to insert between files, and between the rows of a Hub dataset."""

    hub_config: str = ""
    """Configuration of the Hub dataset, if it has several."""

    hub_split: str = "train"
    """Split of the Hub dataset; train+validation+test joins three splits."""

    hub_column: str = "text"
    """Column of the Hub dataset with the text."""

    hub_revision: str = "main"
    """Branch, tag or commit of the Hub dataset. A branch is downloaded once and kept; name a commit
    to fix the exact text."""

    repeat_vocab: Annotated[int, Field(ge=2, le=50_000)] = 64
    """For repeat: number of distinct characters."""

    repeat_min_period: Count = 8
    """For repeat: shortest period. Each sequence has its own random period."""

    repeat_max_period: Count = 32
    """For repeat: longest period."""

    task_kinds: Count | None = None
    """For a task: number of tokens (sink), states (markov), kinds of brackets (brackets) or keys
    (recall), or the modulus (modular). If omitted, that of the published experiment."""

    task_length: Count | None = None
    """For a task: number of digits (addition) or of pairs in a sequence (recall), or maximum depth
    (brackets)."""

    task_held_out: Fraction = 0.1
    """For modular and addition: fraction of the sums that only validation has."""

    task_ignored: Fraction = 0.5
    """For flipflop: fraction of the instructions that are i (ignore)."""

    task_order: Literal["highest", "lowest", "carry"] = "highest"
    """For addition: the digit of the answer that comes first; after the last carry, the lowest."""

    @property
    def unit(self) -> str:
        """The name of a token in units such as nats/char."""
        return "token" if self.tokenizer == "bpe" else self.tokenizer

    def __post_init__(self) -> None:
        if isinstance(self.source, list) and len(self.source) == 1:  # means the same
            object.__setattr__(self, "source", self.source[0])
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError("val_fraction and test_fraction leave nothing to train on")
