"""Tables in a terminal: aligned columns, first words, then numbers."""

import shutil
import sys
import unicodedata
from collections.abc import Sequence

from common.errors import printable


def print_table(rows: Sequence[Sequence[str]], words: int = 1) -> None:
    """Print rows of cells; the first row is the heading.

    Args:
        words: number of left-aligned columns; the others are right-aligned.
    """
    rows = [list(map(printable, row)) for row in rows]
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
