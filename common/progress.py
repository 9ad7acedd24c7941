"""Progress of long work, on standard error."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


def progress(items: Iterable[Item], what: str, is_long: bool = True) -> Iterator[Item]:
    """Yield the items, and show a bar in a terminal.

    Args:
        is_long: if standard error is not a terminal, print a line at the start.
    """
    in_terminal = sys.stderr.isatty()
    if is_long and not in_terminal:
        print(f"{what} ...", file=sys.stderr)
    yield from tqdm(items, what, leave=False, disable=not in_terminal)
