"""The one path from any text to one file of tokens.

    chunks of bytes -> characters -> token ids -> cache/texts/<hash>/tokens.npy

The file is written once and read memory-mapped ever after. It is found again by an index of
what the source looked like (path, size and time of files; name and revision of hub sets). One
that was interrupted is taken up where it was last put on the disk.
"""

import codecs
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from common.atomic import (
    keep_others_out,
    naming,
    read_journal,
    sync,
    write_atomically,
    write_journal,
)
from common.errors import UserError
from data.config import DataConfig
from data.sources import PIECE_BYTES, Source, fingerprint, open_source
from data.tokenizer import (
    MAX_CODE_POINT,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    code_points,
    load_tokenizer,
    smallest_unsigned,
)

QUIET_BYTES = 1 << 24  # a text so small is read before a progress bar says anything
# What reading a file raises that is not what was written.
NOT_OURS = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
START_TOKENS = 10_000_000  # among so many, at most, the token to start from is looked for


@dataclass(frozen=True)
class Corpus:
    """A tokenized text."""

    tokens: npt.NDArray[Any]
    """Token ids of the whole text, in the smallest unsigned type that fits, memory-mapped."""

    tokenizer: Tokenizer

    info: dict[str, Any]
    """What a run records of its text: source, sha256 of the bytes, characters, tokens, and the
    token that writing starts from."""


