"""Progress of long work, on standard error."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items, and show a bar in a terminal, or else a line at the start."""
    if not sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr)
    yield from tqdm(items, what, total, leave=False, disable=not sys.stderr.isatty())
