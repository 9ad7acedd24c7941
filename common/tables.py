"""Tables in a terminal: aligned columns, the first of words, the others of numbers."""

import unicodedata
from collections.abc import Sequence

from common.errors import printable


def print_table(rows: Sequence[Sequence[str]], words: int = 1) -> None:
    """Print rows of cells under the first row, the heading.

    Args:
        words: number of columns that are aligned to the left; the others are to the right.
    """
    rows = [list(map(printable, row)) for row in rows]
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    for row in rows:
        cells = []
        for place, cell in enumerate(row):
            space = " " * (widths[place] - width_of(cell))
            cells.append(cell + space if place < words else space + cell)
        print("  ".join(cells).rstrip())


def width_of(text: str) -> int:
    """Return the columns that a text takes in a terminal: a Chinese character takes two."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def visible(token: str) -> str:
    """Return a token with its white space made visible: a space is ␣, a newline ↵, a tab ⇥."""
    return printable(token.translate(str.maketrans(" \n\t", "␣↵⇥")))
