"""Where text comes from: files, Python's own manual, or a dataset on the Hugging Face Hub.

    config -> Source -> chunks of text

Finding a source reads none of it. What identifies it is the path, size and time of files, or the
name and revision of a dataset.
"""

import functools
import glob
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError, reading
from data.config import DataConfig

CHUNK = 1 << 17  # characters; what is made of them stays in the processor's cache
ROWS = 100  # of a dataset on the Hub, in a chunk


@dataclass(frozen=True)
class Source:
    """A text that is not read yet."""

    name: str

    identity: list[Any]
    """Plain data, different for another text."""

    read: Callable[[str], Iterator[str]]
    """Yields the text in chunks. The argument is what to do with bytes that are not UTF-8: "strict"
    or "surrogateescape", as for `open`."""


def cache_folder() -> Path:
    """Return the folder of tokenized texts: cache/ here, or the one that GLASSGPT_CACHE names."""
    return Path(os.environ.get("GLASSGPT_CACHE") or "cache")


def find_source(config: DataConfig) -> Source:
    """Find the text that the config names, without reading it.

    Raises:
        UserError: for a source that is missing.
    """
    names = [config.source] if isinstance(config.source, str) else config.source
    if names == ["pydocs"]:
        return pydocs()
    if names[0].startswith("hub:"):
        return hub(config)
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
            f"no text at {name}: --data.source takes files, globs such as 'folder/*.txt', pydocs, "
            f"hub:OWNER/NAME or repeat"
        )
    return files


def read_files(paths: list[Path], separator: str, errors: str) -> Iterator[str]:
    """Yield the text of files, every character as it is, with the separator between them.

    Raises:
        UserError: naming a byte that is not UTF-8.
    """
    for i, path in enumerate(paths):
        if i:
            yield separator
        with (
            reading(path, "is not UTF-8 text; convert it, or use --data.tokenizer byte"),
            open(path, encoding="utf-8", errors=errors, newline="") as file,
        ):
            while text := file.read(CHUNK):
                yield text + file.readline(CHUNK)  # to the end of a line: no word is cut


def pydocs() -> Source:
    """Return the reference manual behind Python's `help()`, which every CPython carries."""
    from pydoc_data.topics import topics  # half a megabyte

    text, version = "\n".join(topics[name] for name in sorted(topics)), sys.version.split()[0]
    return Source(f"the manual of Python {version}", ["pydocs", version], lambda _: iter([text]))


def hub(config: DataConfig) -> Source:
    """Return a dataset on the Hugging Face Hub. `datasets` downloads it, each file once."""
    options = [config.hub_config, config.hub_split, config.hub_column, config.hub_revision]
    name = str(config.source)
    return Source(name, [name, *options, config.separator], lambda _: read_rows(config))


def read_rows(config: DataConfig) -> Iterator[str]:
    """Yield the text of a dataset, its rows joined by the separator; a null is an empty text.

    Raises:
        UserError: if the dataset is out of reach, or its rows hold no text.
    """
    import datasets  # takes a second, which a start from the cache saves

    source = str(config.source)
    with reading(source, "could not be loaded; without a network, name a file with --data.source"):
        rows = datasets.load_dataset(
            source.removeprefix("hub:"),
            config.hub_config or None,
            split=config.hub_split,
            revision=config.hub_revision,
            cache_dir=str(cache_folder() / "hub"),
        ).select_columns(config.hub_column)
        for i, part in enumerate(rows.iter(ROWS)):
            if i:
                yield config.separator
            yield config.separator.join(text or "" for text in part[config.hub_column])
