"""Atomic writes: a file or a folder is complete or absent."""

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def write_atomically(path: Path, content: bytes | Callable[[IO[bytes]], None]) -> None:
    """Write to a scratch file in the same folder, sync it, and rename it to `path`.

    Args:
        content: the bytes, or a function that writes them.

    Raises:
        OSError: if it cannot be written; the previous file is unchanged.
    """
    # The name is random and the file is opened exclusively, so that no planted link is followed.
    scratch = path.with_name(f".writing-{secrets.token_hex(8)}-{path.name}")
    try:
        with open(scratch, "xb") as file:
            content(file) if callable(content) else file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        error.filename = str(path)  # the name to show to the user
        raise
    finally:
        with suppress(OSError):  # as if the folder is read-only: the first error is the one to show
            scratch.unlink(missing_ok=True)
    if os.name == "posix":  # sync the folder, so that the rename is on disk, too
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder next to `path`, which becomes `path` at the end of the `with` block. After
    an error, it is removed.

    Raises:
        OSError: if it cannot be written, naming `path`.
    """
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".writing-{path.name}-", dir=path.absolute().parent, ignore_cleanup_errors=True
        ) as scratch:
            made = Path(scratch, path.name)
            made.mkdir()
            yield made
            made.rename(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write has none
        raise
