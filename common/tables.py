"""Tables for people: aligned columns, the first of words, the others of numbers."""

import shutil
import sys
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
    for n, part in enumerate(parts_that_fit(widths)):
        if n:
            print()
        for i, row in enumerate(rows):
            cells = []
            for place in part:
                space = " " * (widths[place] - columns_of(row[place]))
                cells.append(row[place] + space if place < words else space + row[place])
            print("  ".join(cells).rstrip())
            if i == 0:
                print("  ".join("-" * widths[place] for place in part))


def parts_that_fit(widths: Sequence[int]) -> list[list[int]]:
    """Which columns stand side by side: all of them, or, where the terminal is too narrow, groups
    of as many as it has room for, each group led by the first column."""
    room = shutil.get_terminal_size((sys.maxsize, 0)).columns  # in a file, all there is
    parts = [[0]]
    for place in range(1, len(widths)):
        part = parts[-1]
        if len(part) > 1 and sum(widths[p] + 2 for p in part) + widths[place] > room:
            parts.append([0])
        parts[-1].append(place)
    return parts


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
