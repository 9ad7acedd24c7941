"""From any text to one file of tokens.

    chunks of bytes -> characters -> token ids -> cache/tokens/<hash>/tokens.bin

A text is read once to find its characters, where tokens are characters, and once to write its
tokens, in memory that does not grow with it. The file is memory-mapped ever after; its hash is
that of what identifies the source.
"""

import codecs
import hashlib
import itertools
import json
import os
import shlex
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from tqdm import tqdm

from common.atomic import sync, write_atomically
from common.errors import UserError
from data.bpe import train_bpe
from data.config import DataConfig
from data.sources import Part, Source, cache_folder, fingerprint, open_source
from data.tokenizer import (
    MAX_CODE_POINT,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    code_points,
    load_tokenizer,
)

START_TOKENS = 10_000_000  # the token to start from is chosen among the first of so many


@dataclass(frozen=True)
class Corpus:
    """A tokenized text."""

    tokens: npt.NDArray[Any]
    """Token ids of the whole text, in the smallest unsigned type that fits, memory-mapped."""

    tokenizer: Tokenizer

    info: dict[str, Any]
    """What a run records of its text: source, sha256 of the bytes, characters, tokens, and the
    token that generation starts from."""


def load_corpus(
    config: DataConfig, tokenizer: Tokenizer | None = None, named: bool = True
) -> Corpus:
    """Return the text of the config as tokens, from the cache if it is there.

    Args:
        tokenizer: encode with this one instead of one made for the text.
        named: whether the user named the text. One that only the header of a saved run names is
            taken from the cache alone: such a header could name any file here, or a download.

    Raises:
        UserError: for a source that is missing, empty, not UTF-8, out of reach, or changed while
            it is read; for characters that `tokenizer` does not know; for a damaged cache.
    """
    source, cache = open_source(config), cache_folder()
    kind = [config.tokenizer] + ([config.vocab_size] if config.tokenizer == "bpe" else [])
    entry = cache / "tokens" / fingerprint([source.identity, *kind])
    if tokenizer is not None:  # that of the text, or another run's
        if entry.exists() and (corpus := read_entry(entry, source)).tokenizer == tokenizer:
            return corpus
        entry = cache / "tokens" / fingerprint([source.identity, tokenizer.to_dict()])
    if not entry.exists():
        if not named and config.source not in ("pydocs", ["pydocs"]):
            names = [config.source] if isinstance(config.source, str) else config.source
            flags = " ".join(f"--data.source {shlex.quote(name)}" for name in names)
            raise UserError(
                f"only the saved run names {source.name}, of which there are no tokens in "
                f"{cache}; to read it, pass {flags}"
            )
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            if not entry.exists():  # another process may have made it meanwhile
                make_entry(config, source, tokenizer, entry)
    return read_entry(entry, source)


def make_entry(
    config: DataConfig, source: Source, tokenizer: Tokenizer | None, entry: Path
) -> None:
    """Write an entry of the cache, whole or not at all: the tokens of a text, and what describes
    them."""
    made = Path(tempfile.mkdtemp(prefix="making-", dir=entry.parent))
    try:
        write_entry(config, source, tokenizer, made)
        os.rename(made, entry)
    except OSError as error:  # a full disk names no file
        error.filename = error.filename or str(made)
        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_entry(
    config: DataConfig, source: Source, tokenizer: Tokenizer | None, made: Path
) -> None:
    """Write the files of an entry into an empty folder."""
    try:
        if tokenizer is None and config.tokenizer == "byte":
            tokenizer = ByteTokenizer()
        elif tokenizer is None and config.tokenizer == "bpe":
            texts = (text for _, text in read_text(source, "strict", "finding sub-words"))
            tokenizer = train_bpe(texts, config.vocab_size)
        elif tokenizer is None:
            tokenizer = CharTokenizer(find_characters(source))
        description = write_tokens(source, tokenizer, made / "tokens.bin")
    finally:
        if open_source(config).identity != source.identity:  # which explains any other error
            raise UserError(f"{source.parts[0].name} changed while it was read; start again")
    description["fingerprint"] = fingerprint(description)
    write_atomically(made / "corpus.json", json.dumps(description, indent=1).encode())


