"""Which text, as which tokens, in which splits."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.fields import STRICT, Count, Fraction


@dataclass(frozen=True, config=STRICT)
class DataConfig:
    """The text: where it comes from, and how it becomes tokens."""

    source: list[str] | str = "pydocs"
    """pydocs (the reference manual that comes with CPython), a text file, a glob, hub:OWNER/NAME (a
    dataset on the Hugging Face Hub), or repeat (random strings repeated, for studying induction).
    Give the flag several times for several files."""

    tokenizer: Literal["char", "byte", "bpe"] = "char"
    """A token is a character of the text, a byte of its UTF-8 form, or a subword: bytes joined by
    byte-pair encoding, as in GPT-2, learned from the text."""

    vocab_size: Annotated[int, Field(ge=257, le=60_000)] = 1024
    """For bpe: number of distinct tokens, 256 of them bytes."""

    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """The text is split into training, validation and test, in this order; this is the fraction
    held out for validation."""

    test_fraction: Fraction = 0.0
    """The fraction held out for a test, which only --evaluate measures."""

    separator: str = ""
    """Put between files, and between the rows of a hub dataset."""

    hub_config: str = ""
    """Configuration of the hub dataset, if it has several."""

    hub_split: str = "train"
    """Split of the hub dataset; train+validation+test joins three."""

    hub_column: str = "text"
    """Column of the hub dataset that holds the text."""

    hub_revision: str = "main"
    """Branch, tag or commit of the hub dataset. A branch is fetched once and kept; name a commit
    to fix the exact text."""

    repeat_vocab: Annotated[int, Field(ge=2, le=50_000)] = 64
    """For repeat: number of distinct characters."""

    repeat_min_period: Count = 8
    """For repeat: shortest period; each sequence draws its own."""

    repeat_max_period: Count = 32
    """For repeat: longest period."""

    @property
    def unit(self) -> str:
        """What a token is called, as in nats/char."""
        return "token" if self.tokenizer == "bpe" else self.tokenizer

    def __post_init__(self) -> None:
        if isinstance(self.source, list) and len(self.source) == 1:  # means the same
            object.__setattr__(self, "source", self.source[0])
        if not self.source:
            raise ValueError("source is empty; name a file, pydocs, hub:OWNER/NAME or repeat")
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError("val_fraction and test_fraction leave nothing to train on")
