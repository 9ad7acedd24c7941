"""Sources of text: files, tables, Python's manual, or a dataset of the Hugging Face Hub.

    config -> Source -> its parts -> chunks of text

Finding a source does not read its text. Files are identified by path, size and times, and datasets
by name and revision. Newlines are read as \\n, whether a file has \\n, \\r\\n or \\r.
"""

import csv
import functools
import glob
import itertools
import json
import logging
import os
import re
import reprlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, TextIO

from common.errors import UserError, as_user_error
from configs.config import DataConfig

CHUNK = 1 << 17  # characters, few enough that their tokens fit in the processor's cache
LONG = 10_000_000  # bytes, which take a few seconds
ROWS = 100  # rows of a table in a chunk

Row = dict[str, Any]
Part = Callable[[str], Iterator[str]]
"""Yields a text in chunks. The argument is the error handler for bytes that are not UTF-8, "strict"
or "surrogateescape", as for `open`."""


Problem = Literal["absent", "changed", "encoding", "column", "size"]


class TextError(UserError):
    """What is wrong with a text. The command that opens it adds how to fix it: see `with_fixes`."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


@contextmanager
def with_fixes(fixes: dict[Problem, str]) -> Iterator[None]:
    """Add to a `TextError` how to fix its problem with the flags of a command.

    Raises:
        UserError: for any such error inside the `with` block.
    """
    try:
        yield
    except TextError as error:
        raise UserError(f"{error}; {fixes[error.problem]}") from None


@dataclass(frozen=True)
class Source:
    """A text that has not been read yet."""

    name: str

    identity: list[Any]
    """Plain data that differs between texts."""

    parts: list[Part]
    """One for each file; each is split into training, validation and test text."""

    has_columns: bool = False

    is_local: bool = True
    """Whether reading it downloads nothing."""

    is_long: bool = False
    """Whether reading it takes more than a few seconds."""


def cache_folder() -> Path:
    """Return the folder of tokenized texts: cache/, or the folder that GLASSGPT_CACHE names."""
    return Path(os.environ.get("GLASSGPT_CACHE") or "cache")


def find_source(config: DataConfig) -> Source:
    """Find the text that the config names, without reading it.

    Raises:
        UserError: for a source that is missing.
    """
    name, version = str(config.source), sys.version.split()[0]
    identity: list[Any]
    if name == "pydocs":  # the manual behind Python's `help()`, which comes with CPython
        return Source(f"the manual of Python {version}", [name, version], [read_pydocs])
    if name.startswith("hub:") and name != "hub:":
        options = [config.hub_config, config.hub_split, config.column]
        hub: list[Part] = [functools.partial(read_hub, config)]
        identity = [name, *options, config.separator]
        return Source(name, identity, hub, True, is_local=False, is_long=True)
    names = [config.source] if isinstance(config.source, str) else config.source
    # A file that is named twice is read once.
    paths = {path.resolve(): path for name in names for path in find_files(name)}
    identity = [config.separator]
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
    shown = [*map(str, paths.values())]
    if len(shown) > 9:
        shown[3:-1] = ["..."]
    name = ", ".join(shown)
    has_columns = any(path.suffix.lower() in TABLES for path in paths)
    if has_columns:
        name += f" (column {' and '.join(columns_of(config))})"
    return Source(name, identity, parts, has_columns, is_long=is_long)


def find_files(name: str) -> list[Path]:
    """Return the files that a path or a glob names, in natural order: ch2 before ch10."""
    paths = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True), key=natural)
    files = [path for path in map(Path, paths) if path.is_file()]
    if not files:
        is_folder = any(Path(path).is_dir() for path in paths)
        raise TextError("absent", f"{name} is a folder" if is_folder else f"no text at {name}")
    return files


def columns_of(config: DataConfig) -> list[str]:
    """Return the columns with the text of a table."""
    return [config.column] if isinstance(config.column, str) else config.column


def natural(name: str) -> list[Any]:
    """Return the key of a name in natural order: every second part is a number."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


@contextmanager
def open_text(path: Path, errors: str) -> Iterator[TextIO]:
    """Open a file without its byte order mark.

    Raises:
        UserError: when a text that is not UTF-8 is read.
    """
    with open(path, "rb") as file:
        try:
            yield TextIOWrapper(file, "utf-8-sig", errors)
        except UnicodeDecodeError as error:
            position = file.tell() - len(error.object) + error.start
            message = f"{path} is not UTF-8 text at byte {position:,}"
            raise TextError("encoding", message) from None


def read_file(path: Path, end: str, errors: str) -> Iterator[str]:
    """Yield the text of a file, and then `end`."""
    with open_text(path, errors) as file:
        while text := file.read(CHUNK):
            yield text + file.readline(CHUNK)  # to its end, so that no word is cut
    yield end


def read_pydocs(errors: str) -> Iterator[str]:
    """Yield Python's manual."""
    from pydoc_data.topics import topics  # half a megabyte

    yield "\n".join(topics[name] for name in sorted(topics))


def read_table(config: DataConfig, path: Path, end: str, errors: str) -> Iterator[str]:
    """Yield the texts of a table, and then `end`.

    Raises:
        UserError: if it cannot be read, or has no such column of text.
    """
    columns = columns_of(config)
    with as_user_error(path, "cannot be read"), open_text(path, errors) as file:
        rows = number_rows(TABLES[path.suffix.lower()](file, columns))
        for text in join_rows(rows, columns, config.separator or "\n"):
            text.encode(errors=errors)  # JSON can escape half a character
            yield text
    yield end


