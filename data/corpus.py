"""Where text comes from, and the one path from any source to one file of tokens.

    source -> parts -> decoded chunks -> token ids -> cache/texts/<hash>/tokens.npy

The file is written once and read memory-mapped ever after. It is found again by an index of
what the source looked like (path, size and time of files; name and revision of hub sets) or,
failing that, by the hash of the text.
"""

import codecs
import functools
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from atomic import write_atomically
from data.config import DataConfig
from data.tokenizer import (
    MAX_CODE_POINT,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    code_points,
    load_tokenizer,
    smallest_unsigned,
)
from errors import UserError

CHUNK_BYTES = 1 << 22  # what is in memory of a text while it is tokenized


@dataclass(frozen=True)
class Corpus:
    """A tokenized text."""

    tokens: npt.NDArray[Any]
    """Token ids of the whole text, in the smallest unsigned type that fits, memory-mapped."""

    tokenizer: Tokenizer

    info: dict[str, Any]
    """What a run records of its text: source, sha256 of the bytes, characters, tokens, and the
    token that writing starts from."""


@dataclass(frozen=True)
class Part:
    """One file, or one hub set, or the embedded manual."""

    name: str
    read: Callable[[], Iterator[bytes]]
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """Parts of text in order, and what identifies them without reading them."""

    name: str
    parts: list[Part]
    identity: list[Any]
    separator: str


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
    if index.exists():  # it holds the name of an entry
        entry = cache / "texts" / Path(index.read_text(errors="replace")).name
        if (entry / "corpus.json").exists():
            return read_entry(entry, source)
    scan = scan_text(source, as_bytes=config.tokenizer == "byte")
    if tokenizer is None:
        tokenizer = ByteTokenizer() if config.tokenizer == "byte" else CharTokenizer(scan.chars)
    entry = cache / "texts" / f"{scan.sha256[:32]}-{fingerprint(tokenizer.to_dict())}"
    if not entry.exists():
        write_entry(entry, source, scan, tokenizer)
    corpus = read_entry(entry, source)
    index.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(index, entry.name.encode())
    return corpus


# --- sources -----------------------------------------------------------------------------------


def open_source(config: DataConfig) -> Source:
    """Find the text that the config names; reads nothing yet."""
    names = [config.source] if isinstance(config.source, str) else config.source
    if names == ["pydocs"]:
        return pydocs(config)
    if len(names) == 1 and names[0].startswith("hub:"):
        return hub(config, names[0].removeprefix("hub:"))
    paths = [path for name in names for path in find_files(name)]
    parts, identity = [], []
    for path in paths:
        stat = path.stat()
        if stat.st_size == 0:
            raise UserError(f"{path} is empty; name a file with text in it")
        parts.append(Part(str(path), functools.partial(read_file, path), stat.st_size))
        identity.append([str(path.absolute()), stat.st_size, stat.st_mtime_ns])
    return Source(", ".join(map(str, paths)), parts, identity, config.separator)


def find_files(name: str) -> list[Path]:
    """The files that a path or a glob names, in sorted order."""
    path = Path(name)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise UserError(f"{name} is a folder; name the files in it, for example '{name}/*.txt'")
    found = sorted(Path(match) for match in glob.glob(name, recursive=True))
    files = [match for match in found if match.is_file()]
    if not files:
        raise UserError(
            f"no text at {name}: --data.source takes a file, a glob, a list of files, pydocs, "
            f"hub:OWNER/NAME or repeat"
        )
    return files


