"""Files and folders that are whole or absent, and written by one process at a time."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from common.errors import printable


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


@contextmanager
def scratch_folder(folder: Path, doing: str) -> Iterator[Path]:
    """An empty folder for one process to write in; any other that wants it waits, and says for
    what. It is removed at the end, as are those beside it whose processes were killed.

    Raises:
        OSError: naming the folder where the system names no file, as for a full disk.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        print(printable(f"waiting for another process, which {doing}"), file=sys.stderr)
        held = lock.acquire()
    with held:
        remove_abandoned(folder)
        try:
            folder.mkdir()
            yield folder
        except OSError as error:
            error.filename = error.filename or str(folder)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(own: Path) -> None:
    """Remove our own old scratch folder, and those beside it that no process holds and we may."""
    for folder in own.parent.iterdir():
        if folder == own:
            shutil.rmtree(folder)
        elif folder.is_dir():
            with suppress(OSError), FileLock(f"{folder}.lock", blocking=False):
                shutil.rmtree(folder)
