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

from common.errors import UserError
from data.config import DataConfig

CHUNK_BYTES = 1 << 17  # so small that what is made of a chunk stays in the processor's cache
ROWS = 100  # of a hub dataset, in a chunk


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


def cache_folder() -> Path:
    """Return the folder of tokenized texts: cache/ here, or the one that GLASSGPT_CACHE names."""
    return Path(os.environ.get("GLASSGPT_CACHE") or "cache")


def open_source(config: DataConfig) -> Source:
    """Find the text that the config names, without reading it.

    Raises:
        UserError: for a source that is missing, or a name that no hub dataset can have.
    """
    names = [config.source] if isinstance(config.source, str) else config.source
    if names == ["pydocs"]:
        return pydocs()
    if len(names) == 1 and names[0].startswith("hub:"):
        return hub(config, names[0].removeprefix("hub:"))
    for name in names:
        if len(names) > 1 and (name in ("pydocs", "repeat") or name.startswith("hub:")):
            raise UserError(f"--data.source: {name} must stand alone; a list may name files only")
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
    """A dataset on the Hugging Face hub. `datasets` downloads it, and each file once.

    Raises:
        UserError: for a name that none has there, and that might be taken for a folder here.
    """
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise UserError(f"hub:{name} is not a name on the hub: names have the form hub:OWNER/NAME")
    options = [config.hub_config, config.hub_split, config.hub_column, config.hub_revision]
    words = [f"hub:{name}", config.hub_config, config.hub_split, "at", config.hub_revision]
    rows = functools.cache(lambda: load_rows(config, name))
    part = Part(f"hub:{name}", lambda: join_rows(rows(), config.separator))
    return Source(" ".join(filter(None, words)), [part], ["hub", name, *options, config.separator])


def load_rows(config: DataConfig, name: str) -> Any:
    """The column of a hub dataset that holds the text.

    Raises:
        UserError: when the dataset is out of reach, or its rows hold no text.
    """
    import datasets  # takes a second, which a start from the cache saves

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each retry is a line there
    print(f"loading hub:{name}; without a network this takes a while to fail", file=sys.stderr)
    where = {"split": config.hub_split, "revision": config.hub_revision}
    where["cache_dir"] = str(cache_folder() / "hub")
    try:
        rows = datasets.load_dataset(name, config.hub_config or None, **where)
    except Exception as error:  # `datasets` documents no kinds
        reason = " ".join(str(error).split())
        raise UserError(
            f"could not load hub:{name} ({type(error).__name__}: {reason}); without a network "
            f"or an account, put the text in a file and pass --data.source FILE"
        ) from error
    column = config.hub_column
    if "string" not in getattr(rows.features.get(column), "dtype", ""):
        raise UserError(
            f"hub:{name} has no text in column {column!r}; name another with --data.hub_column: "
            f"{', '.join(rows.features)}"
        )
    return rows.select_columns(column)


def join_rows(rows: Any, separator: str) -> Iterator[bytes]:
    """The texts of a column, joined by the separator; what is null there is an empty text."""
    before = ""
    for batch in rows.iter(ROWS):
        (column,) = batch.values()
        yield (before + separator.join(text or "" for text in column)).encode()
        before = separator


def fingerprint(plain: Any) -> str:
    """A short name for plain data."""
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]
