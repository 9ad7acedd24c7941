"""Text -> one file of tokens.

    chunks of text -> token ids -> cache/tokens/<hash>/tokens.bin

A text is read once to find its characters or subwords, and once to write its tokens, in bounded
memory. Then the file is memory-mapped. The hash identifies the source and the kind of tokens.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from pydantic.dataclasses import dataclass

from common.atomic import atomic_folder
from common.errors import UserError, as_user_error
from common.progress import progress
from configs.config import STRICT, DataConfig, Natural
from data.sources import Source, cache_folder, find_source
from data.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    load_tokenizer,
    train_bpe,
)

ENTRY = 3  # raise it when a text is read in another way, or its entry of the cache holds more


@dataclass(frozen=True, config=STRICT)
class Corpus:
    """What a run records of its text."""

    source: str
    """The name of the text, for messages."""

    start_token: Natural
    """The token that generation starts from without a prompt."""

    sha256: str = ""
    """Hash of the bytes; empty for generated data."""

    parts: tuple[Natural, ...] = ()
    """Number of tokens of each file. Empty for generated data."""

    shortest_end: Natural = 0
    """The end of each file is held out. Of the files whose end would have fewer tokens than this,
    whole files are, if there are enough."""

    is_utf8: bool = True
    """Whether the bytes are UTF-8. If not, their characters are unknown, and each byte counts as
    one."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(self.parts)


class Text(NamedTuple):
    """A tokenized text."""

    tokens: npt.NDArray[Any]
    """Token ids of the whole text, in the smallest unsigned type that fits, memory-mapped."""

    tokenizer: Tokenizer
    corpus: Corpus

    entry: Path
    """The folder of the cache in which the tokens are."""


def load_text(config: DataConfig, tokenizer: Tokenizer | None = None, extend: bool = False) -> Text:
    """Return the text of the config as tokens, from the cache if it is there.

    Args:
        tokenizer: encode with this tokenizer instead of one made for the text.
        extend: add the characters that this tokenizer lacks.

    Raises:
        UserError: for a source that is missing, empty, not UTF-8, or not reachable; for characters
            that are not in the vocabulary of `tokenizer`; for a damaged cache.
    """
    source = find_source(config)
    if extend and isinstance(tokenizer, CharTokenizer):
        new = {*characters_of(source)} - {*tokenizer.chars}
        tokenizer = CharTokenizer(tokenizer.chars + "".join(sorted(new)))
    entry = find_entry(config, source, tokenizer)
    if not entry.exists():
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            if not entry.exists():  # another process may have just made it
                make_entry(entry, source, tokenizer or make_tokenizer(config, source))
    return read_entry(entry, source)


def find_entry(config: DataConfig, source: Source, tokenizer: Tokenizer | None) -> Path:
    """Return the cache entry of a text, which may not exist: the entry with the text's own
    tokenizer, or, if `tokenizer` is another one, an entry for both."""
    folder = cache_folder() / "tokens"
    vocab_size = config.vocab_size if config.tokenizer == "bpe" else None
    entry = folder / fingerprint([source.identity, config.tokenizer, vocab_size])
    if tokenizer is None or (entry.exists() and read_entry(entry, source).tokenizer == tokenizer):
        return entry
    return folder / fingerprint([source.identity, tokenizer.to_dict()])


def fingerprint(plain: list[Any]) -> str:
    """Return a short name for plain data."""
    return hashlib.sha256(json.dumps([ENTRY, *plain]).encode()).hexdigest()[:16]


def make_tokenizer(config: DataConfig, source: Source) -> Tokenizer:
    """Make the tokenizer that the config names, for a text."""
    if config.tokenizer == "byte":
        return ByteTokenizer()
    if config.tokenizer == "bpe":
        return train_bpe(read_text(source), config.vocab_size)
    return CharTokenizer(characters_of(source))


def characters_of(source: Source) -> str:
    """Return the distinct characters of a text, sorted."""
    return "".join(sorted(set().union(*read_text(source))))


def make_entry(entry: Path, source: Source, tokenizer: Tokenizer) -> None:
    """Write an entry of the cache, complete or absent: the tokens and their description."""
    digest, lengths, is_utf8 = hashlib.sha256(), list[int](), True
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for left in entry.parent.glob(f".writing-{entry.name}-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with atomic_folder(entry) as made:
        with open(made / "tokens.bin", "wb") as file:
            for part in source.parts:
                lengths.append(0)
                what = f"tokenizing {source.name}"
                for text in progress(part(tokenizer.errors), what, source.is_long):
                    tokens = tokenizer.encode(text)
                    file.write(tokens.data)
                    lengths[-1] += len(tokens)
                    counts += np.bincount(tokens, minlength=len(counts))
                    content = text.encode(errors=tokenizer.errors)
                    digest.update(content)
                    is_utf8 &= content == text.encode(errors="ignore")
        if not counts.any():
            raise UserError(f"{source.name} is empty; choose another text")
        info = {
            "sha256": digest.hexdigest(),
            "parts": lengths,
            "start_token": tokenizer.start_token(counts),
            "is_utf8": is_utf8,
        }
        plain = {"info": info, "tokenizer": tokenizer.to_dict()}
        (made / "corpus.json").write_text(json.dumps(plain))


def read_text(source: Source, errors: str = "strict") -> Iterator[str]:
    """Read a text in chunks, and show the progress."""
    for part in source.parts:
        yield from progress(part(errors), f"reading {source.name}", source.is_long)


def hash_text(source: Source, errors: str) -> str:
    """Return the hash of a text's bytes, as a `Corpus` has it."""
    digest = hashlib.sha256()
    for text in read_text(source, errors):
        digest.update(text.encode(errors=errors))
    return digest.hexdigest()


def read_entry(entry: Path, source: Source) -> Text:
    """Read an entry of the cache."""
    with as_user_error(f"{entry}, which you can delete,"):
        plain = json.loads((entry / "corpus.json").read_text())
        tokenizer = load_tokenizer(plain["tokenizer"])
        tokens = np.memmap(entry / "tokens.bin", np.min_scalar_type(tokenizer.vocab_size - 1), "r")
        info = plain["info"]
        corpus = Corpus(source.name, **info | {"parts": tuple(info["parts"])})
        if corpus.tokens != len(tokens):
            raise ValueError("tokens.bin has the wrong size")
        return Text(tokens, tokenizer, corpus, entry)
