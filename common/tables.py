"""Tables for people: aligned columns, the first of words, the others of numbers."""

import unicodedata
from collections.abc import Sequence

from common.errors import printable


def print_table(rows: Sequence[Sequence[str]], words: int = 1) -> None:
    """Print rows of cells under the first row, the heading.

    Args:
        words: how many columns at the left stand to the left; the others stand to the right.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    for i, row in enumerate(rows):
        cells = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - columns_of(cell))
            cells.append(cell + space if place < words else space + cell)
        print("  ".join(cells).rstrip())
        if i == 0:
            print("  ".join("-" * width for width in widths))


def columns_of(text: str) -> int:
    """Columns that a text takes in a terminal, where a Chinese character takes two."""
    return sum(
        0 if is_mark(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def is_mark(char: str) -> bool:
    """Whether a character stands on the one before it."""
    return unicodedata.category(char) in ("Mn", "Me")


def visible(token: str) -> str:
    """A token as something that can be seen: a space is ␣, a newline ↵, other controls a number."""
    known = {" ": "␣", "\n": "↵", "\t": "⇥"}
    number = {c: c.encode("unicode_escape").decode() for c in token if not c.isprintable()}
    shown = "".join((number | known).get(char, char) for char in token)
    return "\u25cc" + shown if token and is_mark(token[0]) else shown  # it needs what to stand on
