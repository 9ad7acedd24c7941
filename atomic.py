"""Files that are whole or absent, and written by one process at a time."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the place, sync, rename: what was there stays until all of it is on the disk.

    Raises:
        OSError: when it cannot be written; what was there is as it was.
    """
    scratch = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with open(scratch, "wb") as file:
            file.write(content)
            sync(file)
        os.replace(scratch, path)
    except OSError as error:
        error.filename = str(path)  # the name that means something to whoever reads the message
        raise
    finally:
        scratch.unlink(missing_ok=True)
    if os.name == "posix":  # the rename itself is on the disk once its folder is
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def sync(file: IO[bytes]) -> None:
    """Wait until what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system inside that name no file, as those of writing do not, name this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def keep_others_out(path: Path, doing: str) -> Iterator[None]:
    """One process at a time makes what is to stand at `path`; the others wait, and say for what."""
    lock = FileLock(f"{path}.lock")
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        print(f"waiting for another process, which {doing}", file=sys.stderr)
        held = lock.acquire()
    with held:
        yield