def check_columns(file: TextIO, columns: list[str], names: Collection[str]) -> None:
    """Check that each column is one of a table's columns, which have these names."""
    for column in columns:
        if column not in names:
            found = f"{file.name} has no column {column} among {', '.join(names)}"
            raise TextError("column", found)
        if [*names].count(column) > 1:
            raise ValueError(f"it has several columns {column}; rename them in the file")


def read_csv(file: TextIO, columns: list[str], delimiter: str = "") -> Iterator[Row]:
    """Yield the rows of a table, and {} for its header. An empty line is {}, too, or the empty text
    of a single column.

    Args:
        delimiter: if empty, it is a semicolon in a file whose first line has one and no comma, as
            spreadsheets write it where a comma is the decimal separator, and else a comma.
    """
    csv.field_size_limit(2**31 - 1)
    first = next(filter(str.strip, file), "")
    delimiter = delimiter or (";" if ";" in first and "," not in first else ",")
    lines = csv.reader(itertools.chain([first], file), delimiter=delimiter, strict=True)
    header = next(filter(None, lines), columns)
    if len(header) == 1 and "\t" in header[0]:
        raise csv.Error("its cells are separated by tabs; name it .tsv")
    check_columns(file, columns, header)
    yield {}
    for cells in lines:
        if cells and len(cells) != len(header):
            raise csv.Error(
                f"the header has {len(header)} cells, but this row {len(cells)}; put a cell that "
                f"contains {delimiter!r} or a newline in quotes"
            )
        yield dict(zip(header, cells or [""] * (len(header) == 1), strict=False))


def read_json(file: TextIO, columns: list[str]) -> Iterator[Row]:
    """Yield the objects of JSON lines, or of a document. Numbers are texts, as they are written."""
    decode = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str).decode
    lines, names = filter(None, map(str.strip, file)), dict[str, None]()
    head = [*itertools.islice(lines, 2)]
    try:
        first, second = map(decode, head)
        rows: Iterable[Any] = itertools.chain([first, second], map(decode, lines))
    except ValueError:  # a line is not a document
        rows = find_rows(decode("\n".join([*head, file.read()]) if head else "[]"), columns)
    for row in map(as_row, rows):
        names |= dict.fromkeys(row)
        yield row
    if names:
        check_columns(file, columns, names)


def find_rows(document: Any, columns: list[str]) -> list[Any]:
    """Return what a list contains, or what those lists of an object contain that have the columns,
    such as the messages of a chat."""
    if isinstance(document, dict) and not any(
        isinstance(document.get(column), str) for column in columns
    ):
        lists = [
            [row for row in value if isinstance(row, dict)]
            for value in document.values()
            if isinstance(value, list)
        ]
        found = [rows for rows in lists if any(row.keys() & columns for row in rows)]
        document = list(itertools.chain(*(found or lists))) or document
    return document if isinstance(document, list) else [document]


def as_row(value: Any) -> Row:
    """Return an object, or any other value of JSON as an object whose text it is."""
    return value if isinstance(value, dict) else {"text": value}


def number_rows(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows. An error gets the number of its row."""
    number = 1
    try:
        for row in rows:
            yield row
            number += 1
    except (csv.Error, json.JSONDecodeError) as error:
        where = f"row {number}: " * (number > 1)  # an error in a document names its line
        raise ValueError(f"{where}{error}") from error


def read_parquet(file: TextIO, columns: list[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet file, with these columns only."""
    from pyarrow.parquet import ParquetFile  # here, because the import takes a tenth of a second

    table = ParquetFile(file.name)
    check_columns(file, columns, table.schema_arrow.names)
    for batch in table.iter_batches(ROWS, columns=columns):
        yield from batch.to_pylist()


TABLES: dict[str, Callable[[TextIO, list[str]], Iterator[Row]]] = {
    ".csv": read_csv,
    ".tsv": functools.partial(read_csv, delimiter="\t"),
    ".json": read_json,
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".parquet": read_parquet,
}


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
    with as_user_error(source, "could not be loaded; without a network, use a file"):
        rows = datasets.load_dataset(
            name,
            config.hub_config or None,
            split=config.hub_split,
            revision=revision or None,
            cache_dir=str(cache_folder() / "hub"),
        )
        parts = rows.select_columns(columns_of(config)).with_format("arrow").iter(ROWS)
        cells = (row for part in parts for row in part.to_pylist())
        yield from join_rows(cells, columns_of(config), config.separator)


def join_rows(rows: Iterable[Row], columns: list[str], separator: str) -> Iterator[str]:
    """Yield the texts of the rows with the separator between them. The columns of a row are joined
    with a colon; a null is an empty text."""
    texts, start = ([text_of(row, column) for column in columns] for row in rows if row), ""
    while part := [": ".join(filter(None, row)) for row in itertools.islice(texts, ROWS)]:
        yield start + separator.join(part)
        start = separator


def text_of(row: Row, column: str) -> str:
    """Return the text of a cell."""
    cell = row.get(column)
    if isinstance(cell, list):  # perhaps a text with links, as Telegram writes it
        parts = [*map(as_row, cell)]
        is_text = all("text" in part for part in parts)
        if is_text and (not parts or any("type" in part for part in parts)):
            cell = "".join(text_of(part, "text") for part in parts)
    if isinstance(cell, bool):
        cell = str(cell).lower()
    if not isinstance(cell, str | None):
        raise ValueError(
            f"the column {column} does not contain text, but {reprlib.repr(cell)} in the row "
            f"{reprlib.repr(row)}"
        )
    return (cell or "").replace("\r\n", "\n").replace("\r", "\n")
