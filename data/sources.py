"""Where text comes from: files, a set on the hub, or the manual that Python carries.

    config -> source -> parts -> chunks of bytes

Nothing is read before it is asked for. A source knows itself again without being read: by path,
size and time of files, by name and revision of a hub set.
"""

import functools
import glob
import hashlib
import itertools
import json
import logging
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from common.atomic import keep_others_out, naming, read_journal, sync, write_journal
from common.errors import UserError
from data.config import DataConfig

CHUNK_BYTES = (
    1 << 17
)  # of a text in memory at once: what is made of it fits a cache, and is soon reused
PIECE_BYTES = 1 << 26  # after so many more, what was done is put on the disk


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


def open_source(config: DataConfig) -> Source:
    """Find the text that the config names; reads nothing yet.

    Raises:
        UserError: for a source that is missing or empty, or that no hub can have.
    """
    names = [config.source] if isinstance(config.source, str) else config.source
    if names == ["pydocs"]:
        return pydocs()
    if len(names) == 1 and names[0].startswith("hub:"):
        return hub(config, names[0].removeprefix("hub:"))
    for name in names:
        if len(names) > 1 and (name in ("pydocs", "repeat") or name.startswith("hub:")):
            raise UserError(f"--data.source: {name} stands alone; a list is of files")
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


def pydocs() -> Source:
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
    """A text set on the Hugging Face hub, fetched into a file when it is first read.

    Raises:
        UserError: for a name that is none there, and so might be taken for a folder here.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or ".." in name:
        raise UserError(f"hub:{name} is no name on the hub; it has the form hub:OWNER/NAME")
    identity = [
        "hub",
        name,
        config.hub_config,
        config.hub_split,
        config.hub_column,
        config.hub_revision,
    ]
    key = fingerprint([identity, config.separator])
    text = Path(config.cache_dir) / "hub" / f"{name.replace('/', '-')}-{key}.txt"

    def read() -> Iterator[bytes]:
        if not text.exists():
            text.parent.mkdir(parents=True, exist_ok=True)
            with keep_others_out(text, f"fetches hub:{name}"):
                if not text.exists():  # nor did another process fetch it meanwhile
                    fetch(config, name, text)
        return read_file(text)

    words = [f"hub:{name}", config.hub_config, config.hub_split, "at", config.hub_revision]
    parts = [Part(f"hub:{name}", read)]
    return Source(" ".join(filter(None, words)), parts, identity, config.separator)


def fetch(config: DataConfig, name: str, text: Path) -> None:
    """Stream the rows of a hub set into one file, from where an interrupted start left it.

    Raises:
        UserError: when the set is out of reach, or its rows hold no text.
    """
    import datasets  # here, because importing it takes a second that a second start saves

    print(f"fetching hub:{name}; without a network this takes a while to fail", file=sys.stderr)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each retry is a line there
    scratch, journal = text.with_suffix(".half.txt"), text.with_suffix(".half.json")
    with reaching(name):
        builder = datasets.load_dataset_builder(
            name, config.hub_config or None, revision=config.hub_revision
        )
        rows = builder.as_streaming_dataset(split=config.hub_split)
        if config.hub_column in (rows.column_names or []):
            rows = rows.select_columns(config.hub_column)  # no other is fetched
        files = builder.config.data_files or {}
        version = str([files[split].origin_metadata for split in files])  # the commit of each
    half = read_journal(journal)
    if half.get("version") != version or not starts_with(scratch, half["bytes"], half["crc32"]):
        half = {"version": version, "bytes": 0, "rows": 0, "crc32": 0}
    if half["rows"]:
        rows.load_state_dict(half["place"])
    crc = half["crc32"]
    bar = tqdm(desc="fetching", unit="B", unit_scale=True, initial=half["bytes"], leave=False)
    with bar, naming(scratch), open(scratch, "ab") as file:
        file.seek(file.truncate(half["bytes"]))
        iterator = iter(rows)
        for number in itertools.count(half["rows"]):
            with reaching(name):
                row = next(iterator, None)
            if row is None:
                break
            text_row = text_of(row, number, config.hub_column, name)
            content = ((config.separator if number else "") + text_row).encode()
            bar.update(file.write(content))
            crc = zlib.crc32(content, crc)
            if file.tell() - half["bytes"] >= PIECE_BYTES:
                half |= {"bytes": file.tell(), "rows": number + 1, "crc32": crc}
                half["place"] = rows.state_dict()
                sync(file)
                write_journal(journal, half)
        sync(file)
        if file.tell() == 0:
            raise UserError(f"hub:{name} has no text in it")
    journal.unlink(missing_ok=True)
    os.replace(scratch, text)


def starts_with(path: Path, size: int, crc: int) -> bool:
    """Whether a file has so many bytes, or more, and the first of them have this CRC-32."""
    if not path.exists() or path.stat().st_size < size:
        return False
    done = value = 0
    for chunk in read_file(path):
        value = zlib.crc32(chunk[: size - done], value)
        done += len(chunk[: size - done])
    return value == crc


def text_of(row: dict[str, Any], number: int, column: str, name: str) -> str:
    """What a row of a hub set says.

    Raises:
        UserError: when it has no such column, or something else than text there.
    """
    if column not in row:
        raise UserError(
            f"hub:{name} has no column {column!r}; --data.hub_column can be {', '.join(row)}"
        )
    if not isinstance(row[column], str):
        raise UserError(
            f"hub:{name}, row {number}: {column} is {row[column]!r}, not text; "
            f"name a column of text with --data.hub_column"
        )
    return row[column]


@contextmanager
def reaching(name: str) -> Iterator[None]:
    """Whatever goes wrong on the way to the hub ends in one line."""
    try:
        yield
    except Exception as error:  # the kinds of failure are many, and none is ours to mend
        reason = " ".join(str(error).split())
        raise UserError(
            f"could not load hub:{name} ({type(error).__name__}: {reason}); without a network "
            f"or an account, put the text in a file and pass --data.source FILE"
        ) from error


def fingerprint(plain: Any) -> str:
    """A short name for plain data."""
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]
