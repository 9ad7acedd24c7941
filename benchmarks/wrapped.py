"""Text in wrapped paragraphs: the ends of its words, and the same text at another width."""

import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
WIDTH = 70  # of the lines of Python's manual
FULL = 4 / 7  # of the width: a shorter line ends its paragraph


class Ends(NamedTuple):
    """The ends of words inside wrapped paragraphs: a space or a newline follows."""

    position: Array
    """Of the space or newline in the text."""

    column: Array
    """Characters of the line so far."""

    fits: Array
    """Whether the next word fits into the line."""

    breaks: Array
    """Whether a newline follows."""


def paragraphs(text: str, width: int) -> Iterator[list[tuple[int, str]]]:
    """Yield the start and the text of each line of a paragraph: lines of the same indentation, all
    but the last of them full."""
    lines: list[tuple[int, str]] = []
    start = 0
    for line in (*text.split("\n"), ""):
        follows = bool(lines) and len(lines[-1][1]) >= FULL * width
        if lines and not (follows and line.strip() and indent(line) == indent(lines[-1][1])):
            yield lines
            lines = []
        if line.strip():
            lines.append((start, line))
        start += len(line) + 1


def indent(line: str) -> str:
    """Return the spaces at the beginning of a line."""
    return line[: len(line) - len(line.lstrip(" "))]


def joined(lines: list[tuple[int, str]]) -> str:
    """Return the lines of a paragraph as one."""
    return indent(lines[0][1]) + " ".join(" ".join(line for _, line in lines).split())


def rewrap(text: str, width: int | None) -> str:
    """Wrap the paragraphs of the manual at another width; if None, make each of them one line."""
    parts, end = [], 0
    for lines in paragraphs(text, WIDTH):
        if len(lines) == 1:
            continue
        (start, first), (last, rest) = lines[0], lines[-1]
        wrapped = joined(lines)
        if width:
            wrapped = textwrap.fill(
                wrapped,
                width,
                subsequent_indent=indent(first),
                break_long_words=False,
                break_on_hyphens=False,
            )
        parts += [text[end:start], wrapped]
        end = last + len(rest)
    return "".join(parts) + text[end:]


def ends_of_words(text: str, width: int) -> Ends:
    """Return the ends of words in paragraphs of several lines, but for the last word of each."""
    rows = [np.empty((0, 4), dtype=int)]
    for lines in paragraphs(text, width):
        words = [
            (start, word.end(), len(word.group()))
            for start, line in lines
            for word in re.finditer(r"\S+", line)
        ]
        for (start, column, _), (next_start, _, length) in itertools.pairwise(
            words if lines[1:] else []
        ):
            fits = column + 1 + length <= width
            rows.append(np.array([[start + column, column, fits, start != next_start]]))
    position, column, fits, breaks = np.concatenate(rows).T
    return Ends(position, column, fits.astype(bool), breaks.astype(bool))
