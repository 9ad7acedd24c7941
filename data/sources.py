"""Sources of text: files, tables, Python's manual, or a dataset of the Hugging Face Hub.

    config -> Source -> its parts -> chunks of text

Finding a source does not read its text. Files are identified by path, size and times, and datasets
by name and revision. Newlines are read as \\n, whether a file has \\n, \\r\\n or \\r.
"""

import codecs
import functools
import glob
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError, reading
from configs.config import DataConfig
from data.tasks import TASKS

CHUNK = 1 << 17  # characters, few enough that their tokens fit in the processor's cache
LONG = 10_000_000  # bytes, which take a few seconds
ROWS = 100  # rows of a table in a chunk
# The names of tables, and how `datasets` calls them
TABLES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}

Part = Callable[[str], Iterator[str]]
"""Yields a text in chunks. The argument is the error handler for bytes that are not UTF-8, "strict"
or "surrogateescape", as for `open`."""


@dataclass(frozen=True)
class Source:
    """A text that has not been read yet."""

    name: str

    identity: list[Any]
    """Plain data that differs between texts."""

    parts: list[Part]
    """One for each file; each is split into training, validation and test text."""

    is_local: bool = True
    """Whether reading it downloads nothing."""

    is_long: bool = False
    """Whether reading it takes more than a few seconds."""


def cache_folder() -> Path:
    """Return the folder of tokenized texts: cache/, or the folder that GLASSGPT_CACHE names."""
    return Path(os.environ.get("GLASSGPT_CACHE") or "cache")


def hub_folder() -> str:
    """Return the folder of what `datasets` downloads and converts."""
    return str(cache_folder() / "hub")


def find_source(config: DataConfig) -> Source:
    """Find the text that the config names, without reading it.

    Raises:
        UserError: for a source that is missing.
    """
    name, version = str(config.source), sys.version.split()[0]
    if name == "pydocs":  # the manual behind Python's `help()`, which comes with CPython
        return Source(f"the manual of Python {version}", [name, version], [read_pydocs])
    if name.startswith("hub:") and name != "hub:":
        options = [config.hub_config, config.hub_split, config.column]
        hub: list[Part] = [functools.partial(read_hub, config)]
        return Source(name, [name, *options, config.separator], hub, is_local=False, is_long=True)
    names = [config.source] if isinstance(config.source, str) else config.source
    # A file that is named twice is read once.
    paths = {path.resolve(): path for name in names for path in find_files(name)}
    identity: list[Any] = [config.separator]
    parts: list[Part] = []
    for absolute, path in paths.items():
        status = path.stat()
        # The time of the last change of the file's metadata cannot be set back.
        times = [status.st_mtime_ns, status.st_ctime_ns]
        is_table = path.suffix.lower() in TABLES
        identity.append([str(absolute), status.st_size, *times, config.column * is_table])
        read: Callable[..., Iterator[str]] = read_file
        if is_table:
            read = functools.partial(read_table, config)
        end = config.separator or "\n" * is_table if len(parts) < len(paths) - 1 else ""
        parts.append(functools.partial(read, path, end))
    is_long = sum(path.stat().st_size for path in paths) > LONG
    name = ", ".join(map(str, paths.values()))
    if any(path.suffix.lower() in TABLES for path in paths):
        name += f" (column {' and '.join(columns_of(config))})"
    return Source(name, identity, parts, is_long=is_long)


def find_files(name: str) -> list[Path]:
    """Return the files that a path or a glob names, in natural order: ch2 before ch10."""
    paths = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True), key=natural)
    files = [path for path in map(Path, paths) if path.is_file()]
    if not files:
        raise UserError(
            f"no text at {name}: --data.source takes files, globs, pydocs, hub:OWNER/NAME, or a "
            f"task: {', '.join(TASKS)}"
        )
    return files


def columns_of(config: DataConfig) -> list[str]:
    """Return the columns with the text of a table."""
    return [config.column] if isinstance(config.column, str) else config.column


def natural(name: str) -> list[Any]:
    """Return the key of a name in natural order: every second part is a number."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def read_file(path: Path, end: str, errors: str) -> Iterator[str]:
    """Yield the text of a file, and then `end`.

    Raises:
        UserError: for a file that is not UTF-8.
    """
    try:
        with open(path, encoding="utf-8-sig", errors=errors) as file:  # without a byte order mark
            while text := file.read(CHUNK):
                yield text + file.readline(CHUNK)  # to its end, so that no word is cut
    except UnicodeDecodeError:
        raise UserError(
            f"{path} is not UTF-8 text at byte {first_bad_byte(path):,}; convert it, or use "
            f"--data.tokenizer byte"
        ) from None
    yield end


def first_bad_byte(path: Path) -> int:
    """Return the position of the first byte of a file that is not UTF-8."""
    decoder, position = codecs.getincrementaldecoder("utf-8")(), 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                return position + error.start
            position = file.tell() - len(decoder.getstate()[0])  # a chunk may end in a character
    return position


def read_pydocs(errors: str) -> Iterator[str]:
    """Yield Python's manual."""
    from pydoc_data.topics import topics  # half a megabyte

    yield "\n".join(topics[name] for name in sorted(topics))


def read_table(config: DataConfig, path: Path, end: str, errors: str) -> Iterator[str]:
    """Yield a column of a file of JSON lines, CSV or Parquet, and then `end`.

    Raises:
        UserError: if it cannot be read, or has no such column of text.
    """
    import datasets  # here, because the import takes a second

    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel("CRITICAL")  # its error is also raised
    with reading(path, "cannot be read"):
        files = glob.escape(str(path))
        try:
            rows = datasets.load_dataset(
                TABLES[path.suffix.lower()], data_files=files, split="train", cache_dir=hub_folder()
            )
        except Exception as error:  # whose cause says what is wrong
            raise ValueError(error.__cause__ or str(error) or "it has no rows") from error
        for column in columns_of(config):
            if column not in rows.column_names:
                raise UserError(
                    f"{path} has no column {column}; pass --data.column, one of: "
                    f"{', '.join(rows.column_names)}"
                )
        yield from join_rows(rows.iter(ROWS), columns_of(config), config.separator or "\n")
    yield end


def read_hub(config: DataConfig, errors: str) -> Iterator[str]:
    """Yield the text of a dataset of the Hub. `datasets` downloads each file once.

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
            cache_dir=hub_folder(),
        ).select_columns(columns_of(config))
        yield from join_rows(rows.iter(ROWS), columns_of(config), config.separator)


def join_rows(
    parts: Iterable[dict[str, list[Any]]], columns: list[str], separator: str
) -> Iterator[str]:
    """Yield the texts of the rows with the separator between them. The columns of a row are joined
    with a colon; a null is an empty text."""
    for i, part in enumerate(parts):
        if i:
            yield separator
        for column in columns:
            if not all(isinstance(text, str | None) for text in part[column]):
                raise ValueError(f"the column {column} does not contain text")
        rows = zip(*(part[column] for column in columns), strict=True)
        text = separator.join(": ".join(filter(None, row)) for row in rows)
        yield text.replace("\r\n", "\n").replace("\r", "\n")
