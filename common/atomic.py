"""Files that are whole or absent."""

import os
from pathlib import Path
from typing import IO, Any


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
