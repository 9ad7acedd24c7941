"""Sources of text: files, Python's manual, or a dataset of the Hugging Face Hub.

    config -> Source -> chunks of text

Finding a source does not read its text. Files are identified by path, size and time, and datasets
by name and revision.
"""

import functools
import glob
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError, reading
from configs.config import DataConfig
from data.tasks import TASKS

CHUNK = 1 << 17  # characters, few enough that their tokens fit in the processor's cache
ROWS = 100  # rows of a Hub dataset in a chunk


@dataclass(frozen=True)
class Source:
    """A text that has not been read yet."""

    name: str

    identity: list[Any]
    """Plain data that differs between texts."""

    read: Callable[[str], Iterator[str]]
    """Yields the text in chunks. The argument is the error handler for bytes that are not UTF-8,
    "strict" or "surrogateescape", as for `open`."""


def cache_folder() -> Path:
    """Return the folder of tokenized texts: cache/, or the folder that GLASSGPT_CACHE names."""
    return Path(os.environ.get("GLASSGPT_CACHE") or "cache")


def find_source(config: DataConfig) -> Source:
    """Find the text that the config names, without reading it.

    Raises:
        UserError: for a source that is missing.
    """
    name, version = str(config.source), sys.version.split()[0]
    if name == "pydocs":  # the manual behind Python's `help()`, which comes with CPython
        return Source(f"the manual of Python {version}", [name, version], read_pydocs)
    if name.startswith("hub:") and name != "hub:":
        options = [config.hub_config, config.hub_split, config.column]
        return Source(name, [name, *options, config.separator], lambda _: read_rows(config))
    names = [config.source] if isinstance(config.source, str) else config.source
    paths = [path for name in names for path in find_files(name)]
    files = [[str(p.absolute()), p.stat().st_size, p.stat().st_mtime_ns] for p in paths]
    read = functools.partial(read_files, paths, config.separator)
    return Source(", ".join(map(str, paths)), [config.separator, *files], read)


def find_files(name: str) -> list[Path]:
    """Return the files that a path or a glob names, in sorted order."""
    paths = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))
    files = [path for path in map(Path, paths) if path.is_file()]
    if not files:
        raise UserError(
            f"no text at {name}: --data.source takes files, globs, pydocs, hub:OWNER/NAME, or a "
            f"task: {', '.join(TASKS)}"
        )
    return files


def read_files(paths: list[Path], separator: str, errors: str) -> Iterator[str]:
    """Yield the text of files, with newlines unchanged, and the separator between files.

    Raises:
        UserError: naming a file that is not UTF-8.
    """
    for i, path in enumerate(paths):
        if i:
            yield separator
        hint = "is not UTF-8 text; convert it, or use --data.tokenizer byte"
        with open(path, encoding="utf-8", errors=errors, newline="") as file, reading(path, hint):
            while text := file.read(CHUNK):
                yield text + file.readline(CHUNK)  # to its end, so that no word is cut


def read_pydocs(errors: str) -> Iterator[str]:
    """Yield Python's manual."""
    from pydoc_data.topics import topics  # half a megabyte

    yield "\n".join(topics[name] for name in sorted(topics))


def read_rows(config: DataConfig) -> Iterator[str]:
    """Yield the text of a dataset, its rows joined by the separator; a null is an empty text.
    `datasets` downloads each file once.

    Raises:
        UserError: if the dataset is not reachable, its column does not contain text, or a local
            path has its name.
    """
    import datasets  # here, because the import takes a second

    logging.getLogger("huggingface_hub").setLevel("ERROR")  # a line for each retry, else
    source = str(config.source)
    name, _, revision = source.removeprefix("hub:").partition("@")
    if Path(name).exists():  # `datasets` would read it instead
        raise UserError(f"{source} is also the path {name} here; move that, or name its files")
    with reading(source, "could not be loaded; without a network, name a file with --data.source"):
        rows = datasets.load_dataset(
            name,
            config.hub_config or None,
            split=config.hub_split,
            revision=revision or None,
            cache_dir=str(cache_folder() / "hub"),
        ).select_columns(config.column)
        for i, part in enumerate(rows.iter(ROWS)):
            if i:
                yield config.separator
            yield config.separator.join(text or "" for text in part[config.column])