def find_characters(source: Source) -> str:
    """Every different character of a text, in order.

    ASCII characters that are known already are deleted before decoding, which leaves little of
    most texts. What is not UTF-8 is ignored: `read_text` will come to that place too.
    """
    seen = np.zeros(MAX_CODE_POINT + 1, dtype=bool)
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    for _, chunk in read_chunks(source, "finding characters"):
        known = np.flatnonzero(seen[:128]).astype(np.uint8).tobytes()
        seen[code_points(decoder.decode(chunk.translate(None, known), final=not chunk))] = True
    return "".join(map(chr, np.flatnonzero(seen)))


def write_tokens(source: Source, tokenizer: Tokenizer, path: Path) -> dict[str, Any]:
    """Write the tokens of a text into a file, and describe it for `read_entry`."""
    digest, crc32, characters, tokens = hashlib.sha256(), 0, 0, 0
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    errors = "surrogateescape" if isinstance(tokenizer, ByteTokenizer) else "strict"
    held = ""  # the end of a chunk, whose tokens depend on what follows
    with open(path, "wb") as file:
        for chunk, text in read_text(source, errors):
            text = held + text
            cut = tokenizer.cut(text)
            text, held = text[:cut], text[cut:]
            ids = tokenizer.encode(text)
            file.write(ids.data)
            crc32 = zlib.crc32(ids.data, crc32)
            digest.update(chunk)
            characters += len(text)
            if tokens < START_TOKENS:
                counts += np.bincount(ids, minlength=tokenizer.vocab_size)
            tokens += len(ids)
        sync(file)
    if tokens == 0:
        raise UserError(f"{source.name} is empty; name a source with text in it")
    newlines = [i for i in np.flatnonzero(counts) if tokenizer.decode([int(i)]) == "\n"]
    info = {
        "sha256": digest.hexdigest(),
        "characters": characters,
        "tokens": tokens,
        "start_token": int(newlines[0] if newlines else counts.argmax()),
    }
    return {"info": info, "tokenizer": tokenizer.to_dict(), "crc32": crc32}


def read_text(
    source: Source, errors: str, doing: str = "tokenizing"
) -> Iterator[tuple[bytes, str]]:
    """Each chunk of a text, and the characters that end in it.

    Raises:
        UserError: naming the first byte that is not UTF-8, where `errors` is "strict".
    """
    decoder, done = codecs.getincrementaldecoder("utf-8")(errors), 0
    for part, chunk in read_chunks(source, doing):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            place = done + len(chunk) - len(error.object) + error.start
            raise UserError(
                f"{part.name} is not UTF-8 text: byte {place} is "
                f"0x{error.object[error.start]:02x}; convert it to UTF-8, or read it as it is "
                f"with --data.tokenizer byte"
            ) from None
        yield chunk, text
        done = done + len(chunk) if chunk else 0


def read_chunks(source: Source, doing: str) -> Iterator[tuple[Part, bytes]]:
    """Each chunk of a text and the part that it is of; an empty one ends a part."""
    total = sum(part.size for part in source.parts) or None
    with tqdm(
        total=total, desc=doing, unit="B", unit_scale=True, leave=False, delay=0.5, disable=None
    ) as bar:
        for part in source.parts:
            for chunk in itertools.chain(part.read(), [b""]):
                yield part, chunk
                bar.update(len(chunk))


def read_entry(entry: Path, source: Source) -> Corpus:
    """Map a token file, whichever source it was once made from."""
    paths = entry / "corpus.json", entry / "tokens.bin"
    try:
        if not all(path.is_file() for path in paths):  # a pipe would keep us waiting
            raise ValueError("a file is missing")
        description = json.loads(paths[0].read_text())
        tokenizer = load_tokenizer(description["tokenizer"])
        tokens = np.memmap(paths[1], tokenizer.encode("").dtype, "r")
        whole = description.pop("fingerprint") == fingerprint(description)
        if not whole or description["crc32"] != zlib.crc32(tokens.data):
            raise ValueError("they are not what was written")
        return Corpus(tokens, tokenizer, {"source": source.name} | description["info"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"the tokens kept in {entry} are damaged ({error}); delete that folder"
        ) from error
