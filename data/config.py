"""Which text, as which tokens, split where."""

import dataclasses
import os
from dataclasses import dataclass
from typing import Literal

from common.errors import require_at_least

MOST_REPEAT_CHARACTERS = 50_000  # so many letters follow U+0100 before the surrogates, no letters


@dataclass(frozen=True)
class DataConfig:
    """The text: where it comes from, and how it becomes tokens."""

    source: list[str] | str = "pydocs"
    """pydocs (Python's reference manual, carried by every Python), a text file, a glob or a list
    of files, hub:OWNER/NAME (a text set on the Hugging Face hub), or repeat (random strings
    repeated, for studying induction)."""

    tokenizer: Literal["char", "byte"] = "char"
    """A token is a character of the text, or a byte of its UTF-8 form."""

    val_fraction: float = 0.1
    """Share of the text, after what is trained on, kept for validation."""

    test_fraction: float = 0.0
    """Share of the text, after that, which training never looks at: --evaluate measures it."""

    separator: str = ""
    """Put between files, and between the rows of a hub set."""

    hub_config: str = ""
    """Configuration of the hub set, where it has several."""

    hub_split: str = "train"
    """Split of the hub set; train+validation+test joins three."""

    hub_column: str = "text"
    """Column of the hub set that holds the text."""

    hub_revision: str = "main"
    """Branch, tag or commit of the hub set. A branch is fetched once and kept; name a commit where
    it must be that very text."""

    repeat_vocab: int = 64
    """For repeat: number of different characters."""

    repeat_min_period: int = 8
    """For repeat: shortest period; each window draws its own."""

    repeat_max_period: int = 32
    """For repeat: longest period."""

    cache_dir: str = "cache"
    """Folder where tokenized text is kept for the next start."""

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError(
                "--data.source is empty; name a file, pydocs, hub:OWNER/NAME or repeat"
            )
        if not 0 < self.val_fraction < 1:
            raise ValueError(
                f"--data.val_fraction must be above 0 and below 1, got {self.val_fraction}"
            )
        if not 0 <= self.test_fraction < 1 - self.val_fraction:
            raise ValueError(
                f"--data.test_fraction must be at least 0 and leave something to train on beside "
                f"--data.val_fraction {self.val_fraction}, got {self.test_fraction}"
            )
        for name, value in dataclasses.asdict(self).items():
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and not is_text(text):
                    raise ValueError(f"--data.{name} has characters that no text has: {text!r}")
        require_at_least(2, data__repeat_vocab=self.repeat_vocab)
        if self.repeat_vocab > MOST_REPEAT_CHARACTERS:
            raise ValueError(
                f"--data.repeat_vocab must be at most {MOST_REPEAT_CHARACTERS:,}, "
                f"got {self.repeat_vocab}"
            )
        require_at_least(1, data__repeat_min_period=self.repeat_min_period)
        if not self.repeat_min_period <= self.repeat_max_period <= self.repeat_vocab:
            raise ValueError(
                f"--data.repeat_min_period {self.repeat_min_period}, --data.repeat_max_period "
                f"{self.repeat_max_period} and --data.repeat_vocab {self.repeat_vocab} must be in "
                f"ascending order: a period is that many different characters"
            )


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8 and be part of a file's name."""
    try:
        return b"\0" not in os.fsencode(text) and bool(text.encode() or True)
    except UnicodeEncodeError:
        return False