def load_corpus(config: DataConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """The text of the config as tokens, from the cache where it is there already.

    Args:
        tokenizer: encode with this one instead of one made for the text.

    Raises:
        UserError: for a source that is missing, empty, not UTF-8, out of reach, or that has
            characters which `tokenizer` does not know.
    """
    source = open_source(config)
    cache = Path(config.cache_dir)
    vocabulary = config.tokenizer if tokenizer is None else fingerprint(tokenizer.to_dict())
    index = cache / "index" / fingerprint([source.identity, source.separator, vocabulary])
    entry = find_entry(index)
    if entry is None:
        index.parent.mkdir(parents=True, exist_ok=True)
        with keep_others_out(index, f"reads {source.parts[0].name}"):
            entry = find_entry(index)  # another process may have made it meanwhile
            if entry is None:
                entry = make_entry(cache, config, source, tokenizer, index.name)
                write_atomically(index, entry.name.encode())
    return read_entry(entry, source)


def find_entry(index: Path) -> Path | None:
    """The folder of tokens that an index names, if there is one."""
    if not index.exists():
        return None
    entry = index.parent.parent / "texts" / Path(index.read_text(errors="replace")).name
    return entry if (entry / "corpus.json").exists() else None


# --- from bytes to tokens ----------------------------------------------------------------------


@dataclass
class Half:
    """How far a text is prepared; on the disk beside what has been written."""

    chars: str = ""
    """Its different characters, once they are known, for tokens that are characters."""

    tokenized: int = 0
    """Bytes whose tokens are written."""

    sha256: str = hashlib.sha256().hexdigest()
    """Of those bytes."""

    crc32: int = 0
    """Of their tokens."""

    tokens: int = 0

    characters: int = 0


def make_entry(
    cache: Path, config: DataConfig, source: Source, tokenizer: Tokenizer | None, key: str
) -> Path:
    """Read a text and write its tokens into a folder of the cache, whole or not at all.

    Interrupted, it goes on from what is in cache/texts/.half-<key> when it is called again.
    """
    texts = cache / "texts"
    scratch = texts / f".half-{key}"
    scratch.mkdir(parents=True, exist_ok=True)
    for left in scratch.glob(".writing-*"):
        left.unlink()
    journal = scratch / "half.json"
    half = Half(**read_journal(journal))
    try:
        if tokenizer is None and config.tokenizer == "byte":
            tokenizer = ByteTokenizer()
        elif tokenizer is None:
            half.chars = half.chars or find_characters(source)
            tokenizer = CharTokenizer(half.chars)
        write_tokens(source, tokenizer, half, journal)
        if half.tokens == 0:
            raise UserError(f"{source.parts[0].name} has no text in it")
        refuse_changed(config, source)
    except UserError:
        shutil.rmtree(scratch)  # of no use, as the text has to be another one
        refuse_changed(config, source)  # it may explain what else is wrong
        raise
    info = {
        "sha256": half.sha256,
        "characters": half.characters,
        "tokens": half.tokens,
        "start_token": start_token(tokenizer, np.load(scratch / "tokens.npy", mmap_mode="r")),
    }
    description = {"info": info, "tokenizer": tokenizer.to_dict(), "crc32": half.crc32}
    write_atomically(scratch / "corpus.json", json.dumps(description, indent=1).encode())
    journal.unlink(missing_ok=True)
    entry = texts / f"{half.sha256[:32]}-{fingerprint(tokenizer.to_dict())}"
    try:
        os.rename(scratch, entry)
    except OSError:
        if not entry.exists():  # where it does, the same text was there under another name
            raise
        shutil.rmtree(scratch)
    return entry


def read_chunks(source: Source, as_bytes: bool, doing: str) -> Iterator[tuple[bytes, str]]:
    """Each chunk of the text as bytes and, unless `as_bytes`, as the characters they spell.

    A character cut by the end of a chunk is spelled in the next one.
    """
    sizes = [part.size for part in source.parts if part.size is not None]
    total = sum(sizes) if len(sizes) == len(source.parts) else None
    quiet = total is not None and total < QUIET_BYTES
    with tqdm(
        total=total, desc=doing, unit="B", unit_scale=True, leave=False, disable=quiet or None
    ) as bar:
        for number, part in enumerate(source.parts):
            if number and source.separator:
                yield source.separator.encode(), source.separator
            decoder = codecs.getincrementaldecoder("utf-8")()
            done = 0
            for chunk in part.read():
                yield chunk, "" if as_bytes else decode(decoder, chunk, part.name, done)
                done += len(chunk)
                bar.update(len(chunk))
            if not as_bytes:
                decode(decoder, b"", part.name, done, final=True)


def decode(
    decoder: codecs.IncrementalDecoder, chunk: bytes, name: str, done: int, final: bool = False
) -> str:
    """The characters that `chunk`, after `done` bytes, completes."""
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        where = done - pending + error.start
        raise UserError(
            f"{name} is not UTF-8 text: byte {where} is 0x{error.object[error.start]:02x}; "
            f"convert it to UTF-8, or read it as it is with --data.tokenizer byte"
        ) from None


def refuse_changed(config: DataConfig, source: Source) -> None:
    """Refuse a text that looks otherwise than when it was opened."""
    if open_source(config).identity != source.identity:
        raise changed(source)


def changed(source: Source) -> UserError:
    """What to say of a text that is not what it was."""
    return UserError(f"{source.parts[0].name} changed while it was read; start again")


def find_characters(source: Source) -> str:
    """Every different character of a text, in order. Soon done, so an interrupted one starts anew.

    In most texts little is left without those letters of ASCII that are known already. Where it is
    not UTF-8, the rest is not looked at: whoever decodes the whole will come to that place too.
    """
    seen = np.zeros(MAX_CODE_POINT + 1, dtype=bool)
    decoder = codecs.getincrementaldecoder("utf-8")()
    with suppress(UnicodeDecodeError):
        for chunk, _ in read_chunks(source, True, "finding characters"):
            known = np.flatnonzero(seen[:128]).astype(np.uint8).tobytes()
            seen[code_points(decoder.decode(chunk.translate(None, known)))] = True
    return "".join(map(chr, np.flatnonzero(seen)))


def write_tokens(source: Source, tokenizer: Tokenizer, half: Half, journal: Path) -> None:
    """Read a text through and write its tokens beside the journal."""
    as_bytes = isinstance(tokenizer, ByteTokenizer)
    dtype = smallest_unsigned(tokenizer.vocab_size)
    path = journal.with_name("tokens.npy")
    path.touch()
    digest, size = hashlib.sha256(), path.stat().st_size
    done, saved = 0, half.tokenized
    with naming(path), open(path, "r+b") as file:
        write_header(file, dtype, half.tokens)
        end = file.tell() + half.tokens * dtype.itemsize
        if saved and size < end:
            raise UserError(f"{path} is damaged; start again")
        file.seek(file.truncate(end))
        for chunk, text in read_chunks(source, as_bytes, "tokenizing"):
            digest.update(chunk)
            done += len(chunk)
            if done - len(chunk) < saved:  # its tokens are there already
                if done > saved or (done == saved and digest.hexdigest() != half.sha256):
                    raise changed(source)
                continue
            ids = np.frombuffer(chunk, np.uint8) if as_bytes else tokenizer.encode(text)
            file.write(ids.data)
            half.crc32 = zlib.crc32(ids.data, half.crc32)
            half.characters += tokenizer.count_characters(ids)
            half.tokens += len(ids)
            if done - half.tokenized >= PIECE_BYTES:
                half.tokenized, half.sha256 = done, digest.hexdigest()
                sync(file)
                write_journal(journal, asdict(half))
        if done < saved:
            raise changed(source)
        half.tokenized, half.sha256 = done, digest.hexdigest()
        file.seek(0)
        write_header(file, dtype, half.tokens)
        sync(file)


def write_header(file: IO[bytes], dtype: np.dtype[Any], tokens: int) -> None:
    """NumPy's header; it leaves room for any number, so that its length is always the same."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(file, header)


def start_token(tokenizer: Tokenizer, tokens: npt.NDArray[Any]) -> int:
    """Where writing starts when there is no prompt: a newline, or else the commonest token."""
    V = tokenizer.vocab_size
    counts = np.bincount(np.minimum(tokens[:START_TOKENS], V - 1), minlength=V)
    newlines = [i for i in np.flatnonzero(counts) if tokenizer.decode([int(i)]) == "\n"]
    return int(newlines[0] if newlines else counts.argmax())


def read_entry(entry: Path, source: Source) -> Corpus:
    """Map a token file that is there already, whichever source it was once made from."""
    try:
        description = json.loads((entry / "corpus.json").read_text())
        tokenizer = load_tokenizer(description["tokenizer"])
        tokens = np.load(entry / "tokens.npy", mmap_mode="r", allow_pickle=False)
        info, dtype = description["info"], smallest_unsigned(tokenizer.vocab_size)
        if tokens.dtype != dtype or tokens.shape != (info["tokens"],):
            raise ValueError("their type or number is not what was written")
        if zlib.crc32(tokens.data) != description["crc32"]:
            raise ValueError("they are not what was written")
        if (
            type(info["start_token"]) is not int
            or not 0 <= info["start_token"] < tokenizer.vocab_size
        ):
            raise ValueError("there is no token to start from")
        return Corpus(tokens, tokenizer, {"source": source.name} | info)
    except NOT_OURS as error:
        raise UserError(
            f"the tokens kept in {entry} are damaged ({error}); delete that folder"
        ) from error
