"""Tables in a terminal: aligned columns, first words, then numbers."""

import shutil
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError, printable

WIDEST = 50  # characters of a cell
printed: list[Any] = []  # all tables, with their numbers in full precision, for --json


def print_table(table: Sequence[Sequence[Any]], words: int = 1, form: str = ".3f") -> None:
    """Print rows of cells, and add them to `printed`; the first row is the heading.

    Args:
        words: number of left-aligned columns; the others are right-aligned.
        form: the format of floats.
    """
    printed.append(table)
    rows = [[show(cell, form) for cell in row] for row in table]
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    for n, part in enumerate(parts_that_fit(widths)):
        if n:
            print()
        for row in rows:
            cells = []
            for place in part:
                space = " " * (widths[place] - width_of(row[place]))
                cells.append(row[place] + space if place < words else space + row[place])
            print("  ".join(cells).rstrip())


def show(cell: Any, form: str) -> str:
    """Return a cell as text: None is empty; a pair is a number and its standard error."""
    if isinstance(cell, tuple):
        cell = "{:+.4f} ± {:.4f}".format(*cell)
    elif isinstance(cell, float | int):
        cell = f"{cell:{form if isinstance(cell, float) else ','}}"
    text = printable("" if cell is None else str(cell))
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def parts_that_fit(widths: Sequence[int]) -> list[list[int]]:
    """Return the columns to print side by side: all of them, or, if the terminal is too narrow,
    groups that fit, each with the first column."""
    room = shutil.get_terminal_size((sys.maxsize, 0)).columns  # all columns fit in a file
    parts = [[0]]
    for place in range(1, len(widths)):
        part = parts[-1]
        if len(part) > 1 and sum(widths[p] + 2 for p in part) + widths[place] > room:
            parts.append([0])
        parts[-1].append(place)
    return parts


def width_of(text: str) -> int:
    """Return the width of a text in a terminal, where a Chinese character takes two columns."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def visible(token: str) -> str:
    """Return a token with visible white space: ␣ for a space, ↵ for a newline, ⇥ for a tab."""
    return printable(token.translate(str.maketrans(" \n\t", "␣↵⇥")))


def check_path(path: Path, flag: str, mark: bytes) -> None:
    """Check a path before anything is measured.

    Args:
        mark: the first bytes of an earlier result, which may be replaced, even if it is incomplete.

    Raises:
        UserError: if another file would be overwritten, or there is no such folder.
    """
    ours = path.is_file() and mark.startswith(path.read_bytes()[: len(mark)])
    if not path.parent.is_dir() or (path.exists() and not ours):
        raise UserError(f"{flag} {str(path)!r} must name a result, or a new file in a folder")
