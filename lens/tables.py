"""Tables in a terminal: aligned columns, first words, then numbers."""

import os
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError, printable

WIDEST = 50  # characters of a cell
WIDTH = 120  # of a table that is not printed to a terminal


class Table(NamedTuple):
    """What a command of study.py yields; as text, it fits the terminal."""

    rows: Sequence[Sequence[Any]]
    """The first row is the heading."""

    words: int = 1
    """Number of left-aligned columns; the others are right-aligned."""

    form: str = ".3f"
    """The format of floats."""

    full: Sequence[Any] = ()
    """What --json has instead of the rows, if it has more: an object for each line."""

    failed: bool = False
    """Whether the command exits with code 1."""

    def __str__(self) -> str:
        rows = [[as_text(cell, self.form) for cell in row] for row in self.rows]
        widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, ["-" * width for width in widths])
        parts = []
        for part in parts_that_fit(widths):
            lines = []
            for row in rows:
                cells = []
                for place in part:
                    space = " " * (widths[place] - width_of(row[place]))
                    cells.append(row[place] + space if place < self.words else space + row[place])
                lines.append("  ".join(cells).rstrip())
            parts.append("\n".join(lines))
        return "\n\n".join(parts)


def check_path(flag: str, path: Path, suffix: str) -> None:
    """Check the path of a result before anything is measured.

    Raises:
        UserError: if it does not end in `suffix`, or its folder cannot be written.
    """
    if path.suffix != suffix or not os.access(path.parent, os.W_OK):
        raise UserError(f"{flag} {str(path)!r} must name a {suffix} file in a folder to write to")


def as_text(cell: Any, form: str) -> str:
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
    room = shutil.get_terminal_size((WIDTH, 0)).columns
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