def read_file(path: Path) -> Iterator[bytes]:
    """The bytes of a file in chunks, exactly as they are."""
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def pydocs(config: DataConfig) -> Source:
    """The reference manual behind Python's `help()`: every CPython carries it."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            "this Python comes without its manual (pydoc_data.topics); "
            "name a text with --data.source FILE"
        ) from None
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    version = sys.version.split()[0]
    part = Part(f"the manual of Python {version}", lambda: iter([text]), len(text))
    identity = ["pydocs", version, hashlib.sha256(text).hexdigest()]
    return Source(part.name, [part], identity, "")


def hub(config: DataConfig, name: str) -> Source:
    """A text set on the Hugging Face hub, fetched and cached by `datasets`.

    Raises:
        UserError: for a name that is none there, and so might be taken for a folder here.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or ".." in name:
        raise UserError(f"hub:{name} is no name on the hub; it has the form hub:OWNER/NAME")

    def rows() -> Iterator[bytes]:
        import datasets  # here, because importing it takes a second that a second start saves

        print(f"fetching hub:{name}; without a network this takes a while to fail", file=sys.stderr)
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each retry is a line there
        try:
            rows = datasets.load_dataset(
                name,
                config.hub_config or None,
                split=config.hub_split,
                revision=config.hub_revision,
            )
        except Exception as error:  # the kinds of failure are many, and none is ours to mend
            reason = " ".join(str(error).split())
            raise UserError(
                f"could not load hub:{name} ({type(error).__name__}: {reason}); without a network "
                f"or an account, put the text in a file and pass --data.source FILE"
            ) from error
        if config.hub_column not in rows.column_names:
            raise UserError(
                f"hub:{name} has no column {config.hub_column!r}; --data.hub_column can be "
                f"{', '.join(rows.column_names)}"
            )
        separator = config.separator.encode()
        chunk = bytearray()
        for number, row in enumerate(rows):
            text = row[config.hub_column]
            if not isinstance(text, str):
                raise UserError(
                    f"hub:{name}, row {number}: {config.hub_column} is {text!r}, not text; "
                    f"name a column of text with --data.hub_column"
                )
            chunk += (separator if number else b"") + text.encode()
            if len(chunk) >= CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
        yield bytes(chunk)

    identity = [
        "hub",
        name,
        config.hub_config,
        config.hub_split,
        config.hub_column,
        config.hub_revision,
    ]
    part = Part(f"hub:{name}", rows)
    words = [part.name, config.hub_config, config.hub_split, "at", config.hub_revision]
    return Source(" ".join(filter(None, words)), [part], identity, config.separator)


# --- from bytes to tokens ----------------------------------------------------------------------


@dataclass(frozen=True)
class Scan:
    """What one reading of a text tells: its hash, length and alphabet."""

    sha256: str
    tokens: int
    chars: str


def read_chunks(source: Source, as_bytes: bool, doing: str) -> Iterator[tuple[bytes, str]]:
    """Each chunk of the text as bytes and, unless `as_bytes`, as the characters they spell.

    A character cut by the end of a chunk is spelled in the next one.
    """
    sizes = [part.size for part in source.parts if part.size is not None]
    total = sum(sizes) if len(sizes) == len(source.parts) else None
    quiet = total is not None and total < 4 * CHUNK_BYTES
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


def scan_text(source: Source, as_bytes: bool) -> Scan:
    """Read a text once, in bounded memory."""
    digest, tokens = hashlib.sha256(), 0
    seen = np.zeros(MAX_CODE_POINT + 1, dtype=bool)
    for chunk, text in read_chunks(source, as_bytes, "reading"):
        digest.update(chunk)
        tokens += len(chunk) if as_bytes else len(text)
        seen[code_points(text)] = True
    if tokens == 0:
        raise UserError(f"{source.parts[0].name} has no text in it")
    return Scan(digest.hexdigest(), tokens, "".join(map(chr, np.flatnonzero(seen))))


def write_entry(entry: Path, source: Source, scan: Scan, tokenizer: Tokenizer) -> None:
    """Read the text again and write its tokens, whole or not at all."""
    as_bytes = isinstance(tokenizer, ByteTokenizer)
    scratch = entry.with_name(f".writing-{os.getpid()}-{entry.name}")
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        dtype = smallest_unsigned(tokenizer.vocab_size)
        counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        characters, written, crc, digest = 0, 0, 0, hashlib.sha256()
        with open(scratch / "tokens.npy", "wb") as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (scan.tokens,)}
            np.lib.format.write_array_header_1_0(file, header)
            for chunk, text in read_chunks(source, as_bytes, "tokenizing"):
                digest.update(chunk)
                ids = np.frombuffer(chunk, np.uint8) if as_bytes else tokenizer.encode(text)
                file.write(ids.tobytes())
                crc = zlib.crc32(ids.tobytes(), crc)
                counts += np.bincount(ids, minlength=len(counts))
                characters += tokenizer.count_characters(ids)
                written += len(ids)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != scan.sha256 or written != scan.tokens:
            raise UserError(f"{source.parts[0].name} changed while it was read; start again")
        info = {
            "sha256": scan.sha256,
            "characters": characters,
            "tokens": scan.tokens,
            "start_token": start_token(tokenizer, counts),
        }
        description = {"info": info, "tokenizer": tokenizer.to_dict(), "crc32": crc}
        write_atomically(scratch / "corpus.json", json.dumps(description, indent=1).encode())
        try:
            os.rename(scratch, entry)
        except OSError:
            if not entry.exists():  # where it does, another process wrote the same meanwhile
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def start_token(tokenizer: Tokenizer, counts: npt.NDArray[np.int64]) -> int:
    """Where writing starts when there is no prompt: a newline, or else the commonest token."""
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
    except (
        *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
    ) as error:
        raise UserError(
            f"the tokens kept in {entry} are damaged ({error}); delete that folder"
        ) from error


def fingerprint(plain: Any) -> str:
    """A short name for plain data."""
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]
