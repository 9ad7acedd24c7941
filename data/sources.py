"""Where text comes from: files, a dataset on the hub, or the manual that Python carries.

    config -> source -> parts -> chunks of bytes

Opening a source reads none of it. What identifies it is path, size and time of files, or the name
and revision of a hub dataset.
"""

import functools
import glob
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from common.atomic import scratch_folder, sync
from common.errors import UserError
from data.config import DataConfig

CHUNK_BYTES = 1 << 17  # so small that what is made of a chunk stays in the processor's cache


@dataclass(frozen=True)
class Part:
    """A stretch of the text that is UTF-8 by itself: a file, a separator, a hub dataset."""

    name: str
    read: Callable[[], Iterator[bytes]]
    size: int = 0
    """In bytes; 0 where that is not known before it is read."""


@dataclass(frozen=True)
class Source:
    """The parts of a text in order, and plain data that identifies it."""

    name: str
    parts: list[Part]
    identity: list[Any]


def open_source(config: DataConfig) -> Source:
    """Find the text that the config names, without reading it.

    Raises:
        UserError: for a source that is missing or empty, or a name that no hub dataset can have.
    """
    names = [config.source] if isinstance(config.source, str) else config.source
    if names == ["pydocs"]:
        return pydocs()
    if len(names) == 1 and names[0].startswith("hub:"):
        return hub(config, names[0].removeprefix("hub:"))
    for name in names:
        if len(names) > 1 and (name in ("pydocs", "repeat") or name.startswith("hub:")):
            raise UserError(f"--data.source: {name} stands alone; a list is of files")
    return files([path for name in names for path in find_files(name)], config.separator)


def find_files(name: str) -> list[Path]:
    """The files that a path or a glob names, in sorted order."""
    if Path(name).is_file():
        return [Path(name)]
    if Path(name).is_dir():
        raise UserError(f"{name} is a folder; name the files in it, for example '{name}/*.txt'")
    matches = sorted(map(Path, glob.glob(name, recursive=True)))
    found = [path for path in matches if path.is_file()]
    if not found:
        raise UserError(
            f"no text at {name}: --data.source takes a file, a glob, a list of files, pydocs, "
            f"hub:OWNER/NAME or repeat"
        )
    return found


def files(paths: list[Path], separator: str) -> Source:
    """Files, joined by a separator."""
    between = separator.encode()
    parts: list[Part] = []
    identity: list[Any] = [separator]
    for path in paths:
        if parts and separator:
            parts.append(Part("--data.separator", lambda: iter([between]), len(between)))
        stat = path.stat()
        if stat.st_size == 0:
            raise UserError(f"{path} is empty; name a file with text in it")
        parts.append(Part(str(path), functools.partial(read_file, path), stat.st_size))
        identity.append([str(path.absolute()), stat.st_size, stat.st_mtime_ns])
    return Source(", ".join(map(str, paths)), parts, identity)


def read_file(path: Path) -> Iterator[bytes]:
    """The bytes of a file in chunks, exactly as they are."""
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def pydocs() -> Source:
    """The reference manual behind Python's `help()`, which every CPython carries."""
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
    return Source(part.name, [part], ["pydocs", version, hashlib.sha256(text).hexdigest()])


def hub(config: DataConfig, name: str) -> Source:
    """A dataset on the Hugging Face hub, which is fetched into a file when it is first read.

    Raises:
        UserError: for a name that none has there, and that might be taken for a folder here.
    """
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise UserError(f"hub:{name} is no name on the hub; it has the form hub:OWNER/NAME")
    options = [config.hub_config, config.hub_split, config.hub_column, config.hub_revision]
    identity = ["hub", name, *options, config.separator]
    key = fingerprint(identity)
    text = Path(config.cache_dir) / "hub" / f"{name.replace('/', '-')}-{key}.txt"

    def read() -> Iterator[bytes]:
        if not has_text(text):
            scratch = Path(config.cache_dir) / "scratch" / key
            with scratch_folder(scratch, f"fetches hub:{name}"):
                if not has_text(text):  # nor has another process fetched it meanwhile
                    fetch(config, name, scratch / "text")
                    text.parent.mkdir(exist_ok=True)
                    os.replace(scratch / "text", text)
        return read_file(text)

    words = [f"hub:{name}", config.hub_config, config.hub_split, "at", config.hub_revision]
    return Source(" ".join(filter(None, words)), [Part(f"hub:{name}", read)], identity)


def has_text(path: Path) -> bool:
    """Whether it is a file with something in it, and no pipe, which would keep us waiting."""
    return path.is_file() and path.stat().st_size > 0


def fetch(config: DataConfig, name: str, path: Path) -> None:
    """Stream the rows of a hub dataset into a file.

    Raises:
        UserError: when the dataset is out of reach, or its rows hold no text.
    """
    print(f"fetching hub:{name}; without a network this takes a while to fail", file=sys.stderr)
    column, bar = config.hub_column, tqdm(desc="fetching", unit="B", unit_scale=True, leave=False)
    with bar, open(path, "wb") as file:
        for number, row in enumerate(stream_rows(config, name)):
            if not isinstance(row.get(column), str):
                raise UserError(
                    f"hub:{name} has no text in column {column!r} of row {number}; name another "
                    f"with --data.hub_column; the row has {', '.join(row)}"
                )
            text = (config.separator if number else "") + row[column]
            bar.update(file.write(text.encode()))
        if file.tell() == 0:
            raise UserError(f"hub:{name} has no text in it")
        sync(file)


def stream_rows(config: DataConfig, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a hub dataset as they come over the network.

    Raises:
        UserError: for whatever goes wrong on the way.
    """
    import datasets  # takes a second, which a start from the cache saves

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each retry is a line there
    try:
        where = {"split": config.hub_split, "revision": config.hub_revision, "streaming": True}
        rows = datasets.load_dataset(name, config.hub_config or None, **where)
        if config.hub_column in (rows.column_names or []):
            rows = rows.select_columns(config.hub_column)  # the others are not fetched
        yield from rows
    except Exception as error:  # `datasets` documents no kinds
        reason = " ".join(str(error).split())
        raise UserError(
            f"could not load hub:{name} ({type(error).__name__}: {reason}); without a network "
            f"or an account, put the text in a file and pass --data.source FILE"
        ) from error


def fingerprint(plain: Any) -> str:
    """A short name for plain data."""
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]
