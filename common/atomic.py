"""Files that are whole or absent, and written by one process at a time."""

import json
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

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


def sync(file: IO[Any]) -> None:
    """Wait until what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def write_journal(path: Path, done: dict[str, Any]) -> None:
    """Note how far a long work has come, so that it can be taken up; see `write_atomically`."""
    text = json.dumps(done)
    write_atomically(path, f"{zlib.crc32(text.encode()):08x} {text}".encode())


def read_journal(path: Path) -> dict[str, Any]:
    """What `write_journal` noted; nothing, where there is none or it is not what was written."""
    try:
        checksum, text = path.read_text().split(" ", 1)
    except (FileNotFoundError, ValueError):
        return {}
    return json.loads(text) if checksum == f"{zlib.crc32(text.encode()):08x}" else {}


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
